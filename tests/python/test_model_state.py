"""A converted model begins with the state of the model that was given: calibration and recording do not show in it."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.quantized import sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture


class Stateful(nn.Module):
    """Gives a result that depends on the calls before, in the way that `step` has it."""

    def __init__(self, step: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.after = nn.Linear(16, 16), nn.Identity()
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("past", None)
        self.step = step
        self.hidden: Tensor | None = None
        self.plain = torch.zeros(16)
        self.list: list[Tensor] = []
        self.dict: dict[str, Tensor] = {}
        self.deque: deque[int] = deque()
        self.held = SimpleNamespace(calls=0)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.step(self, self.layer(x))


def _buffer_in_place(m: Any, h: Tensor) -> Tensor:
    m.mean.mul_(0.5).add_(h.mean(0))
    return h - m.mean


def _buffer_assigned(m: Any, h: Tensor) -> Tensor:
    m.mean = m.mean * 0.5 + h.mean(0)
    return h - m.mean


def _buffer_that_was_none(m: Any, h: Tensor) -> Tensor:
    m.past = h if m.past is None else m.past + h
    return m.past * 1


def _hidden_state(m: Any, h: Tensor) -> Tensor:
    m.hidden = h if m.hidden is None else torch.tanh(h + m.hidden)
    return m.hidden * 1


def _new_attribute(m: Any, h: Tensor) -> Tensor:
    m.last = h + m.last if hasattr(m, "last") else h
    return m.last * 1


def _plain_tensor(m: Any, h: Tensor) -> Tensor:
    m.plain += h.mean(0)
    return h + m.plain


def _list(m: Any, h: Tensor) -> Tensor:
    m.list.append(h)
    return h + len(m.list)


def _dict(m: Any, h: Tensor) -> Tensor:
    m.dict["past"] = h + m.dict["past"] if "past" in m.dict else h
    return m.dict["past"] * 1


def _deque(m: Any, h: Tensor) -> Tensor:
    m.deque.append(len(m.deque))
    return h + len(m.deque)


def _object(m: Any, h: Tensor) -> Tensor:
    m.held.calls += 1
    return h * m.held.calls


def _counter(m: Any, h: Tensor) -> Tensor:
    m.calls += 1
    return h * m.calls


def _hooks(m: Any, h: Tensor) -> Tensor:
    if not getattr(m, "is_hooked", False):
        m.after.register_forward_hook(lambda module, args, result: result * 2)
        m.is_hooked = True
    return m.after(h)


STEPS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    step.__name__[1:]: step
    for step in (
        _buffer_in_place,
        _buffer_assigned,
        _buffer_that_was_none,
        _hidden_state,
        _new_attribute,
        _plain_tensor,
        _list,
        _dict,
        _deque,
        _object,
        _counter,
        _hooks,
    )
}
FORMS: dict[str, Callable[[nn.Module, list[Tensor]], Any]] = {
    "static": lambda m, d: frametap.quantize(m, d, progress=False),
    "dynamic": lambda m, d: frametap.quantize(m, d, scheme="dynamic", progress=False),
    "float32": lambda m, d: frametap.freeze(m, d),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", STEPS)
def test_calls_begin_with_the_state_of_the_model(step: str, form: str) -> None:
    torch.manual_seed(0)
    model = Stateful(STEPS[step]).eval()
    data = [torch.randn(8, 16) for _ in range(3)]
    converted = FORMS[form](model, data)
    assert model.calls == model.held.calls == len(model.list) == len(model.deque) == 0
    with torch.no_grad():
        for x in data:
            assert sqnr(model(x), converted(x)) > 25


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, past: list[Tensor]) -> Tensor:
        past.append(self.second(self.first(x.sub_(1))))
        return past[-1] * 1


@pytest.mark.parametrize("form", FORMS)
def test_the_data_are_as_they_were(form: str) -> None:
    x, past = torch.randn(8, 16), []
    given = x.clone()
    FORMS[form](Writing().eval(), [(x, past), (x, past)])  # type: ignore[list-item]
    assert torch.equal(x, given)
    assert past == []


class Branching(nn.Module):
    """Breaks its graph, so that its noise is measured by calls."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 4)
        self.register_buffer("mean", torch.zeros(16))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        self.mean += h.mean(0)
        self.calls += 1
        if h.sum() > 1e6:
            h = h * 0
        return self.second(h - self.mean) * self.calls


def test_measuring_the_noise_leaves_the_state_alone() -> None:
    torch.manual_seed(0)
    model = Branching().eval()
    data = [torch.randn(8, 16) for _ in range(3)]
    quantized = frametap.quantize(model, data, progress=False)
    with torch.no_grad():
        assert sqnr(model(data[0]), quantized(data[0])) > 25
        assert quantized.sqnr > 25  # runs the program
        assert sqnr(model(data[1]), quantized(data[1])) > 25


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.scales: dict[int, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] not in self.scales:
            self.scales[x.shape[1]] = torch.full((1, x.shape[1]), 0.5)
        return self.second(self.first(x) * self.scales[x.shape[1]])


@pytest.mark.parametrize("form", FORMS)
def test_a_model_with_a_cache_is_saved_once_it_is_full(form: str, tmp_path: Path) -> None:
    x, path = torch.randn(4, 8), tmp_path / "program"
    converted = FORMS[form](Caching().eval(), [x, x])
    with pytest.raises(frametap.ArtifactError, match="call the model once before you save it"):
        frametap.save(converted, path)
    want = converted(x)
    frametap.save(converted, path)
    assert torch.equal(frametap.load(path)(x), want)


class Sharing(nn.Module):
    def __init__(self, log: list[int]) -> None:
        super().__init__()
        self.log = log
        self.layer = nn.Linear(4, 4)

    def __deepcopy__(self, memo: dict[int, Any]) -> Sharing:
        twin = Sharing(self.log)
        twin.load_state_dict(self.state_dict())
        return twin

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(len(x))
        return self.layer(x)


def test_a_list_that_the_copy_shares_keeps_what_calls_appended() -> None:
    log: list[int] = []
    frametap.quantize(Sharing(log).eval(), [torch.randn(2, 4), torch.randn(3, 4)], progress=False)
    assert log == [2, 3]


def test_a_weight_norm_of_the_old_kind_is_copied() -> None:
    with pytest.warns(FutureWarning, match="deprecated"):
        model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(16, 16)), nn.ReLU()).eval()
    data = [torch.randn(8, 16) for _ in range(3)]
    with pytest.raises(RuntimeError, match="graph leaves"):
        copy.deepcopy(model)
    with torch.no_grad():
        want = model(data[0])
    for convert in FORMS.values():
        assert sqnr(want, convert(model, data)(data[0])) > 30
