"""mark_dynamic and mark_static: what is said of a size is kept, or an error names the line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import frametap
from frametap import ConstraintError, FrametapError


def branch(x: Tensor) -> Tensor:
    if x.shape[0] > 2:
        return x * 2
    return x - 1


def unroll(x: Tensor) -> Tensor:
    for k in range(x.shape[0]):
        x = x + k
    return x


def halves(x: Tensor) -> Tensor:
    return x.view(x.shape[0] // 2, -1) + x.shape[1]


def marked(*shape: int, **marks: int) -> Tensor:
    x = torch.ones(shape)
    frametap.mark_dynamic(x, 0, **marks)
    return x


def test_a_branch_for_a_part_of_the_range_is_an_error_with_the_range_that_fits() -> None:
    captured = frametap.compile(branch)
    with pytest.raises(
        ConstraintError, match=r"L\.x\.size\(0\) > 2 holds from 3 on: mark it with min=3"
    ) as error:
        captured(marked(4, 2, min=1, max=100))
    assert error.value.position.startswith("branch:14:")
    assert error.value.reason == "marked_size"
    assert "min" in error.value.advice or "range" in error.value.advice
    assert torch.equal(captured(marked(4, 2, min=3, max=100)), torch.ones(4, 2) * 2)
    assert torch.equal(
        captured(torch.ones(2, 2)), torch.zeros(2, 2)
    )  # a branch is not an error without a mark


def test_both_ends_are_told() -> None:
    def f(x: Tensor) -> Tensor:
        return x * 2 if 2 < x.shape[0] < 9 else x

    with pytest.raises(ConstraintError, match="min=3"):
        frametap.compile(f)(marked(4, min=1, max=100))
    with pytest.raises(ConstraintError, match=r"up to 8 only: mark it with max=8"):
        frametap.compile(f)(marked(4, min=3, max=100))
    assert torch.equal(frametap.compile(f)(marked(4, min=3, max=8)), torch.ones(4) * 2)


def test_a_size_that_is_fixed_is_an_error_and_nothing_is_half_done() -> None:
    seen: list[int] = []

    def f(x: Tensor) -> Tensor:
        seen.append(1)
        x.add_(1)
        return unroll(x)

    captured = frametap.compile(f)
    x = marked(3)
    with pytest.raises(
        ConstraintError, match=r"L\.x\.size\(0\) is marked as dynamic .* and fixed to 3 here"
    ) as error:
        captured(x)
    assert "unroll:20:" in error.value.position
    assert seen == []
    assert torch.equal(x, torch.ones(3))


def test_without_a_range_a_branch_is_no_error() -> None:
    captured = frametap.compile(branch)
    assert torch.equal(captured(marked(4, 2)), torch.ones(4, 2) * 2)
    assert torch.equal(captured(marked(1, 2)), torch.zeros(1, 2))


def test_relations_of_expressions() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x * 2 if (x.shape[0] + 1) // 2 == y.shape[0] else x

    x = marked(4, min=2, max=8)
    with pytest.raises(ConstraintError, match="min=3, max=4"):
        frametap.compile(f)(x, torch.ones(2))


def test_torchs_own_marks_count() -> None:
    import torch._dynamo

    x = torch.ones(4, 2)
    torch._dynamo.mark_dynamic(x, 0, min=1, max=100)
    with pytest.raises(ConstraintError, match="min=3"):
        frametap.compile(branch)(x)
    y = torch.ones(4, 2)
    torch._dynamo.mark_static(y, 0)
    captured = frametap.compile(halves)
    captured(y)
    captured(torch.ones(6, 2))
    assert frametap.explain(captured).recordings == 2


def test_torch_understands_our_marks() -> None:
    x = torch.ones(4, 3)
    frametap.mark_dynamic(x, 0, min=2, max=64)
    compiled = torch.compile(lambda x: x * x.shape[0], backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), torch.ones(4, 3) * 4)


def test_static_sizes_are_guarded() -> None:
    captured = frametap.compile(lambda x: x.view(x.shape[0], -1))
    for n in (4, 5, 4):
        x = torch.ones(n, 2)
        frametap.mark_static(x, 0)
        assert captured(x).shape == (n, 2)
    assert frametap.explain(captured).recordings == 2


def test_a_backend_with_fixed_sizes_gets_a_symbol_at_once() -> None:
    shapes = []

    def backend(module: torch.fx.GraphModule, examples: list[Tensor]) -> object:
        shapes.append([type(n) for n in examples[0].shape])
        return module.forward

    captured = frametap.compile(halves, backend=backend)
    for n in (4, 6):
        assert torch.equal(captured(marked(n, 2)), halves(torch.ones(n, 2)))
    assert shapes == [[torch.SymInt, torch.SymInt]]


def test_dims_of_torch_export() -> None:
    from torch.export import Dim

    x = torch.ones(4, 2)
    frametap.mark_dynamic(x, {0: Dim("batch", min=1, max=100), 1: None})
    with pytest.raises(ConstraintError, match="min=3"):
        frametap.compile(branch)(x)
    captured = frametap.compile(halves)
    captured(x)
    captured(torch.ones(6, 4))
    assert frametap.explain(captured).recordings == 2  # dimension 1 is static
    y = torch.ones(4, 2)
    frametap.mark_dynamic(y, {0: Dim.DYNAMIC, 1: Dim.STATIC})
    assert torch.equal(frametap.compile(branch)(y), y * 2)


def test_dynamic_false_heeds_no_marks() -> None:
    assert torch.equal(frametap.compile(branch, dynamic=False)(marked(4, min=1)), torch.ones(4) * 2)


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        (lambda: frametap.mark_dynamic(3, 0), "a tensor expected, got int"),
        (
            lambda: frametap.mark_dynamic(torch.ones(2), 1),
            r"1 is not a dimension of a tensor with 1 \(-1 to 0\)",
        ),
        (
            lambda: frametap.mark_dynamic(torch.ones(2), 0, min=3),
            "has 2, outside of the range from 3 to any",
        ),
        (
            lambda: frametap.mark_dynamic(torch.ones(9), 0, max=8),
            "has 9, outside of the range from 0 to 8",
        ),
        (
            lambda: frametap.mark_dynamic(torch.ones(3), 0, min=5, max=2),
            "has min=5 and max=2; min must be at most max",
        ),
        (
            lambda: frametap.mark_dynamic(torch.ones(2), {0: "n"}),
            "a torch.export.Dim or None expected, got 'n'",
        ),
        (lambda: frametap.mark_static(torch.ones(2), "x"), "'x' is not a dimension"),
    ],
)
def test_bad_marks(mark: object, words: str) -> None:
    with pytest.raises(FrametapError, match=words):
        mark()  # type: ignore[operator]
