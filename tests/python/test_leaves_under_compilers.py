"""Tensors that require grad without a history, under a backend that decides by the inputs alone (AOTAutograd)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fixtures.subject import frametap, needs_capture

pytestmark = needs_capture


def leaf_by_method(x: torch.Tensor) -> Any:
    w = torch.zeros(2).requires_grad_()
    return w + x, w


def leaf_by_attribute(x: torch.Tensor) -> Any:
    w = torch.zeros(2)
    w.requires_grad = True
    return w * x


def leaf_behind_a_call(x: torch.Tensor) -> Any:
    def make() -> torch.Tensor:
        return (x.detach() * 2).requires_grad_(True)

    return make().sin()


def view_in_inference_block(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = x * 2
        view = x.view(-1)
        part, rest = x.split([1, 1])
    return y, view, part, rest


def view(x: torch.Tensor) -> Any:
    return x[:1], x.view(-1), x * 2


def described(result: Any) -> list[tuple[bool, ...]]:
    tensors = result if isinstance(result, tuple) else (result,)
    return [(t.requires_grad, t.is_inference(), t.grad_fn is not None, t.is_leaf) for t in tensors]


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "f",
    [leaf_by_method, leaf_by_attribute, leaf_behind_a_call, view_in_inference_block, view],
)
def test_what_requires_grad_does_so_in_a_replay(
    f: Callable[..., Any], requires_grad: bool, is_inference: bool
) -> None:
    x = torch.ones(2, requires_grad=requires_grad)
    compiled = frametap.compile(f, backend="aot_eager")
    with torch.inference_mode(is_inference):
        want = described(f(x))
        assert [described(compiled(x)) for _ in range(3)] == [want] * 3
