"""Calls of quantized and frozen models, which pass `nn.Module.__call__` and `forward` only where something is unusual."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import frametap
from frametap._inference_model import InferenceModel

MAKERS: dict[str, Callable[[nn.Module], Any]] = {
    "static": lambda m: frametap.quantize(m, [torch.randn(2, 8) for _ in range(4)], progress=False),
    "dynamic": lambda m: frametap.quantize(
        m, [torch.randn(2, 8)], scheme="dynamic", progress=False
    ),
    "frozen": lambda m: frametap.freeze(m, [torch.randn(2, 8)]),
}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        if scale < 0:
            raise ValueError("a negative scale")
        return self.linear(x) * scale


@pytest.fixture(params=MAKERS)
def model(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return MAKERS[request.param](Scaled().eval())


X = torch.linspace(-1, 1, 16).reshape(2, 8)


def codes_of(call: Callable[[], Any]) -> set[CodeType]:
    """The Python code that a call enters."""
    seen = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def is_short(call: Callable[[], Any]) -> bool:
    return InferenceModel.forward.__code__ not in codes_of(call)


def test_a_usual_call_enters_no_python_code(model: Any) -> None:
    want = model.forward(X)
    assert is_short(lambda: model(X))
    assert is_short(lambda: model(x=X))
    assert torch.equal(model(X), want)
    assert torch.equal(model(x=X), want)
    assert type(model).__call__ is nn.Module.__call__


def test_hooks_run_while_they_are_there(model: Any) -> None:
    model(X)
    seen: list[Any] = []
    for register in (
        model.register_forward_pre_hook,
        nn.modules.module.register_module_forward_pre_hook,
    ):
        handle = register(lambda module, args: seen.append(module))
        model(X)
        assert sum(module is model for module in seen) == 1
        handle.remove()
        seen.clear()
        model(X)
        assert not seen
        assert is_short(lambda: model(X))


def test_a_forward_of_the_users_runs(model: Any) -> None:
    model(X)
    want = model(X)
    model.forward = lambda x: type(model).forward(model, x) + 1
    assert torch.equal(model(X), want + 1)
    del model.forward
    assert torch.equal(model(X), want)

    class Doubled(type(model)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * 2

    model.__class__ = Doubled
    assert torch.equal(model(X), want * 2)


def test_a_call_function_that_is_replaced_for_a_while(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = model(X)
    original = nn.Module.__call__
    seen = []

    def watching(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(self)
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(nn.Module, "__call__", watching)
        assert torch.equal(model(X), want)
        assert sum(module is model for module in seen) == 1
    seen.clear()
    assert torch.equal(model(X), want)
    assert not seen
    assert is_short(lambda: model(X))


def test_autocast_and_tracers_are_seen(model: Any) -> None:
    want = model(X)
    with torch.autocast("cpu"):
        assert torch.equal(model(X), want)
    outer = nn.Sequential(model)
    for trace in (
        lambda: torch.fx.symbolic_trace(outer),
        lambda: torch.jit.trace(outer, X),
        lambda: torch.export.export(outer, (X,)),
    ):
        with pytest.raises(frametap.FrametapError, match="cannot be exported or traced"):
            trace()
    assert torch.equal(model(X), want)


def test_exceptions_pass(model: Any) -> None:
    model(X)
    with pytest.raises(ValueError, match="a negative scale"):
        model(X, -1.0)
    with pytest.raises(TypeError):
        model()
    with pytest.raises(RuntimeError):
        model(X[:, :3])


def test_the_threads_grad_mode_stays(model: Any) -> None:
    model(X)
    assert torch.is_grad_enabled()
    assert not model(X).requires_grad
    with torch.inference_mode():
        assert not model(X).requires_grad
    assert torch.is_grad_enabled()


def test_calls_are_counted() -> None:
    model = MAKERS["static"](Scaled().eval())
    before = model.calls["int8"]
    for _ in range(3):
        model(X)
    model.forward(X)
    assert model.calls == {"int8": before + 4, "float": 0}
