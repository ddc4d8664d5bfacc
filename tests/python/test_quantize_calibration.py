"""Calibration: the program runs once a batch, on copies, unedited; each output has its own signal to noise."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.quantized import least, sqnr
from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about int8")]


class Counting(nn.Module):
    """Appends to a list at each call, and breaks its graph in the middle if asked to."""

    def __init__(self, log: list[str], breaks: bool) -> None:
        super().__init__()
        self.log, self.breaks = log, breaks
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def __deepcopy__(self, memo: dict[int, Any]) -> Counting:
        copy = Counting(self.log, self.breaks)
        copy.load_state_dict(self.state_dict())
        return copy.eval()

    def forward(self, x: Tensor) -> Tensor:
        self.log.append("called")
        h = self.first(x).relu()
        if self.breaks and h.sum() < 0:
            h = h * 2
        return self.second(h)


@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("batches", [1, 3, 8])
def test_side_effects_happen_once_for_each_batch(breaks: bool, batches: int) -> None:
    log: list[str] = []
    model = Counting(log, breaks).eval()
    quantized = frametap.quantize(
        model, [torch.randn(4, 8) for _ in range(batches)], progress=False
    )
    assert log == ["called"] * batches
    quantized(torch.randn(4, 8))
    assert log == ["called"] * (batches + 1)
    assert {row["decision"] for row in quantized.report if "linear" in row["op"]} == {"int8"}


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x.sub_(0.5).div_(0.25)).relu())


@pytest.mark.parametrize("batches", [1, 5])
def test_a_model_that_writes_to_its_input_is_calibrated_on_the_data_as_it_is(batches: int) -> None:
    torch.manual_seed(0)
    model = InPlace().eval()
    data = [torch.rand(4, 3, 12, 12) for _ in range(batches)]
    before = [x.clone() for x in data]
    quantized = frametap.quantize(model, data, progress=False)
    for x, y in zip(data, before, strict=True):
        assert torch.equal(x, y)
    x = torch.rand(4, 3, 12, 12)
    with torch.no_grad():
        measured = sqnr(model(x.clone()), quantized(x.clone()))
    assert measured > 35
    assert abs(quantized.sqnr - measured) < 3


def test_a_tensor_that_occurs_twice_in_a_batch_is_one_tensor_for_the_program() -> None:
    seen: list[bool] = []

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(4, 4)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            seen.append(a is b)
            return self.l(a) + self.l(b)

    x = torch.randn(2, 4)
    frametap.quantize(Same().eval(), [(x, x)], progress=False)
    assert seen == [True]


class Attention(nn.MultiheadAttention):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, _ = super().forward(q, k, v, need_weights=False)
        return out * 100 if self.training else out


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.l = Attention(16, 2, batch_first=True), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(self.a(x, x, x))


def test_attention_is_taken_apart_without_editing_the_model() -> None:
    torch.manual_seed(0)
    model = Attending().eval()
    data = [torch.randn(4, 5, 16) for _ in range(4)]
    quantized = frametap.quantize(model, data, progress=False)
    with torch.no_grad():
        assert sqnr(model(data[0]), quantized(data[0])) > 25
    assert quantized.sqnr > 25
    assert [r["decision"] for r in quantized.report if r["op"] == "aten.linear"].count("int8") >= 2
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_encoder_with_a_padding_mask() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 8)
    pad = torch.zeros(2, 5, dtype=torch.bool)
    pad[:, 3:] = True
    for nested in (False, True):
        model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested).eval()
        quantized = frametap.quantize(
            model, [{"src": x, "src_key_padding_mask": pad}], progress=False
        )
        with torch.no_grad():
            want = model(x, src_key_padding_mask=pad)
            got = quantized(src=x, src_key_padding_mask=pad)
        assert sqnr(want[:, :3], got[:, :3]) > 25
        assert "aten.linear" in {r["op"] for r in quantized.report if r["decision"] == "int8"}
    assert torch.backends.mha.get_fastpath_enabled()


class TwoHeads(nn.Module):
    """The second output is the small difference of two large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes, self.scores = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            "boxes": self.boxes(x) * 1000,
            "scores": [
                (self.scores(x) - self.scores(x + 0.01)),
            ],
        }


def test_the_worst_output_comes_first() -> None:
    torch.manual_seed(0)
    quantized = frametap.quantize(TwoHeads().eval(), [torch.randn(16, 8)], progress=False)
    names = list(quantized.output_sqnr)
    assert names == ["['scores'][0]", "['boxes']"]
    assert quantized.sqnr == quantized.output_sqnr["['scores'][0]"]
    assert quantized.sqnr < quantized.output_sqnr["['boxes']"] - 10
    assert "['scores'][0]" in quantized.report_text()


def test_outputs_behind_a_break_are_measured_when_somebody_asks() -> None:
    log: list[str] = []
    quantized = frametap.quantize(Counting(log, True).eval(), [torch.randn(4, 8)], progress=False)
    assert len(log) == 1
    assert 15 < quantized.sqnr < 80
    assert len(log) == 2
    assert quantized.sqnr == quantized.output_sqnr[""]
    assert len(log) == 2


def test_an_encoder_with_an_additive_mask() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    assert bool(mask.isinf().any())
    quantized = frametap.quantize(model, [(x, mask)], progress=False)
    with torch.no_grad():
        assert sqnr(model(x, mask), quantized(x, mask)) > 25
    with pytest.raises(frametap.QuantizationError, match="NaN or infinity in"):
        frametap.quantize(nn.Linear(5, 5), [mask], progress=False)


PARTS: dict[str, Callable[[Tensor], Tensor]] = {
    "chunk": lambda x: x.chunk(2)[0],
    "unbind": lambda x: x.unbind()[0],
    "split": lambda x: x.split(1)[1],
    "tensor_split": lambda x: x.tensor_split(2)[0],
    "einsum": lambda x: torch.einsum("bi->ib", x),
}


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("inside", [False, True])
def test_a_write_to_a_part_reaches_the_whole(name: str, inside: bool) -> None:
    """Ops that give views in a list, or whose schema does not show that they give a view."""

    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.last = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            whole = self.first(x) if inside else x
            PARTS[name](whole).mul_(-3)
            return whole, self.last(whole)

    torch.manual_seed(0)
    model, x = Writes().eval(), torch.randn(2, 8)
    quantized = frametap.quantize(model, [x], progress=False)
    mine, theirs = x.clone(), x.clone()
    with torch.no_grad():
        for want, got in zip(model(mine), quantized(theirs), strict=True):
            assert sqnr(want, got) > 25
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("scale", [1e-45, 1e-38, 3e-36, 1e-30, 1e15])
@pytest.mark.parametrize("observer", ["histogram", "minmax"])
def test_tiny_and_huge_activations(scale: float, observer: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    data = [torch.randn(4, 8) * scale for _ in range(2)]
    quantized = frametap.quantize(model, data, observer=observer, progress=False)
    with torch.no_grad():
        want, got = model(data[0]), quantized(data[0])
    assert bool(got.isfinite().all())
    assert not math.isnan(quantized.sqnr)
    if 1e-30 <= scale:
        assert sqnr(want, got) > 15


def test_activations_that_overflow_are_an_error_or_finite() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)).eval()
    with torch.no_grad():
        model[0].weight.fill_(10)
        model[1].weight.fill_(10)
    with pytest.raises(frametap.QuantizationError, match="NaN or infinity"):
        frametap.quantize(model, [torch.full((2, 8), 1e37)], progress=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"float_ops": ["aten.linaer"]}, r"float_ops has 'aten.linaer'.*did you mean 'aten.linear"),
        ({"float_ops": ["linear"]}, "float_ops has 'linear'"),
        ({"float_scopes": ["frist"]}, r"float_scopes has 'frist'.*did you mean 'first'"),
        ({"float_scopes": ["first", "nowhere"]}, "float_scopes has 'nowhere'"),
    ],
)
def test_misspelt_names_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(frametap.QuantizationError, match=words):
        frametap.quantize(
            Counting([], False).eval(), [torch.randn(2, 8)], progress=False, **options
        )


def test_an_op_is_named_with_or_without_its_overload() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.a(x) + self.b(x))

    for name in ("aten.add", "aten.add.Tensor"):
        quantized = frametap.quantize(
            Sum().eval(), [torch.randn(4, 8)], float_ops=[name], progress=False
        )
        assert [r["decision"] for r in quantized.report if r["op"] == "aten.add.Tensor"] == [
            "float"
        ]


class Products(nn.Module):
    """Products with a weight in all their spellings."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(8, 6)), nn.Parameter(torch.randn(6))
        self.end = nn.Linear(6, 4)
        self.spelling = spelling

    def forward(self, x: Tensor) -> Tensor:
        if self.spelling == "@":
            h = x @ self.w
        elif self.spelling == "mm":
            h = x.mm(self.w)
        elif self.spelling == "addmm":
            h = torch.addmm(self.b, x, self.w)
        elif self.spelling == "t":
            h = x @ self.w.t().contiguous().t()
        elif self.spelling == "T":
            h = torch.nn.functional.linear(x, self.w.T, self.b)
        elif self.spelling == "transpose":
            h = torch.nn.functional.linear(x, self.w.transpose(0, 1))
        else:
            h = torch.nn.functional.linear(x, self.w.permute(1, 0))
        return self.end(h.relu())


@pytest.mark.parametrize("spelling", ["@", "mm", "addmm", "T", "transpose", "permute"])
def test_a_product_with_a_weight_is_int8_in_each_spelling(spelling: str) -> None:
    torch.manual_seed(0)
    model = Products(spelling).eval()
    data = [torch.randn(16, 8) for _ in range(2)]
    quantized = frametap.quantize(model, data, progress=False)
    products = [
        r for r in quantized.report if r["op"].split(".")[1] in ("matmul", "mm", "addmm", "linear")
    ]
    assert [r["decision"] for r in products] == ["int8", "int8"], quantized.report_text()
    with torch.no_grad():
        assert sqnr(model(data[0]), quantized(data[0])) > 25


def test_conv1d_of_a_transformer_is_int8() -> None:
    from transformers.pytorch_utils import Conv1D

    model = nn.Sequential(Conv1D(16, 8), nn.ReLU(), Conv1D(4, 16)).eval()
    quantized = frametap.quantize(model, [torch.randn(3, 5, 8)], progress=False)
    assert [r["decision"] for r in quantized.report if r["op"] == "aten.addmm"] == ["int8", "int8"]


@pytest.mark.parametrize("name", ["flip", "upsample", "roll", "pad", "mul"])
def test_an_in_place_addition_to_a_new_tensor_is_no_write_to_an_input(name: str) -> None:
    makers: dict[str, Any] = {
        "flip": lambda x: x.flip(2),
        "upsample": lambda x: nn.functional.interpolate(x, scale_factor=2.0),
        "roll": lambda x: x.roll(1, 2),
        "pad": lambda x: nn.functional.pad(x, (1, 1)),
        "mul": lambda x: x * 2,
    }

    class Adding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Conv2d(3, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            y = makers[name](x)
            y += 1
            return self.c(y)

    quantized = frametap.quantize(Adding().eval(), [torch.randn(2, 3, 8, 8)], progress=False)
    assert [r["decision"] for r in quantized.report if r["op"] == "aten.conv2d"] == ["int8"]
    for row in quantized.report:
        assert "existed before" not in row["reason"], row


class Photos(nn.Module):
    """Takes bytes, as a decoder of images gives them, and drops in place."""

    def __init__(self, drop: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.head, self.drop = nn.Conv2d(3, 8, 3), nn.Linear(8, 4), drop

    def forward(self, photos: Tensor) -> Tensor:
        x = photos.float().div_(255).sub_(0.5).div_(0.25)
        x = torch.relu(self.conv(x)).mean((2, 3))
        return self.head(self.drop(x))


@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.5, inplace=True),
        nn.AlphaDropout(0.5),
        nn.AlphaDropout(0.5, inplace=True),
        nn.FeatureAlphaDropout(0.5),
        lambda x: torch.nn.functional.dropout(x, 0.5, False, True),
        lambda x: torch.feature_dropout_(x, 0.5, False),
    ],
)
def test_writes_to_new_memory_and_dropout_in_place_leave_layers_int8(drop: Any) -> None:
    torch.manual_seed(0)
    model = Photos(drop).eval()
    data = [torch.randint(0, 256, (2, 3, 9, 9), dtype=torch.uint8) for _ in range(3)]
    quantized = frametap.quantize(model, data, progress=False)
    rows = {row["op"]: row for row in quantized.report}
    assert rows["aten.conv2d"]["decision"] == rows["aten.linear"]["decision"] == "int8"
    assert [row["decision"] for row in quantized.report if "dropout" in row["op"]] == ["folded"]
    with torch.no_grad():
        want = model(data[0])
        assert sqnr(want, quantized(data[0])) > 30
        assert sqnr(want, frametap.freeze(model)(data[0])) > 90


def test_a_conversion_to_the_same_type_is_not_new_memory() -> None:
    class Centred(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            h.float().sub_(1)
            x.to(torch.float32).sub_(1)
            return self.second(h - x)

    torch.manual_seed(0)
    model, x = Centred().eval(), torch.randn(3, 8)
    for converted in (frametap.quantize(model, [x], progress=False), frametap.freeze(model, [x])):
        want, got = x.clone(), x.clone()
        with torch.no_grad():
            assert sqnr(model(want), converted(got)) > 30
        assert torch.equal(want, got)


def test_a_weight_that_is_computed_and_handed_out_is_int8() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.v, self.g = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(4, 1))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            weight = torch._weight_norm(self.v, self.g)
            return torch.nn.functional.linear(x, weight), weight

    torch.manual_seed(0)
    model, x = Scaled().eval(), torch.randn(3, 8)
    quantized = frametap.quantize(model, [x], progress=False)
    for converted in (quantized, frametap.freeze(model)):
        with torch.no_grad():
            first, want = converted(x), model(x)
            assert sqnr(want[0], first[0]) > least(30)
            assert torch.equal(want[1], first[1])
            first[1].zero_()  # is the caller's
            assert torch.equal(converted(x)[1], want[1])
            assert sqnr(want[0], converted(x)[0]) > least(30)
    assert [r["decision"] for r in quantized.report if r["op"] == "aten.linear"] == ["int8"]


def test_a_function_after_a_linear_layer_is_in_its_kernel() -> None:
    class After(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.l = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.silu(self.l(x))

    quantized = frametap.quantize(After().eval(), [torch.randn(2, 8)], progress=False)
    (row,) = [r for r in quantized.report if r["op"] == "aten.silu"]
    assert row["decision"] == "int8"
    assert row["reason"] == "computed inside aten.linear in l"


class Pixels(nn.Module):
    """Two million elements a sample. `mixes`: the samples of a batch depend on each other."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes = mixes
        self.conv, self.dropout, self.last = nn.Conv2d(1, 64, 1), nn.Dropout(), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).relu().mean((2, 3))
        if self.mixes:
            x = x - x.mean(0)
        return self.last(self.dropout(x))


@pytest.mark.parametrize("mixes", [False, True])
def test_a_large_batch_is_kept_in_part_where_its_samples_are_apart(
    mixes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frametap import _quantize

    kept: list[list[Tensor]] = []
    measured = _quantize.measured_on_graphs

    def noted(converted: Any, observations: Any) -> Any:
        for observation in observations.values():
            kept.extend(
                [x for x in run if x.shape[1:] == data.shape[1:]] for run in observation.kept
            )
        return measured(converted, observations)

    monkeypatch.setattr(_quantize, "measured_on_graphs", noted)
    data = torch.randn(20, 1, 128, 128) * torch.linspace(0.1, 3, 20).view(20, 1, 1, 1)
    model = Pixels(mixes).eval()
    quantized = frametap.quantize(model, [data], progress=False)
    [[images]] = kept
    rows = images.shape[0]
    assert torch.equal(images, data[:rows])
    assert rows == 20 if mixes else 4 <= rows < 20
    with torch.no_grad():
        assert sqnr(model(data), quantized(data)) > 30


class ImportsLate(nn.Module):
    """Imports a module at its first call, as torch does for a masked MultiheadAttention."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: Tensor, late: bool = True) -> Tensor:
        if not late:
            return self.linear(x)
        from imported_at_a_first_call import FACTOR

        return self.linear(x) * FACTOR


@pytest.mark.parametrize("late", [[True], [False, True]], ids=["first batch", "second batch"])
def test_a_batch_at_which_something_is_imported(
    late: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_at_a_first_call.py").write_text("FACTOR = 2\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    model, x = ImportsLate().eval(), torch.randn(32, 64)
    quantized = frametap.quantize(model, [(x, one) for one in late], progress=False)
    linears = [row["decision"] for row in quantized.report if row["op"] == "aten.linear"]
    assert linears == ["int8"] * len(late)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sqnr(model(x), quantized(x)) > 25
    monkeypatch.delitem(sys.modules, "imported_at_a_first_call")
    assert frametap.freeze(model, [(x, one) for one in late], progress=False).report
    monkeypatch.delitem(sys.modules, "imported_at_a_first_call")
