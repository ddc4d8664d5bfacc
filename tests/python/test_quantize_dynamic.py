"""``frametap.quantize(model, scheme="dynamic")``: no data, linear layers in int8. dynamic_linear/D1 and dynamic_linear/D2."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frametap
from fixtures.instruction_sets import INSTRUCTION_SETS, output_of
from fixtures.quantized import BITS, sqnr
from fixtures.subject import needs_capture
from frametap import _C

pytestmark = needs_capture


def _decibels(want: Tensor, got: Tensor) -> float:
    assert got.dtype == torch.float32
    return sqnr(want, got)


def _check(model: nn.Module, *args: Any, least: float = 35) -> frametap.FrozenModel:
    quantized = frametap.quantize(model.eval(), scheme="dynamic")
    for _ in range(2):
        with torch.no_grad():
            assert _decibels(model(*args), quantized(*args)) > least
    return quantized


def _int8(quantized: Any) -> list[str]:
    return [row["op"] for row in quantized.report if row["decision"] == "int8"]


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, most: int) -> Tensor:
    """In float64: rows as D1 says, products exact."""
    lo, hi = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((hi - lo) / most).double()
    scale = torch.where(scale == 0, 1.0, scale)
    zero = (-lo / scale).round()
    rows = ((x / scale).round() + zero).clamp(0, most) - zero
    scales = weight.abs().amax(1, keepdim=True).double() / 127
    return F.linear(rows * scale, (weight / scales).round() * scales, bias and bias.double())


def worst_difference() -> float:
    """Returns the difference of kernel and reference, in parts of the largest result."""
    torch.manual_seed(1)
    worst = 0.0
    most = 255 if _C.quant_full_range() else 127
    for inputs, outputs in [(1, 1), (3, 5), (16, 16), (17, 33), (64, 250), (768, 40), (5000, 9)]:
        for rows in [(inputs,), (1, inputs), (7, inputs), (2, 3, inputs)]:
            for change in (lambda x: x, torch.abs, lambda x: x * 1e-3 - 5, torch.zeros_like):
                layer = nn.Linear(inputs, outputs, bias=False).eval()
                x = change(torch.randn(rows))
                got = frametap.quantize(layer, [x], scheme="dynamic", progress=False)(x)
                want = reference(x, layer.weight.detach(), None, most)
                size = max(float(want.abs().max()), 1e-9)
                # A byte may differ where the reference is halfway between two.
                worst = max(worst, float((got - want).abs().mean()) / size)
    return worst


PROGRAM = """
import sys
sys.path[:0] = ["tests", "tests/python"]
import test_quantize_dynamic as t
print(t.worst_difference())
"""


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_d1_kernels_are_near_the_reference(isa: str) -> None:
    assert float(output_of(PROGRAM, ONEDNN_MAX_CPU_ISA=isa)) < 1e-3


@pytest.mark.parametrize("bits", [*BITS, None])
def test_layers_of_a_transformer(bits: int | None) -> None:
    torch.manual_seed(2)
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu")
    model = nn.TransformerEncoder(layer, 2).eval()
    quantized = frametap.quantize(model, scheme="dynamic", activation_bits=bits)
    with torch.no_grad():
        for sizes in [(2, 5, 32), (1, 9, 32), (2, 5, 32)]:
            x = torch.randn(sizes)
            assert _decibels(model(x), quantized(x)) > (33 if bits == 7 else 38)
    assert _int8(quantized)[:4] == ["aten.linear"] * 4
    assert "int8, dynamic" in quantized.report_text()


SPELLINGS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "linear": lambda m, x: m.layer(x),
    "matmul": lambda m, x: x @ m.layer.weight.t() + m.layer.bias,
    "addmm": lambda m, x: torch.addmm(m.layer.bias, x[0], m.layer.weight.t()),
    "einsum": lambda m, x: torch.einsum("bsi,oi->bso", x, m.layer.weight),
    "twice": lambda m, x: m.layer(m.layer(x).relu()),
    "residual": lambda m, x: F.gelu(m.layer(x) + x) * 2,
    "with an effect": lambda m, x: [y := m.layer(x), y.mul_(2), m.layer(y)][2],
    "a slice": lambda m, x: m.layer(x[:, ::2]),
}


class Spelt(nn.Module):
    def __init__(self, f: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.f, self.layer = f, nn.Linear(24, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self, x)


@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_is_int8(name: str) -> None:
    torch.manual_seed(3)
    quantized = _check(Spelt(SPELLINGS[name]), torch.randn(2, 6, 24))
    assert len(_int8(quantized)) == (2 if name in ("twice", "with an effect") else 1)


def test_convolutions_are_packed_in_float_and_say_so() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4))
    quantized = _check(model, torch.randn(2, 3, 8, 8))
    rows = {row["op"]: row for row in quantized.report}
    assert rows["aten.conv2d"]["decision"] == "float"
    assert "no dynamic int8 kernel" in rows["aten.conv2d"]["reason"]
    assert rows["aten.relu"]["reason"].startswith("by the kernel of aten.conv2d")
    assert rows["aten.linear"]["decision"] == "int8"


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 8, 8)),
        (nn.Linear(8, 4).double(), torch.randn(2, 8).double()),
    ],
)
def test_a_model_without_an_int8_op_is_named(model: nn.Module, x: Tensor) -> None:
    words = "no op of the given batches runs in int8"
    with pytest.warns(frametap.FrametapWarning, match=words) as warned:
        quantized = frametap.quantize(model, [x], scheme="dynamic", progress=False)
    assert warned[0].filename == __file__
    assert _int8(quantized) == []
    with pytest.raises(frametap.QuantizationError, match=rf"(?s){words}:.*float"):
        frametap.quantize(model, [x], scheme="dynamic", progress=False, strict=True)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.randn(2, 3, 8, 8)),
        (nn.Linear(8, 4).double(), torch.randn(2, 8).double()),
    ],
)
def test_without_data_the_first_call_tells_that_no_op_is_int8(model: nn.Module, x: Tensor) -> None:
    words = "quantize: no op of the first call runs in int8"
    quantized = frametap.quantize(model, scheme="dynamic")
    with pytest.warns(frametap.FrametapWarning, match=words) as warned:
        got = quantized(x)
    assert warned[0].filename == __file__
    assert torch.allclose(got, model(x), atol=1e-5)
    with warnings.catch_warnings():
        warnings.simplefilter("error", frametap.FrametapWarning)
        quantized(x)  # once
        quantized(x.repeat(2, *[1] * (x.dim() - 1)))
        frametap.quantize(nn.Linear(8, 4), scheme="dynamic")(torch.randn(2, 8))
    strict = frametap.quantize(model, scheme="dynamic", strict=True)
    with pytest.raises(frametap.QuantizationError, match=rf"(?s){words}:.*float"):
        strict(x)


def test_float_ops_and_scopes_stay_in_float() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).eval(), torch.randn(3, 8)
    quantized = frametap.quantize(model, [x], scheme="dynamic", float_scopes=["1"], progress=False)
    assert [row["decision"] for row in quantized.report] == ["int8", "float"]
    assert quantized.report[1]["reason"] == "left in float by request (float_scopes: 1)"
    with pytest.warns(frametap.FrametapWarning, match="no op of the given batches runs in int8"):
        quantized = frametap.quantize(model, [x], scheme="dynamic", float_ops=["aten.linear"])
    assert _int8(quantized) == []
    assert torch.allclose(quantized(x), model(x), atol=1e-6)


def test_d2_rows_that_are_not_finite_give_nan_and_others_their_values() -> None:
    model, x = nn.Linear(40, 3).eval(), torch.randn(5, 40)
    quantized = frametap.quantize(model, scheme="dynamic")
    want = quantized(x).clone()
    x[1, 3], x[2, 39], x[4, 0] = torch.nan, torch.inf, -torch.inf
    got = quantized(x)
    assert got[[1, 2, 4]].isnan().all()
    assert torch.equal(got[[0, 3]], want[[0, 3]])
    largest = torch.full((1, 40), 3e38)
    largest[0, 0] = -3e38
    assert quantized(largest).isnan().sum() == 0 or not model(largest).isfinite().all()


def test_odd_sizes_and_threads() -> None:
    model = nn.Linear(30, 7).eval()
    quantized = frametap.quantize(model, scheme="dynamic")
    for sizes in [(0, 30), (2, 0, 30), (30,), (1, 1, 1, 30), (100, 30)]:
        assert quantized(torch.randn(sizes)).shape == model(torch.randn(sizes)).shape
    assert torch.allclose(quantized(torch.zeros(2, 30)), model(torch.zeros(2, 30)))
    assert _decibels(model(x := torch.randn(30, 9).t()), quantized(x)) > 35
    inputs = [torch.randn(4, 30) for _ in range(24)]
    wanted = [quantized(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for want, got in zip(wanted, pool.map(quantized, inputs), strict=True):
            assert torch.equal(want, got)


def test_the_model_stays_as_it_is_and_later_changes_do_not_show() -> None:
    model, x = nn.Linear(8, 8).train(), torch.randn(3, 8)
    quantized = frametap.quantize(model, scheme="dynamic")
    before = quantized(x)
    assert model.training
    with torch.no_grad():
        model.weight.zero_()
    assert torch.equal(quantized(x), before)
    assert not quantized(x.requires_grad_()).requires_grad


class UnderVmap(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.vmap(self.layer)(x)


def test_a_layer_in_plain_python_is_named_and_an_error_under_strict() -> None:
    x = torch.ones(2, 4)
    quantized = frametap.quantize(UnderVmap().eval(), [x], scheme="dynamic", progress=False)
    with pytest.warns(
        frametap.FrametapWarning, match=r"part of a quantized model runs in float.*aten\.linear"
    ):
        quantized(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quantized(x)
    strict = frametap.quantize(UnderVmap().eval(), [x], scheme="dynamic", strict=True)
    with pytest.raises(frametap.QuantizationError, match=r"runs in float.*aten\.linear"):
        strict(x)


def test_modes_around_a_call_are_named() -> None:
    quantized = frametap.quantize(Spelt(lambda m, x: F.relu(m.layer(x))).eval(), scheme="dynamic")
    with (
        torch.device("cpu"),
        pytest.warns(frametap.FrametapWarning, match="a default device"),
    ):
        quantized(torch.ones(2, 24))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda m, q: q(m, scheme="dynamik"),
            r"'static' or 'dynamic' or 'auto', not 'dynamik' \(did you",
        ),
        (lambda m, q: q(m, scheme=8), "scheme must be 'static' or 'dynamic' or 'auto', not 8"),
        (lambda m, q: q(m, scheme=None), "scheme must be"),
        (lambda m, q: q(m), "scheme='dynamic' needs none"),
        (lambda m, q: q(m, scheme="dynamic", observer="minmax"), "belongs to the static scheme"),
        (lambda m, q: q(m, scheme="dynamic", activation_bits=4), "activation_bits must be 7, 8"),
        (lambda m, q: q(m, scheme="dynamic", float_ops=["aten.liner"]), "torch has no such op"),
        (lambda m, q: q(m, scheme="dynamic", float_scopes=["x"]), "no module of that path"),
        (lambda m, q: q(lambda x: x, scheme="dynamic"), "the function reaches none"),
        (lambda m, q: q(m, [3], scheme="dynamic"), "batch 0 is int 3"),
        (lambda m, q: q(m, scheme="dynamic").train(), "train the float model, then quantize again"),
        (lambda m, q: q(m, scheme="dynamic").state_dict(), "take the state dict of the float"),
        (
            lambda m, q: q(q(m, scheme="dynamic"), scheme="dynamic"),
            "the model is quantized already",
        ),
    ],
)
def test_bad_input_is_refused_in_words(call: Callable[[nn.Module, Any], Any], text: str) -> None:
    with pytest.raises(frametap.QuantizationError, match=text):
        call(nn.Linear(6, 6), frametap.quantize)


def test_functions_and_methods() -> None:
    layer, x = nn.Linear(32, 16), torch.randn(3, 32)

    def function(x: Tensor) -> dict[str, Tensor]:
        return {"y": layer(x).relu()}

    for model in (function, layer.forward):
        quantized = frametap.quantize(model, [x], scheme="dynamic", progress=False)
        got, want = quantized(x), layer(x)
        got, want = (got["y"], want.relu()) if model is function else (got, want)
        assert (got - want).abs().max() < 0.05
        assert [row["decision"] for row in quantized.report if row["op"] == "aten.linear"] == [
            "int8"
        ]


def test_it_is_saved(tmp_path: Any) -> None:
    model, x = (
        nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)).eval(),
        torch.randn(3, 32),
    )
    quantized = frametap.quantize(model, [x], scheme="dynamic", activation_bits=7, progress=False)
    frametap.save(quantized, tmp_path / "model")
    program = frametap.load(tmp_path / "model")
    assert program(x).equal(quantized(x))
    (graph,) = program.frozen_graphs().values()
    assert [node.op for node in graph.nodes].count("frametap.dynamic_linear") == 2


def test_layers_left_in_float_are_not_saved(tmp_path: Any) -> None:
    model, x = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 4)).eval(), torch.randn(3, 32)
    quantized = frametap.quantize(model, [x], scheme="dynamic", float_scopes=["1"], progress=False)
    with pytest.raises(frametap.ArtifactError, match="float_scopes of the dynamic scheme"):
        frametap.save(quantized, tmp_path / "model")


class FewRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@pytest.mark.parametrize("bits", BITS)
def test_d4_few_rows_of_large_layers_have_two_bytes(bits: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = FewRows().eval()
    data = [torch.randn(1, 1024) for _ in range(4)]
    quantized = frametap.quantize(model, data, activation_bits=bits, progress=False)
    rows = [row for row in quantized.report if row["op"] == "aten.linear"]
    assert [("two bytes" in row["reason"], row["decision"]) for row in rows] == [
        (True, "int8"),
        (True, "int8"),
        (False, "int8"),
    ]
    # Only the weights are rounded: the elements have 16 bits.
    assert rows[0]["sqnr"] > 46
    path = tmp_path / "q.frametap"
    frametap.save(quantized, path)
    loaded = frametap.load(path)
    with torch.no_grad():
        for x in (*data, torch.randn(2, 1024), torch.randn(7, 1024), torch.zeros(1, 1024)):
            want, got = model(x), quantized(x)
            assert torch.equal(loaded(x), got)
            assert (want - got).abs().max() < 0.02
        assert quantized(data[0][:0]).shape == (0, 8)


def test_d2_an_infinite_row_of_two_gives_nan() -> None:
    x = torch.randn(2, 1024)
    quantized = frametap.quantize(nn.Linear(1024, 1024).eval(), [x], progress=False)
    x[0, 3] = torch.inf
    got = quantized(x)
    assert got[0].isnan().all()
    assert got[1].isfinite().all()


def test_d4_is_near_float64() -> None:
    torch.manual_seed(3)
    for bits, decibels in ((16, 90), (14, 78)):
        for x in (torch.randn(4, 300), torch.randn(4, 300) * 1e-3 + 2, torch.zeros(2, 5)):
            got = torch.ops.frametap.round_rows(x, bits)
            noise = (x - got).double().square().mean()
            assert noise == 0 or 10 * torch.log10(x.double().square().mean() / noise) > decibels
