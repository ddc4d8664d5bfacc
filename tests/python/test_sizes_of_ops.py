"""The sizes of results that the recorder infers. Either a proof exists that the op makes them of sizes, or they are
read from the result.

M1  An op that nothing is known of is asked for its sizes at each run.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about captured functions")]


@pytest.fixture
def library() -> torch.library.Library:
    with torch.library._scoped_library("frametap_sizes", "FRAGMENT") as made:
        yield made


def test_M1_a_custom_op_is_asked_for_its_sizes(library: torch.library.Library) -> None:
    library.define("positive(Tensor x) -> Tensor")
    library.impl("positive", lambda x: x[x > 0], "CPU")

    def f(x: Tensor) -> tuple[int, int]:
        y = torch.ops.frametap_sizes.positive(x)
        return y.numel(), 1 if y.shape[0] > 1 else 2

    captured = frametap.compile(f)
    for values in ([1.0, 2.0, -1.0], [1.0, 2.0, -1.0], [-1.0, -1.0, -1.0], [1.0, -1.0, -1.0]):
        x = torch.tensor(values)
        assert captured(x) == f(x)


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x[x > 0] * 2,
        lambda x: (x > 0).nonzero() + 1,
        lambda x: x.masked_select(x > 0).sum(),
        lambda x: x.unique() * 2,
        lambda x: torch.where(x > 0)[0] + 1,
        lambda x: torch.repeat_interleave(x, torch.tensor([1, 2, 3])) + 1,
    ],
    ids=["mask", "nonzero", "masked_select", "unique", "where", "repeat_interleave"],
)
def test_backends_that_trace_get_no_op_whose_sizes_they_cannot_say(backend: str, f: object) -> None:
    captured = frametap.compile(f, backend=backend)
    for values in ([1.0, -1.0, 2.0], [1.0, -1.0, 2.0], [-1.0, -1.0, -1.0], [3.0, 2.0, 1.0]):
        x = torch.tensor(values)
        assert torch.equal(captured(x), f(x))
    if backend == "aot_eager":
        assert "data_dependent_size" in {b.reason for b in frametap.explain(captured).breaks}


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.combinations(x) + 1,
        lambda x: torch.cov(x.view(1, 3)) + 1,
        lambda x: torch.corrcoef(torch.stack([x, x * x])) + 1,
        lambda x: torch.narrow(x, 0, torch.tensor(1), 1) + 1,
        lambda x: torch.quantize_per_tensor_dynamic(x, torch.quint8, False).dequantize() + 1,
    ],
    ids=["combinations", "cov", "corrcoef", "narrow", "quantized"],
)
def test_backends_that_trace_get_no_op_that_they_cannot_trace(f: object) -> None:
    captured = frametap.compile(f, backend="aot_eager")
    for values in ([1.0, -1.0, 2.0], [1.0, -1.0, 2.0], [3.0, 2.0, 1.0]):
        x = torch.tensor(values)
        assert torch.equal(captured(x), f(x))


_VALUES = {
    "zeros": lambda: torch.zeros(3, 4),
    "ones": lambda: torch.ones(3, 4),
    "mixed": lambda: torch.tensor(
        [[0.0, 1.0, 2.0, 0.0], [2.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.0, 3.0]]
    ),
    "negative": lambda: -torch.arange(12.0).view(3, 4),
}


def _sizes(op: object, x: Tensor) -> list[object]:
    """All sizes, ranks, strides and counts of the results, and a branch on them."""
    result = op(x)
    results = result if isinstance(result, (tuple, list)) else (result,)
    facts: list[object] = []
    for t in results:
        if isinstance(t, Tensor):
            facts.append((tuple(t.shape), t.dim(), t.numel(), t.stride()))
            facts.append("many" if t.numel() > 5 else "few")
    return facts


def _ops_of_one_tensor() -> list[str]:
    """Functions of torch that take one tensor and nothing else, by their schemas."""
    names = set()
    for schema in torch._C._jit_get_all_schemas():
        namespace, _, name = schema.name.partition("::")
        required = [a for a in schema.arguments if not a.has_default_value()]
        if (
            namespace == "aten"
            and not name.endswith("_")
            and len(required) == 1
            and str(required[0].type) == "Tensor"
            and not any(
                a.alias_info is not None and a.alias_info.is_write for a in schema.arguments
            )
            and hasattr(torch.ops.aten, name)
        ):
            names.add(name)
    # The results of these are random, not tensors, or memory that was never written.
    out = (
        "rand",
        "empty",
        "bernoulli",
        "multinomial",
        "poisson",
        "normal",
        "item",
        "record_stream",
        "dropout",
        "rrelu",
    )
    return sorted(n for n in names if not any(word in n for word in out) and not n.startswith("_"))


def test_sizes_are_those_of_plain_python_for_other_values_of_the_same_shape() -> None:
    tried, wrong = 0, []
    for name in _ops_of_one_tensor():
        op = getattr(torch.ops.aten, name)
        try:
            wants = {kind: _sizes(op, make()) for kind, make in _VALUES.items()}
        except (RuntimeError, TypeError, NotImplementedError, IndexError, ValueError):
            continue
        captured = frametap.compile(lambda x, op=op: _sizes(op, x))
        tried += 1
        for kind in ("mixed", "mixed", "zeros", "ones", "negative"):
            if captured(_VALUES[kind]()) != wants[kind]:
                wrong.append((name, kind))
    assert not wrong
    assert tried > 150
