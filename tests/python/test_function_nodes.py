"""torch.autograd.Function as a node that calls the program's code (frame_eval/record/trace/function_nodes.h)."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import frametap


def scaled(calls: list[int]) -> type[torch.autograd.Function]:
    """Return a class of its own, whose backward counts its calls."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
            ctx.save_for_backward(x)
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
            calls.append(1)
            (x,) = ctx.saved_tensors
            return grad * x * 100, None

    return Scaled


def test_one_node_calls_forward_and_backward() -> None:
    """The graph has the node and not the ops of forward, and backward is the program's."""
    calls: list[int] = []
    function = scaled(calls)
    f = frametap.compile(lambda x: function.apply(x, 2.0) + 1)
    for _ in range(4):
        x = torch.arange(3.0, requires_grad=True)
        f(x).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.arange(3.0) * 100)
    assert len(calls) == 4
    told = frametap.explain(f)
    assert (told.recordings, told.graph_count, told.hits) == (1, 1, 3)
    assert "frametap.apply" in frametap.graph(f).text()
    assert "aten.mul" not in frametap.graph(f).text()


def test_saved_tensors_end_with_the_graph_of_a_call() -> None:
    """The segment does not keep the tensors that a call has saved."""
    function = scaled([])
    f = frametap.compile(lambda x: function.apply(x * 1, 2.0))
    for _ in range(3):
        result = f(torch.ones(3, requires_grad=True))
        saved = weakref.ref(result.grad_fn.saved_tensors[0])
        del result
        gc.collect()
        assert saved() is None


def test_the_class_is_not_kept_alive() -> None:
    """A class that ends with the function that uses it does not live on in a segment."""

    def make() -> tuple[Any, Any]:
        function = scaled([])
        f = frametap.compile(lambda x: function.apply(x, 2.0))
        for _ in range(3):
            f(torch.ones(2))
        return weakref.ref(function), f

    klass, f = make()
    assert klass() is not None
    del f
    gc.collect()
    assert klass() is None


def test_compiling_backends_break() -> None:
    """A backend that compiles gets a graph before the call and one after it, and gradients are right."""
    function = scaled([])

    def plain(x: Tensor) -> Tensor:
        return function.apply(x * 1, 2.0) + 1

    f = frametap.compile(plain, backend="aot_eager")
    for _ in range(3):
        x, y = (torch.arange(3.0, requires_grad=True) for _ in range(2))
        result = f(x)
        assert torch.equal(result, plain(y))
        result.sum().backward()
        plain(y).sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, y.grad)


def test_save_refuses(tmp_path: Path) -> None:
    """A file cannot hold the program's code, and the error says so."""
    function = scaled([])

    def f(x: Tensor) -> Tensor:
        return function.apply(x, 2.0)

    compiled = frametap.compile(f)
    for _ in range(2):
        compiled(torch.ones(2))
    with pytest.raises(frametap.ArtifactError, match=r"autograd\.[Ff]unction"):
        frametap.save(compiled, tmp_path / "f.zip")
