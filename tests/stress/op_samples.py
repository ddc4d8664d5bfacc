"""Torch's own samples of its ops, captured and plainly. Torch keeps them for its tests of ops (OpInfo).

    python tests/stress/op_samples.py [NAMES] [--form function] [--dtype float32] [--gradients] [--most 14]

One captured function calls the op with all its samples, twice each, and then with all of them again: sizes, dtypes, numbers
and tuples change from call to call. Results, arguments, sharing, strides, exceptions, gradients and random state must be
as in plain Python, and no graph may raise where the op does not.

The samples are in a private module of torch, which needs `expecttest`. This file is the only one that imports it.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.subject import frametap, own_faults
from same.describe import Describer, normalized

FORMS = {"function": "op", "method": "method_variant", "inplace": "inplace_variant"}
# Names of ops, or of samples with such a keyword argument: why plain Python itself gives other bits from call to call.
NOT_COMPARED = {
    "empty": "its memory is what was there",
    "gelsy": "LAPACK rounds by where its matrices lie",
}


def all_ops() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return op_db


def chosen_ops(part: int, parts: int) -> list[Any]:
    """Each op in one of the parts, and always in the same."""
    return [op for op in all_ops() if zlib.crc32(op.formatted_name.encode()) % parts == part]


def _copy(value: Any) -> Any:
    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tree_map(one, value)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _seen(f: Callable[..., Any], sample: Any, *, in_place: bool) -> list[str]:
    """Returns what a call leaves for a program to see."""
    torch.manual_seed(7)
    args, kwargs = _copy((sample.input, *sample.args)), _copy(sample.kwargs)
    leaves = [one for one in _tensors((args, kwargs)) if one.requires_grad]
    if in_place and leaves:
        args = (args[0] * 1, *args[1:])  # a leaf that requires gradients cannot be written
    describer = Describer()
    try:
        result = f(*args, **kwargs)
        describer.add("result", result)
        made = [one for one in _tensors(result) if one.requires_grad]
        if made and leaves:
            loss = sum(one.sum().abs() for one in made)
            describer.add("gradients", torch.autograd.grad(loss, leaves, allow_unused=True))
    except Exception as error:  # noqa: BLE001 - it is what the op gives
        describer.lines.append(f"raises {type(error).__name__} {normalized(str(error))}")
    describer.add("args", args)
    describer.add("kwargs", kwargs)
    describer.add("random", torch.get_rng_state())
    return describer.lines


def _samples(op: Any, dtype: torch.dtype, most: int, *, gradients: bool) -> Iterator[Any]:
    made = op.sample_inputs("cpu", dtype, requires_grad=gradients)
    for sample, _ in zip(made, range(most), strict=False):
        if not NOT_COMPARED.keys() & set(map(str, sample.kwargs.values())):
            yield sample


def fault(
    op: Any,
    *,
    form: str = "function",
    dtype: torch.dtype = torch.float32,
    gradients: bool = False,
    most: int = 14,
) -> str:
    """Returns "", or the first difference of an op."""
    called = getattr(op, FORMS[form])
    if called is None or dtype not in op.dtypes or any(one in op.name for one in NOT_COMPARED):
        return ""

    def plain(*args: Any, **kwargs: Any) -> Any:
        return called(*args, **kwargs)

    def seen(f: Callable[..., Any], sample: Any) -> list[str]:
        return _seen(f, sample, in_place=form == "inplace")

    captured = frametap.compile(plain)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = _samples(op, dtype, most, gradients=gradients and op.supports_autograd)
            wanted = [(sample, seen(plain, sample)) for sample in samples]
            wanted = [(sample, want) for sample, want in wanted if want == seen(plain, sample)]
            for sample, want in wanted * 2:
                for _ in range(2):
                    got = seen(captured, sample)
                    if got != want:
                        difference = _difference(want, got)
                        return f"{op.formatted_name} differs for {sample}\n{difference}"
        raised = own_faults(captured)
        return f"{op.formatted_name}: " + "; ".join(raised) if raised else ""
    finally:
        frametap.reset(captured)


def _difference(want: list[str], got: list[str]) -> str:
    return "\n".join(difflib.unified_diff(want, got, "plain", "captured", lineterm="", n=1))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="ops whose names hold one of these; all of them")
    parser.add_argument("--form", choices=FORMS, default="function")
    parser.add_argument("--dtype", default="float32", help="a dtype of torch (%(default)s)")
    parser.add_argument("--gradients", action="store_true", help="inputs require gradients")
    parser.add_argument("--most", type=int, default=14, help="samples of an op (%(default)s)")
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype, None)
    if not isinstance(dtype, torch.dtype):
        parser.error(f"--dtype: torch has no dtype {options.dtype!r}")
    ops = [
        op
        for op in all_ops()
        if not options.names or any(name in op.formatted_name for name in options.names)
    ]
    if not ops:
        parser.error(f"no op has a name with {' or '.join(options.names)}")
    faults = 0
    for done, op in enumerate(ops, 1):
        text = fault(
            op, form=options.form, dtype=dtype, gradients=options.gradients, most=options.most
        )
        if text:
            faults += 1
            print(text, flush=True)
        if os.isatty(sys.stderr.fileno()):
            print(f"\r{done} of {len(ops)}", end="", file=sys.stderr, flush=True)
    print(f"{len(ops)} ops, {faults} differ")
    return 1 if faults else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
