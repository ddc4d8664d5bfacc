"""A compiled function calls a compiled function: one graph, as if only the outer one were compiled."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import frametap, needs_capture

pytestmark = needs_capture


class Scaled(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.factor = factor

    def forward(self, x: Tensor, shift: int = 1) -> Tensor:
        if x.dim() == 0:
            raise ValueError("a vector is wanted")
        return self.linear(x) * self.factor + shift


class Tripled(Scaled):
    def forward(self, x: Tensor, shift: int = 1) -> Tensor:
        return x * 3


class Owner:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def method(self, x: Tensor) -> Tensor:
        return x * self.factor

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.factor


x = torch.ones(1, 2)
callee: Any = None


def calls_it(x: Tensor) -> Any:
    return callee(x) * 2


def same(outer: Callable[..., Any], recordings: int | None = None) -> None:
    """Plainly, and three times captured; the last two without a recording."""
    want = calls_it(x)
    assert torch.equal(outer(x), want)
    with frametap.assert_no_recording():
        assert torch.equal(outer(x), want)
        assert torch.equal(outer(x), want)
    explained = frametap.explain(outer)
    assert not explained.breaks
    if recordings is not None:
        assert explained.recordings == recordings


def kinds() -> dict[str, tuple[Any, Any]]:
    one, other = Owner(3.0), Owner(4.0)
    return {
        "function": (lambda x: x * 3, lambda x: x * 4),
        "method": (one.method, other.method),
        "object": (one, other),
        "module": (Scaled(3.0), Scaled(4.0)),
    }


@pytest.mark.parametrize("kind", kinds())
def test_another_one_in_its_place_is_met(kind: str) -> None:
    global callee
    first, second = map(frametap.compile, kinds()[kind])
    outer = frametap.compile(calls_it)
    for recordings, callee in ((1, first), (2, second)):
        same(outer, recordings)
    callee = first
    same(outer)


def test_modules_are_read_as_they_are_plainly() -> None:
    global callee
    module = Scaled(2.0)
    callee = frametap.compile(module)
    outer = frametap.compile(calls_it)
    same(outer, 1)
    module.factor = 5.0
    same(outer, 2)
    handle = module.register_forward_hook(lambda module, args, out: out * 7)
    same(outer, 3)
    handle.remove()
    same(outer, 3)
    module.linear = nn.Linear(2, 2)
    same(outer)
    module.forward = lambda x: x * 100  # type: ignore[method-assign]
    same(outer)
    del module.forward
    same(outer)
    module.__class__ = Tripled
    same(outer)
    callee = module
    same(outer)


def test_as_a_part_of_another_module() -> None:
    parts = [Scaled(2.0), Scaled(3.0)]
    outer = frametap.compile(nn.Sequential(*map(frametap.compile, parts)))
    want = nn.Sequential(*parts)(x)
    assert torch.equal(outer(x), want)
    assert torch.equal(outer(x), want)
    assert frametap.explain(outer).recordings == 1
    outer(x).sum().backward()
    assert all(p.grad is not None for part in parts for p in part.parameters())


def test_quantized_models_run_by_themselves() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).eval()
    data = [torch.randn(8, 16) for _ in range(4)]
    quantized = frametap.quantize(model, data)
    outer = frametap.compile(lambda x: quantized(x * 1.0) * 2)
    with torch.no_grad():
        want = quantized(data[0]) * 2
        assert not torch.equal(want, model(data[0]) * 2)
        for _ in range(3):
            assert torch.equal(outer(data[0]), want)
    assert [b.reason for b in frametap.explain(outer).breaks] == ["own_executable"]


def test_another_backend_is_not_left_out() -> None:
    ran = []

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            ran.append(1)
            return module(*args)

        return run

    inner = frametap.compile(lambda x: x + 1, backend=backend)
    outer = frametap.compile(lambda x: inner(x * 2) * 3)
    for _ in range(3):
        assert torch.equal(outer(x), (x * 2 + 1) * 3)
    assert len(ran) >= 2


def test_the_call_of_a_compiled_module() -> None:
    module = Scaled(2.0)
    compiled = frametap.compile(module)
    assert inspect.signature(compiled) == inspect.signature(module)
    want = module(x)
    calls = [compiled, compiled.__call__, lambda x: type(compiled).__call__(compiled, x)]
    for call in calls:
        assert torch.equal(call(x), want)
        assert torch.equal(call(x=x), want)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        compiled()
    with pytest.raises(TypeError, match="doesn't apply to a 'Scaled' object"):
        frametap.CompiledModule.__call__(module, x)


def test_its_traceback_is_that_of_the_module() -> None:
    module = Scaled(2.0)
    compiled = frametap.compile(module)

    def frames(call: Callable[..., Any]) -> list[str]:
        with pytest.raises(ValueError, match="a vector") as caught:
            call(x[0, 0])
        return [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]

    for _ in range(3):
        assert frames(compiled) == frames(module)
