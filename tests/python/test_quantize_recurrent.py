"""LSTM, GRU and RNN in int8 and frozen. recurrence/N1 to recurrence/N4."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.instruction_sets import INSTRUCTION_SETS, output_of
from fixtures.quantized import BITS, graphs_of, results_of, sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture

WAYS: dict[str, Callable[[nn.Module, tuple[Any, ...]], Any]] = {
    "static": lambda m, args: frametap.quantize(m, [args], progress=False),
    "dynamic": lambda m, args: frametap.quantize(m, [args], scheme="dynamic", progress=False),
    "float32": lambda m, args: frametap.freeze(m, [args]),
    "bfloat16": lambda m, args: frametap.freeze(m, [args], dtype=torch.bfloat16),
}
LEAST = {"static": 34, "dynamic": 34, "float32": 110, "bfloat16": 40}  # dB

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "lstm": (lambda: nn.LSTM(20, 24), lambda: (torch.randn(7, 3, 20),)),
    "lstm, one row, batch first": (
        lambda: nn.LSTM(64, 64, 2, batch_first=True),
        lambda: (torch.randn(1, 9, 64),),
    ),
    "lstm, both ways, no biases": (
        lambda: nn.LSTM(20, 24, 2, bias=False, bidirectional=True),
        lambda: (torch.randn(7, 3, 20),),
    ),
    "lstm, from states": (
        lambda: nn.LSTM(20, 24, 2, dropout=0.5),
        lambda: (torch.randn(5, 3, 20), (torch.randn(2, 3, 24) * 4, torch.randn(2, 3, 24) * 2)),
    ),
    "lstm, without a batch": (lambda: nn.LSTM(20, 24), lambda: (torch.randn(7, 20),)),
    "gru": (lambda: nn.GRU(20, 24, 2), lambda: (torch.randn(7, 3, 20),)),
    "gru, both ways, batch first": (
        lambda: nn.GRU(20, 24, bidirectional=True, batch_first=True),
        lambda: (torch.randn(3, 7, 20), torch.randn(2, 3, 24)),
    ),
    "gru, no biases": (lambda: nn.GRU(20, 24, bias=False), lambda: (torch.randn(7, 3, 20),)),
    "rnn": (lambda: nn.RNN(20, 17, 2), lambda: (torch.randn(7, 3, 20),)),
    "rnn, relu": (lambda: nn.RNN(20, 24, nonlinearity="relu"), lambda: (torch.randn(7, 3, 20),)),
    "lstm cell": (
        lambda: nn.LSTMCell(20, 24),
        lambda: (torch.randn(3, 20), (torch.randn(3, 24), torch.randn(3, 24))),
    ),
    "gru cell": (lambda: nn.GRUCell(20, 24), lambda: (torch.randn(20),)),
    "rnn cell": (lambda: nn.RNNCell(20, 24, bias=False), lambda: (torch.randn(3, 20),)),
    "relu cell": (
        lambda: nn.RNNCell(20, 24, nonlinearity="relu"),
        lambda: (torch.randn(3, 20), torch.randn(3, 24)),
    ),
}


def leaves(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    else:
        for part in result:
            yield from leaves(part)


def worst(name: str, way: str) -> float:
    """Returns the SQNR of the worst result, on inputs that were not recorded. N3."""
    torch.manual_seed(1)
    build, draw = MODELS[name]
    model = build().eval()
    made = WAYS[way](model, draw())
    found = []
    for _ in range(2):
        args = draw()
        with torch.no_grad():
            for want, got in zip(leaves(model(*args)), leaves(made(*args)), strict=True):
                assert want.shape == got.shape
                assert want.stride() == got.stride()
                found.append(sqnr(want, got))
    return min(found)


@pytest.mark.parametrize("way", ["static", "dynamic"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_first_call_is_int8(kind: type[nn.RNNBase], way: str, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, x = kind(8, 16, 2, batch_first=True).eval(), torch.randn(2, 5, 8)
    quantized = WAYS[way](model, (x,))
    with torch.no_grad():
        first = quantized(x)[0].clone()
        assert (first - model(x)[0]).abs().max() > 0  # it is not float
        assert torch.equal(quantized(x)[0], first)
        if way == "static":
            frametap.save(quantized, tmp_path / "program")
            assert torch.equal(frametap.load(tmp_path / "program")(x)[0], first)
    assert frametap.explain(quantized).breaks == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_results_are_near_torch(name: str, way: str) -> None:
    assert worst(name, way) > LEAST[way]


@pytest.mark.parametrize("name", MODELS)
def test_the_report_says_int8(name: str) -> None:
    build, draw = MODELS[name]
    for way in ("static", "dynamic"):
        made = WAYS[way](build().eval(), draw())
        (row,) = [r for r in made.report if r["decision"] == "int8"]
        assert row["op"].startswith(("aten.lstm", "aten.gru", "aten.rnn"))
        assert way == "dynamic" or row["sqnr"] > 34


PROGRAM = """
import sys
sys.path[:0] = ["tests", "tests/python"]
import test_quantize_recurrent as t
print(min(t.worst(name, way) for name in t.MODELS for way in ("static", "dynamic")))
"""


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "AVX512_CORE_VNNI"])
def test_instruction_sets(isa: str) -> None:
    assert float(output_of(PROGRAM, ONEDNN_MAX_CPU_ISA=isa)) > 28  # 7 bits without VNNI


class Cells(nn.Module):
    """A loop of one's own, which has no breaks."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(12, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])


class Direct(nn.Module):
    """torch's operator for a whole sequence, without the module's Python around it."""

    def __init__(self, f: Callable[..., Any], module: nn.RNNBase) -> None:
        super().__init__()
        self.f, self.module = f, module

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> Tensor:
        m = self.module
        form = (m.bias, m.num_layers, 0.0, False, m.bidirectional, m.batch_first)
        return self.f(x, (h, c) if m.mode == "LSTM" else h, m._flat_weights, *form)[0]


def largest_difference() -> float:
    """Returns how far kernels are from the reference graph, in parts of the largest result."""
    torch.manual_seed(5)
    models = [
        Direct(torch.lstm, nn.LSTM(20, 24, 2, bidirectional=True)),
        Direct(torch.gru, nn.GRU(20, 24, 2, bidirectional=True, bias=False)),
        Direct(torch.rnn_tanh, nn.RNN(20, 24, 4)),
        Direct(torch.rnn_relu, nn.RNN(20, 24, 4)),
    ]
    found = []
    for model in models:
        args = {
            "x": torch.randn(7, 3, 20),
            "h": torch.randn(4, 3, 24),
            "c": torch.randn(4, 3, 24) * 3,
        }
        quantized = frametap.quantize(model.eval(), [tuple(args.values())], progress=False)
        want, got = results_of(graphs_of(quantized), args)
        assert torch.equal(got, quantized(*args.values()))
        found.append(float((want - got).abs().max() / want.abs().max()))
    return max(found)


DIFFERENCE = """
import sys
sys.path[:0] = ["tests", "tests/python"]
import test_quantize_recurrent as t
print(t.largest_difference())
"""


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_n4_kernels_equal_the_reference(isa: str) -> None:
    # A byte of a state may round to its neighbour, which later steps see.
    assert float(output_of(DIFFERENCE, ONEDNN_MAX_CPU_ISA=isa)) < 0.01


def test_a_program_of_cells_is_saved(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model, x = Cells().eval(), torch.randn(3, 5, 12)
    quantized = WAYS["static"](model, (x,))
    int8 = [row["op"] for row in quantized.report if row["decision"] == "int8"]
    assert int8.count("aten.lstm_cell") == 5
    got = quantized(x)
    with torch.no_grad():
        assert sqnr(model(x), got) > 34
    frametap.save(quantized, tmp_path / "cells")
    assert torch.equal(frametap.load(tmp_path / "cells")(x), got)


SAVES = """
import sys
sys.path[:0] = ["tests", "tests/python"]
import torch, frametap, test_quantize_recurrent as t
torch.manual_seed(2)
cell = torch.nn.GRUCell(6, 6).eval()
q = frametap.quantize(cell, [torch.randn(3, 6)], progress=False, activation_bits=int(sys.argv[2]))
frametap.save(q, sys.argv[1])
"""
LOADS = """
import sys, torch, frametap
try:
    frametap.load(sys.argv[1])(torch.randn(3, 6))
except frametap.ArtifactError as error:
    print(error)
"""


@pytest.mark.parametrize("bits", BITS)
def test_a_saved_cell_is_refused_where_its_products_saturate(bits: int, tmp_path: Path) -> None:
    path = str(tmp_path / "cell")
    output_of(SAVES, path, str(bits))
    said = output_of(LOADS, path, ONEDNN_MAX_CPU_ISA="AVX2")
    assert ("activations have 8 bits" in said) == (bits == 8)


def test_other_sizes_and_threads() -> None:
    torch.manual_seed(3)
    model = nn.LSTM(20, 24, 2, bidirectional=True).eval()
    for way, make in WAYS.items():
        made = make(model, (torch.randn(7, 3, 20),))
        for sizes in [(1, 1, 20), (9, 3, 20), (7, 5, 20)]:
            x = torch.randn(sizes)
            with torch.no_grad():
                assert sqnr(model(x)[0], made(x)[0]) > LEAST[way]
        inputs = [torch.randn(7, 3, 20) for _ in range(12)]
        wanted = [made(x)[0] for x in inputs]
        with ThreadPoolExecutor(3) as pool:
            for want, got in zip(wanted, pool.map(made, inputs), strict=True):
                assert torch.equal(want, got[0])


def test_the_states_of_the_caller_stay_as_they_are() -> None:
    model = nn.LSTM(20, 24).eval()
    x, state = torch.randn(7, 3, 20), (torch.randn(1, 3, 24), torch.randn(1, 3, 24))
    copies = [s.clone() for s in state]
    for make in WAYS.values():
        _, after = make(model, (x, state))(x, state)
        assert all(torch.equal(s, c) for s, c in zip(state, copies, strict=True))
        assert all(a.data_ptr() != s.data_ptr() for a, s in zip(after, state, strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_values_that_are_not_finite_stay_in_their_rows(way: str) -> None:
    torch.manual_seed(4)
    model = nn.GRU(20, 24).eval()
    made, x = WAYS[way](model, (torch.randn(7, 3, 20),)), torch.randn(7, 3, 20)
    want = made(x)[0].clone()
    x[2, 1, 0] = torch.nan
    got = made(x)[0]
    assert got[2:, 1].isnan().all()
    assert torch.equal(got[:, [0, 2]], want[:, [0, 2]])
    assert torch.equal(got[:2], want[:2])


def test_forms_without_a_kernel_say_why() -> None:
    projected = nn.LSTM(20, 24, proj_size=8).eval()
    x = torch.randn(7, 3, 20)
    with torch.no_grad():
        projected(x)  # torch warns once, which ends a graph
    with pytest.raises(frametap.QuantizationError, match="its states are projected"):
        frametap.quantize(projected, [x], progress=False)


def test_float_by_request() -> None:
    model, x = nn.GRU(20, 24).eval(), torch.randn(7, 3, 20)
    dynamic = frametap.quantize(model, [x], scheme="dynamic", float_ops=["aten.gru"])
    rows = [r for r in dynamic.report if r["op"] == "aten.gru.input"]
    assert {r["decision"] for r in rows} == {"float"}
    assert all("float_ops" in r["reason"] for r in rows)
    with torch.no_grad():
        assert sqnr(model(x)[0], dynamic(x)[0]) > 110
