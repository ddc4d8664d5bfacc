"""Torch's own samples of its ops, captured and plainly. Torch keeps them for its tests of ops (OpInfo).

    python tests/stress/op_samples.py [NAMES] [--form function] [--dtype float32] [--gradients] [--most 14]

One captured function calls the op with all its samples, twice each, and then with all of them again: sizes, dtypes, numbers
and tuples change from call to call. Results, arguments, sharing, strides, exceptions, gradients and random state must be
as in plain Python, and no graph may raise where the op does not.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.subject import EAGER, frametap, own_faults
from same.describe import Describer, normalized
from stress import samples

FORMS = {
    "function": "op",
    "method": "method_variant",
    "inplace": "inplace_variant",
    "saved": "op",  # saved after calls with one sample, loaded, and called with all
}
# Names of ops, or of samples with such a keyword argument: why plain Python itself gives other bits from call to call.
NOT_COMPARED = {
    "empty": "its memory is what was there",
    "gelsy": "LAPACK rounds by where its matrices lie",
}


def all_ops() -> list[Any]:
    return samples.database("common_methods_invocations", "op_db")


def _seen(f: Callable[..., Any], sample: Any, *, in_place: bool) -> list[str]:
    """Returns what a call leaves for a program to see."""
    torch.manual_seed(7)
    args, kwargs = samples.copied((sample.input, *sample.args)), samples.copied(sample.kwargs)
    leaves = [one for one in samples.tensors_of((args, kwargs)) if one.requires_grad]
    if in_place and leaves:
        args = (args[0] * 1, *args[1:])  # a leaf that requires gradients cannot be written
    describer = Describer()
    try:
        result = f(*args, **kwargs)
        describer.add("result", result)
        made = [one for one in samples.tensors_of(result) if one.requires_grad]
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

    if form == "saved":
        return _fault_of_files(op, plain, dtype, most)
    captured = frametap.compile(plain)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = _samples(op, dtype, most, gradients=gradients and op.supports_autograd)
            wanted = [(sample, seen(plain, sample)) for sample in made]
            wanted = [(sample, want) for sample, want in wanted if want == seen(plain, sample)]
            for sample, want in wanted * 2:
                for _ in range(2):
                    got = seen(captured, sample)
                    if got != want:
                        difference = samples.difference(want, got)
                        return f"{op.formatted_name} differs for {sample}\n{difference}"
        raised = own_faults(captured)
        return f"{op.formatted_name}: " + "; ".join(raised) if raised else ""
    finally:
        frametap.reset(captured)


def _fault_of_files(op: Any, plain: Callable[..., Any], dtype: torch.dtype, most: int) -> str:
    """Compares loaded programs. One may refuse a call that was not captured."""
    if EAGER:
        return ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(_samples(op, dtype, most, gradients=False))
        for kept in found[:2]:
            loaded = _through_a_file(plain, kept)
            for sample in (kept, *found) if loaded is not None else ():
                want, again, got = (
                    _seen(f, sample, in_place=False) for f in (plain, plain, loaded)
                )
                is_refused = any(line.startswith("raises ArtifactError") for line in got)
                if want == again and got != want and not is_refused:
                    difference = samples.difference(want, got)
                    return (
                        f"{op.formatted_name} saved for {kept} differs for {sample}\n{difference}"
                    )
    return ""


def _through_a_file(plain: Callable[..., Any], sample: Any) -> Any:
    """Returns the loaded program, or None for a program that no file can hold."""
    captured = frametap.compile(plain)
    try:
        for _ in range(2):
            _seen(captured, sample, in_place=False)
        with tempfile.TemporaryDirectory() as folder:
            frametap.save(captured, Path(folder) / "op")
            return frametap.load(Path(folder) / "op")
    except frametap.ArtifactError:
        return None
    finally:
        frametap.reset(captured)


def main() -> int:
    parser = samples.parser(__doc__, "op", FORMS, "function", 14)
    parser.add_argument("--gradients", action="store_true", help="inputs require gradients")
    options = parser.parse_args()
    return samples.compared(
        all_ops(),
        options.names,
        lambda op: fault(
            op,
            form=options.form,
            dtype=options.dtype,
            gradients=options.gradients,
            most=options.most,
        ),
        "op",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
