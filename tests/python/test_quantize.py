"""``frametap.quantize``. Q1–Q4 are the laws of _quantize.py."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fixtures.models import MODELS
from fixtures.quantized import BITS, least, sqnr
from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about int8")]


def images(batch: int, seed: int = 0) -> Tensor:
    return torch.rand(batch, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        self.calls = 0

    def forward(self, x: Tensor, scale: float | None = None) -> Tensor:
        self.calls += 1
        h = F.relu(self.bn(self.conv(x)))
        h = F.adaptive_avg_pool2d(h, 1).flatten(1)
        return self.head(h) if scale is None else self.head(h) * scale


class Branching(nn.Module):
    """Two layers, one for each arm of a branch on a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return self.up(x)
        return self.down(x)


# -- what comes back --


def test_digits_in_int8() -> None:
    model = MODELS["digits"].build().eval()
    batches = [images(16, seed) for seed in range(4)]
    quantized = frametap.quantize(model, batches)
    with torch.no_grad():
        for batch in batches:
            want = model(batch)
            got = quantized(batch)
            assert list(got) == list(want)
            assert sqnr(want["logits"], got["logits"]) > 25
    assert quantized.sqnr > 25
    decisions = {row["op"]: row["decision"] for row in quantized.report}
    assert decisions["aten.conv2d"] == "int8"
    assert decisions["aten.batch_norm"] == "folded"
    assert decisions["aten.linear"] == "int8"


def test_Q4_each_op_is_int8_or_explained() -> None:
    model = MODELS["digits"].build().eval()
    quantized = frametap.quantize(model, [images(4)])
    ops = {segment.name: len(segment.graph.nodes) for segment in frametap.segments(quantized)}
    for name, count in ops.items():
        rows = [row for row in quantized.report if row["segment"] == name]
        assert len(rows) == count
        for row in rows:
            assert row["decision"] == "int8" or row["reason"]
    text = quantized.report_text()
    for name in ops:
        assert name in text
    for word in ("aten.conv2d", "stem.conv", "int8", "SQNR", "why"):
        assert word in text


def test_Q1_the_model_is_unchanged() -> None:
    model = Small().train()
    before = copy.deepcopy(model.state_dict())
    model.head.register_forward_hook(lambda module, args, out: out * 2)
    quantized = frametap.quantize(model, [images(4), images(4, 1)])
    assert model.training
    assert model.bn.training
    assert model.calls == 0
    assert len(model.head._forward_hooks) == 1
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.requires_grad for p in model.parameters())
    assert torch.is_grad_enabled()
    assert not quantized.training
    assert not quantized(images(2)).requires_grad


def test_Q2_each_batch_is_observed_once() -> None:
    from frametap import _C
    from frametap._inference_model import captured_copy
    from frametap._quantize import _Calibration

    compiled, _, _ = captured_copy(
        Small(), "quantize", frametap.QuantizationError, lambda _: _C.QuantBackend()
    )
    calibration = _Calibration(compiled)
    with torch.no_grad():
        for seed in range(3):
            calibration.add(((images(4, seed),), {}))
    assert [observation.runs for observation in calibration.observations.values()] == [3]


def test_Q3_a_branch_chooses_between_int8_graphs() -> None:
    model = Branching()
    x = torch.rand(4, 8)
    quantized = frametap.quantize(model, [x, -x])
    with torch.no_grad():
        for batch, layer in ((x, model.up), (-x, model.down), (x + 0.1, model.up)):
            assert sqnr(layer(batch), quantized(batch)) > least(25)
    assert sum(row["op"] == "aten.linear" for row in quantized.report) == 2
    assert all(row["decision"] == "int8" for row in quantized.report if row["op"] == "aten.linear")


def test_Q4_an_arm_that_calibration_never_took_is_named() -> None:
    model = Branching()
    x = torch.rand(4, 8)
    quantized = frametap.quantize(model, [x])
    assert "runs in float" not in quantized.report_text()
    with torch.no_grad():
        assert torch.equal(quantized(-x), model.down(-x))
    lines = quantized.report_text().splitlines()
    (at,) = [i for i, line in enumerate(lines) if "runs in float" in line]
    assert frametap.segments(quantized)[-1].name in lines[at]
    assert lines[at + 1].startswith("  in float: aten.linear in down: calibration did not meet it")


def test_counters_start_where_the_model_had_them() -> None:
    model = Small().eval()
    model.calls = 7
    quantized = frametap.quantize(model, [images(4), images(4, 1)])
    assert quantized._model.calls == 7
    quantized(images(4))
    assert quantized._model.calls == 8
    assert model.calls == 7


class Mixed(nn.Module):
    """Layers of float32 and float64, and a product with a number."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)
        self.exact = nn.Linear(32, 32).double()

    def forward(self, x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        return self.b(self.a(x) * scale), self.exact(x.double())


def test_an_op_on_numbers_or_other_types_says_so() -> None:
    x = torch.randn(8, 32)
    report = frametap.quantize(Mixed(), [(x, 0.5), (x, 0.75)]).report
    reasons = {(row["op"], row["scope"]): row["reason"] for row in report}
    assert "a number that may differ from call to call" in reasons["aten.mul.Tensor", ""]
    assert "it computes in f64" in reasons["aten.linear", "exact"]


# -- what goes in --


@pytest.mark.parametrize(
    "data",
    [
        [images(4)],
        ([images(4)],),
        [(images(4),)],
        [[images(4)]],
        [{"x": images(4)}],
        [OrderedDict(x=images(4))],
        [(images(4), 2.0)],
        [{"x": images(4), "scale": 2.0}],
    ],
    ids=["list", "nested", "tuple", "loader", "dict", "ordered", "two arguments", "two keywords"],
)
def test_forms_of_calibration_data(data: Any) -> None:
    quantized = frametap.quantize(Small().eval(), data)
    assert any(row["decision"] == "int8" for row in quantized.report)


class Rows(nn.Module):
    """Takes no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)
        self.register_buffer("rows", torch.randn(9, 8))

    def forward(self, count: int) -> Tensor:
        assert isinstance(self.rows, Tensor)
        return self.second(self.first(self.rows[:count]))


def test_batches_without_tensors() -> None:
    model = Rows().eval()
    quantized = frametap.quantize(model, [(5,), (9,)])
    with torch.no_grad():
        want = model(3)
    assert (want - quantized(3)).abs().max() < 0.05 * want.abs().max()


def test_an_iterator_is_read_once() -> None:
    quantized = frametap.quantize(Small().eval(), (images(4, seed) for seed in range(3)))
    assert quantized.sqnr > 25


def test_a_data_loader() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images(12)), batch_size=4)
    assert frametap.quantize(Small().eval(), loader).sqnr > 25


@pytest.mark.parametrize("observer", ["histogram", "minmax"])
@pytest.mark.parametrize("bits", [None, *BITS])
def test_observers_and_bits(observer: str, bits: int | None) -> None:
    model = Small().eval()
    quantized = frametap.quantize(model, [images(8)], observer=observer, activation_bits=bits)
    with torch.no_grad():
        assert sqnr(model(images(8)), quantized(images(8))) > 20


def test_what_shall_stay_in_float() -> None:
    model = Small().eval()

    def decisions(**options: Any) -> dict[str, str]:
        report = frametap.quantize(model, [images(4)], **options).report
        return {row["op"]: row["decision"] for row in report}

    assert decisions()["aten.linear"] == "int8"
    assert decisions(float_ops=["aten.linear"])["aten.linear"] == "float"
    assert decisions(float_scopes=["head"])["aten.linear"] == "float"
    assert decisions(float_scopes=["head"])["aten.conv2d"] == "int8"


def test_compiled_and_decorated_models() -> None:
    class Decorated(Small):
        forward = frametap.compile(Small.forward)

    model = Small().eval()
    twin = Decorated().eval()
    twin.load_state_dict(model.state_dict())
    want = frametap.quantize(model, [images(4)])(images(4))
    assert torch.equal(frametap.quantize(frametap.compile(model), [images(4)])(images(4)), want)
    assert torch.equal(frametap.quantize(twin, [images(4)])(images(4)), want)


def test_what_torch_compile_gives_stands_for_what_it_was_given() -> None:
    model, data = Small().eval(), [images(4)]
    compiled = torch.compile(model, backend="eager")
    compiled(data[0])
    for convert in (
        lambda m: frametap.quantize(m, data),
        lambda m: frametap.quantize(m, data, scheme="dynamic"),
        lambda m: frametap.freeze(m, data),
    ):
        assert repr(convert(compiled)) == repr(convert(model))


class UnderTorchCompile(Small):
    @torch.compile(backend="eager")
    def encode(self, x: Tensor) -> Tensor:
        return self(x)

    def plain(self, x: Tensor) -> Tensor:
        return self(x)


@pytest.mark.parametrize(
    "convert",
    [
        lambda f, data: frametap.quantize(f, data),
        lambda f, data: frametap.quantize(f, data, scheme="dynamic"),
        lambda f, data: frametap.freeze(f, data),
    ],
    ids=["static", "dynamic", "freeze"],
)
def test_functions_and_methods_under_torch_compile(convert: Callable[[Any, Any], Any]) -> None:
    model, data = UnderTorchCompile().eval(), [images(4)]

    def function(x: Tensor) -> Tensor:
        return model(x).relu()

    want = convert(function, data)
    got = convert(torch.compile(function, backend="eager"), data)
    assert repr(got) == repr(want)
    assert torch.equal(got(data[0]), want(data[0]))
    assert len(frametap.segments(got)) == len(frametap.segments(want)) == 1
    want = convert(model.plain, data)
    for method in (torch.compile(model.plain, backend="eager"), model.encode):
        got = convert(method, data)
        assert len(frametap.segments(got)) == 1
        assert torch.equal(got(data[0]), want(data[0]))


def test_a_function() -> None:
    weight = torch.randn(8, 8)

    def f(x: Tensor) -> Tensor:
        return F.relu(F.linear(x, weight))

    try:
        quantized = frametap.quantize(f, [torch.randn(16, 8)])
    except frametap.QuantizationError as error:
        assert "aten.linear" in str(error)  # a weight that is not frozen, with the reason
    else:
        x = torch.randn(16, 8)
        assert sqnr(f(x), quantized(x)) > 20


def test_layers_inside_of_torchs_fused_encoder() -> None:
    case = MODELS["encoder"]
    model = case.build().eval()
    inputs = case.inputs(4)
    quantized = frametap.quantize(model, [inputs])
    linears = [row for row in quantized.report if row["op"] == "aten.linear"]
    assert len(linears) == 12 * 4
    assert all(row["decision"] == "int8" for row in linears)
    with torch.no_grad():
        assert sqnr(model(**inputs), quantized(**inputs)) > 20


def test_progress_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    frametap.quantize(Small().eval(), [images(4), images(4)], progress=True)
    captured = capsys.readouterr()
    assert "batch 2 of 2" in captured.err
    assert captured.out == ""
    frametap.quantize(Small().eval(), [images(4)])
    assert capsys.readouterr().err == ""


# -- what is refused --


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "empty"),
        (iter(()), "empty"),
        (images(4), "put it in a list"),
        (3, "iterable of batches, got int"),
        (["text"], "batch 0 is str 'text'"),
        ([images(4), None], "batch 1 is NoneType"),
        ([images(4), images(4) / 0], r"batch 1 \(float32 \[4, 1, 8, 8\]\) has NaN or infinite"),
        ([torch.rand(4, 3, 8, 8)], r"batch 0 \(float32 \[4, 3, 8, 8\]\): RuntimeError: .*channels"),
        ([images(4), (images(4), 1.0, 2.0)], "batch 1 .*TypeError.*\n.*leave labels out"),
        ([{"picture": images(4)}], r"batch 0 .*TypeError.*\n.*give \(\{...\},\)"),
        ([images(4).double()], r"batch 0 \(float64 .*\n.*the batch holds float64: .*\.float\(\)"),
        ([images(4), images(4).to("meta")], "batch 1 .* is on the device meta"),
        ([images(0), images(0)], "have no elements; give batches of at least one row"),
        ([images(4).to_sparse()], r"batch 0 .* has the layout torch.sparse_coo"),
        (
            [torch.nested.nested_tensor([torch.rand(3)], layout=torch.jagged)],
            "batch 0 .* is nested",
        ),
    ],
)
def test_data_that_does_not_fit(data: Any, words: str) -> None:
    model = Small().eval()
    with pytest.raises(frametap.QuantizationError, match=words):
        frametap.quantize(model, data)
    assert model.calls == 0
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"observer": "median"}, "'histogram' or 'minmax', not 'median'"),
        ({"observer": "hist"}, r"not 'hist' \(did you mean 'histogram'\?\)"),
        ({"float_ops": ["conv2d"]}, r"no such op \(did you mean 'aten.conv2d'\?\)"),
        ({"float_ops": [3]}, "float_ops must be a list of strings"),
        ({"activation_bits": 4}, "activation_bits must be 7, 8 or None, not 4"),
        ({"float_ops": "aten.linear"}, "float_ops must be a list of strings"),
        ({"float_scopes": [1]}, "float_scopes must be a list of strings"),
        ({"strict": "no"}, "strict must be True or False, not 'no'"),
        ({"float_ops": None}, "float_ops must be a list of strings, not None"),
        ({"float_scopes": 3}, "float_scopes must be a list of strings, not 3"),
        ({"activation_bits": 7.0}, "activation_bits must be 7, 8 or None, not 7.0"),
        ({"progress": "yes"}, "progress must be True, False or None, not 'yes'"),
        ({"check_finite": 1}, "check_finite must be True or False, not 1"),
        ({"check_finite": True, "scheme": "dynamic"}, "check_finite belongs to the other schemes"),
    ],
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(frametap.QuantizationError, match=words):
        frametap.quantize(Small(), [images(4)], **options)


def test_nothing_to_quantize() -> None:
    with pytest.raises(frametap.QuantizationError, match="none of the captured ops") as caught:
        frametap.quantize(nn.Tanh(), [torch.rand(4)])
    assert "aten.tanh" in str(caught.value)
    with pytest.raises(frametap.QuantizationError, match="no graph was captured"):
        frametap.quantize(nn.Identity(), [torch.rand(4)])


class ForcesOfAnEnergy(nn.Module):
    """The result is a gradient, as in a model of atoms."""

    def __init__(self, backward: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)
        self.backward = backward

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.second(torch.relu(self.first(x))).sum()
            if self.backward:
                energy.backward()
                assert x.grad is not None
                return x.grad
            return torch.autograd.grad(energy, x)[0]


@pytest.mark.parametrize("backward", [False, True])
def test_a_model_that_computes_gradients_is_refused(backward: bool) -> None:
    words = r"ForcesOfAnEnergy.forward:\d+:\d+: gradients are computed here.*a part of the model"
    with pytest.raises(frametap.QuantizationError, match=words):
        frametap.quantize(ForcesOfAnEnergy(backward).eval(), [torch.rand(4, 8)])


@pytest.mark.parametrize("thing", [3, None, "model", nn.Linear])
def test_no_model(thing: Any) -> None:
    with pytest.raises(frametap.QuantizationError, match=r"torch.nn.Module or a function expected"):
        frametap.quantize(thing, [torch.rand(4)])


def test_a_quantized_model_is_not_trained_copied_or_quantized_again() -> None:
    quantized = frametap.quantize(Small().eval(), [images(4)])
    assert quantized.eval() is quantized
    with pytest.raises(frametap.QuantizationError, match="train the float model"):
        quantized.train()
    with pytest.raises(frametap.QuantizationError, match=r"frametap.save"):
        copy.deepcopy(quantized)
    with pytest.raises(frametap.QuantizationError, match="quantized already"):
        frametap.quantize(quantized, [images(4)])
    assert "Small" in repr(quantized)
