"""``frametap.quantize(model, data, scheme="auto")``. choose/H1 to choose/H3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.instruction_sets import output_of
from fixtures.quantized import sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of another process in the way would make the times mean nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def layers() -> nn.Sequential:
    """A layer that takes several times longer in float than in either int8 form, and a last one of few channels."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 8)).eval()


def auto(model: nn.Module, x: Tensor, **options: Any) -> Any:
    return frametap.quantize(model, [x], scheme="auto", progress=False, **options)


def auto_until_int8(op: str, model: nn.Module, x: Tensor, **options: Any) -> Any:
    """Quantizes until int8 is chosen for such an op, five times at most.

    Other work of the machine may slow a form down in the moment in which it is timed.
    """
    for _ in range(4):
        try:
            quantized = auto(model, x, **options)
        except frametap.QuantizationError as error:
            if "no op is quicker in int8" not in str(error):
                raise
        else:
            if any(row["op"] == op and row["decision"] == "int8" for row in quantized.report):
                return quantized
    return auto(model, x, **options)


def linears(quantized: Any) -> list[tuple[str, str]]:
    rows = [row for row in quantized.report if row["op"] == "aten.linear"]
    return [(row["decision"], row["reason"].partition(" was chosen")[0]) for row in rows]


def ops(quantized: Any) -> list[str]:
    (segment,) = frametap.segments(quantized._frametap)
    return [node.op for node in quantized.quantized_graph(segment).lowered.nodes]


def test_the_quickest_form_is_taken() -> None:
    """H1, H2."""
    model, x = layers(), torch.randn(128, 1024)
    quantized = auto_until_int8("aten.linear", model, x)
    assert linears(quantized)[0][0] == "int8"
    row = next(row for row in quantized.report if row["op"] == "aten.linear")
    for form in ("static int8", "dynamic int8", "float"):
        assert f"{form} " in row["reason"].partition(": ")[2]
    assert row["sqnr"] > 30 and quantized.sqnr > 30


def test_images_in_results_and_between_layers() -> None:
    """Their layout is read from values of the whole graph, and each layer is tried alone."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.Conv2d(64, 32, 3)
    ).eval()
    x = torch.randn(4, 3, 24, 24)
    for one in (x, x.to(memory_format=torch.channels_last)):
        quantized = auto(model, one)
        with torch.no_grad():
            want, got = model(one), quantized(one)
        assert got.stride() == want.stride()
        assert sqnr(want, got) > 25


def outliers() -> Tensor:
    """Rows of very different sizes, for which one scale is coarse."""
    return torch.randn(128, 1024) * torch.logspace(0, -3, 128)[:, None]


def row_sqnr(model: nn.Module, quantized: Any, x: Tensor) -> float:
    with torch.no_grad():
        want, got = model(x), quantized(x)
    return sqnr(want, got)


def test_a_form_with_too_much_noise_is_not_taken(tmp_path: Any) -> None:
    model, x = layers()[:1], torch.randn(128, 1024)
    static, dynamic = (
        frametap.quantize(model, [x], scheme=s, progress=False) for s in ("static", "dynamic")
    )
    least, most = row_sqnr(model, static, x), row_sqnr(model, dynamic, x)
    assert most > least + 1
    # The dynamic scheme has no data to correct biases by.
    quantized = auto_until_int8(
        "aten.linear", model, x, min_sqnr=(least + most) / 2, bias_correction=False
    )
    assert linears(quantized) == [("int8", "dynamic int8")]
    assert "dB is too little" in quantized.report[0]["reason"]
    assert ops(quantized) == ["frametap.dynamic_linear"]
    assert row_sqnr(model, quantized, x) > (least + most) / 2
    with torch.no_grad():
        assert torch.allclose(quantized(x), dynamic(x), atol=1e-6)
        frametap.save(quantized, tmp_path / "model")
        assert frametap.load(tmp_path / "model")(x).equal(quantized(x))
    with pytest.raises(frametap.QuantizationError, match="no op is quicker in int8.*freeze"):
        auto(model, x, min_sqnr=most + 20)


def test_other_sizes_take_the_same_forms() -> None:
    """H3."""
    model, x = layers(), outliers()
    quantized = auto(model, x)
    with torch.no_grad():
        for rows in (128, 1, 7, 256):
            more = torch.randn(rows, 1024)
            assert (quantized(more) - model(more)).abs().max() < 0.1
    assert quantized.calls == {"int8": 4, "float": 0}


def test_layers_that_are_slower_in_int8_stay_in_float() -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Conv1d(1, 1, 1)).eval()
    x = torch.randn(64, 1, 1024)
    quantized = auto_until_int8("aten.linear", model, x)
    decisions = {row["op"]: row["decision"] for row in quantized.report}
    assert decisions["aten.linear"] == "int8"
    reason = next(row["reason"] for row in quantized.report if row["op"] == "aten.conv1d")
    assert "dynamic" not in reason and "float " in reason


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"scheme": "static", "min_sqnr": 30},
            "min_sqnr belongs to scheme='auto', not to 'static'",
        ),
        ({"scheme": "dynamic", "min_sqnr": 30}, "belongs to scheme='auto'"),
        ({"scheme": "auto", "min_sqnr": "30"}, "a number of dB such as 30.0, not '30'"),
        ({"scheme": "auto", "min_sqnr": float("nan")}, "a number of dB"),
        ({"scheme": "auto", "min_sqnr": True}, "a number of dB"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(frametap.QuantizationError, match=text):
        frametap.quantize(nn.Linear(4, 4), [torch.ones(2, 4)], **options)


def test_data_is_needed() -> None:
    with pytest.raises(frametap.QuantizationError, match="the auto scheme needs calibration data"):
        frametap.quantize(nn.Linear(4, 4), scheme="auto")


def test_layers_that_the_user_leaves_in_float_are_not_timed() -> None:
    model, x = layers(), torch.randn(128, 1024)
    quantized = auto(model, x, float_scopes=["0"])
    assert linears(quantized)[0][0] == "float"
    assert "µs" not in quantized.report[0]["reason"]


SATURATES = """
import torch, frametap
torch.set_num_threads(1)
model = torch.nn.Linear(1024, 512).eval()
torch.nn.init.constant_(model.weight, 0.1)
x = torch.linspace(0, 3, 128 * 1024).view(128, 1024)
q = frametap.quantize(model, [x], scheme="auto", min_sqnr=25, progress=False)
with torch.no_grad():
    want, got = model(x), q(x)
print((10 * torch.log10(want.square().mean() / (want - got).square().mean())).item())
"""


@pytest.mark.parametrize("isa", ["AVX2", "DEFAULT"])
def test_no_product_saturates(isa: str) -> None:
    assert float(output_of(SATURATES, ONEDNN_MAX_CPU_ISA=isa)) > 25


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(256, 256), nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


def test_a_recurrence_is_timed_as_well() -> None:
    """H1."""
    torch.manual_seed(0)
    model, x = Recurrent().eval(), torch.randn(64, 1, 256)
    quantized = auto_until_int8("aten.lstm.input", model, x)
    [row] = [row for row in quantized.report if row["op"] == "aten.lstm.input"]
    assert row["decision"] == "int8"
    assert row["reason"].startswith("dynamic int8 was chosen: dynamic int8 ")
    assert "float " in row["reason"]
    assert "static" not in row["reason"]
    assert "frametap.lstm" in ops(quantized)
    assert quantized.sqnr > 30
    least = float(row["reason"].partition("(")[2].partition(" dB")[0])
    assert 30 < least < 80
    quantized = auto(model, x, min_sqnr=least + 1)
    [row] = [row for row in quantized.report if row["op"] == "aten.lstm.input"]
    assert row["decision"] == "float"
    assert row["reason"].startswith("float was chosen: ")
    assert "aten.lstm.input" in ops(quantized)
