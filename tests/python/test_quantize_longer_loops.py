"""structure/S3: later rounds of a loop than calibration has met run in int8, with the ranges of the rounds that it has met."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.quantized import sqnr
from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about int8")]

LOOP = "calibration did not meet this computation; the same layers have its ranges elsewhere, as in rounds of a loop"


class Rounds(nn.Module):
    """A recurrence in Python, and a head that each round calls."""

    def __init__(self) -> None:
        super().__init__()
        self.step, self.head = nn.Linear(16 + 8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 16)
        out = []
        for t in range(x.shape[1]):
            h = torch.tanh(self.step(torch.cat([x[:, t], h], 1)))
            out.append(self.head(h))
        return torch.stack(out, 1)


class GatedRounds(Rounds):
    """The gate lets a part of the state pass by the layers, as a running sum does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16 + 8, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 16)
        for part in x.unbind(1):
            both = torch.cat([part, h], 1)
            z = torch.sigmoid(self.gate(both))
            h = z * h + (1 - z) * torch.tanh(self.step(both))
        return self.head(h)


class Cells(Rounds):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(8, 16)
        self.memory = nn.LSTMCell(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[0], 16)
        state = (h, h)
        out = []
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
            state = self.memory(h, state)
            out.append(self.head(state[0]).relu())
        return torch.stack(out, 1)


class Growing(Rounds):
    """Each round adds to the state, whose range grows: the rounds that calibration has met say nothing of later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(16, 16)
        self.take = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.take(x[:, 0])
        for _ in range(x.shape[1]):
            h = h + self.step(h).relu()
        return self.head(h)


def batches(*shape: int, count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).clamp(-2, 2) for _ in range(count)]


def made(kind: type[nn.Module], rounds: int = 6) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = kind().eval()
    return model, frametap.quantize(model, batches(3, rounds, 8), progress=False)


@pytest.mark.parametrize("rounds", [1, 2, 5, 7, 12, 40])
@pytest.mark.parametrize("kind", [Rounds, Cells])
def test_rounds_of_a_loop_are_int8(kind: type[nn.Module], rounds: int) -> None:
    model, quantized = made(kind)
    (x,) = batches(2, rounds, 8, count=1)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", frametap.FrametapWarning)
        first = quantized(x)
        assert sqnr(model(x), first) > 20
        assert torch.equal(quantized(x), first)
    assert quantized.calls == {"int8": 2, "float": 0}
    segment = list(frametap.segments(quantized))[-1]
    rows = quantized.quantized_graph(segment).report
    layers = [
        row for row in rows if row["op"] in ("aten.linear", "aten.gru_cell", "aten.lstm_cell")
    ]
    assert {row["decision"] for row in layers} == {"int8"}
    marked = sum(LOOP in row["reason"] for row in layers)
    assert (marked > 0) == (rounds > 6)
    assert ("with the ranges of the same layers there" in quantized.report_text()) == (rounds > 6)


@pytest.mark.parametrize("kind", [Rounds, Cells])
def test_longer_loops_equal_their_reference_graph(kind: type[nn.Module]) -> None:
    _, quantized = made(kind)
    (x,) = batches(2, 11, 8, count=1)
    got = quantized(x)
    segment = list(frametap.segments(quantized))[-1]
    reference = frametap._C.compile(
        frametap._C.native_backend(), quantized.quantized_graph(segment).reference
    )
    inputs = zip(segment.graph.inputs, segment.graph.weights, strict=True)
    (want,) = reference.run(
        [(x if v.name == "x" else x.shape[0]) if w is None else w for v, w in inputs]
    )
    assert sqnr(want, got) > 40


@pytest.mark.parametrize(("kind", "layer"), [(Growing, "step"), (GatedRounds, "gate")])
def test_a_state_that_passes_by_the_layers_stays_in_float_and_says_so(
    kind: type[nn.Module], layer: str
) -> None:
    model, quantized = made(kind, rounds=3)
    (x,) = batches(2, 6, 8, count=1)
    with pytest.warns(
        frametap.FrametapWarning, match=f"aten.linear in {layer}: calibration did not meet"
    ):
        got = quantized(x)
    with torch.no_grad():
        assert sqnr(model(x), got) > 25
    assert quantized.calls == {"int8": 0, "float": 1}


def test_another_use_of_a_layer_is_not_a_round() -> None:
    """Its input is not made as any input of the layer in calibration."""

    class Twice(Rounds):
        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.step(torch.cat([x[:, 0], x[:, 0], x[:, 0]], 1)))
            if x.shape[1] > 6:
                h = torch.exp(h) * 30
            return self.head(h)

    _, quantized = made(Twice)
    (x,) = batches(2, 8, 8, count=1)
    with pytest.warns(frametap.FrametapWarning, match="aten.linear in head: calibration did not"):
        quantized(x)
