"""``frametap.freeze`` against plain torch. _freeze/F1 to _freeze/F3, _inference_model/R1 and _inference_model/R3."""

from __future__ import annotations

import copy
import functools
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import frametap
from fixtures.subject import needs_capture
from frametap import _C

pytestmark = needs_capture

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def _random_norms(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return model.eval()


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, (dict, list, tuple)):
        return []
    items = value.values() if isinstance(value, dict) else value
    return [tensor for item in items for tensor in _tensors(item)]


def _compare(model: nn.Module, frozen: frametap.FrozenModel, *args: Any, **kwargs: Any) -> None:
    """The same sizes and dtypes, and values up to rounding; arguments are written to in the same way."""
    plain, ours = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
    with torch.no_grad():
        want = model(*plain[0], **plain[1])
    got = frozen(*ours[0], **ours[1])
    # bfloat16 has 8 bits, and errors grow from layer to layer.
    tolerance = 1e-5 if frozen.dtype is torch.float32 else 3e-2
    for a, b in zip(_tensors([want, plain]), _tensors([got, ours]), strict=True):
        assert (a.shape, a.dtype, b.requires_grad) == (b.shape, b.dtype, False)
        if a.numel():
            limit = tolerance * max(1.0, float(a.abs().max()))
            assert float((a.double() - b.double()).abs().max()) <= limit


def _forms(frozen: frametap.FrozenModel) -> dict[str, str]:
    return {row["op"]: row["form"] for row in frozen.report}


class Program(nn.Module):
    """A function of x and of two layers, which `f` calls as m.a and m.b."""

    def __init__(self, f: Callable[..., Any], a: nn.Module, b: nn.Module | None = None) -> None:
        super().__init__()
        self.f, self.a = f, a
        self.b = b if b is not None else copy.deepcopy(a)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.f(self, *args, **kwargs)


def _conv(**options: Any) -> nn.Conv2d:
    return nn.Conv2d(6, 6, 3, padding=options.pop("padding", 1), **options)


IMAGES = (2, 6, 9, 7)
ROWS = (3, 5, 6)
# A program, its layers, the sizes of its input, and the ops that no kernel takes.
PROGRAMS: dict[str, tuple[Callable[..., Any], nn.Module, tuple[int, ...], set[str]]] = {
    "conv": (lambda m, x: m.a(x), _conv(), IMAGES, set()),
    "conv without bias": (lambda m, x: m.a(x), _conv(bias=False), IMAGES, set()),
    "stride": (lambda m, x: m.a(x), _conv(stride=2), IMAGES, set()),
    "dilation": (lambda m, x: m.a(x), _conv(dilation=2, padding=2), IMAGES, set()),
    "groups": (lambda m, x: m.a(x), _conv(groups=2), IMAGES, set()),
    "depthwise": (lambda m, x: m.a(x), _conv(groups=6), IMAGES, set()),
    "same": (lambda m, x: m.a(x), nn.Conv2d(6, 6, 4, padding="same"), IMAGES, set()),
    "valid": (lambda m, x: m.a(x), nn.Conv2d(6, 6, 4, padding="valid"), IMAGES, set()),
    "reflected": (
        lambda m, x: m.a(x),
        _conv(padding_mode="reflect"),
        IMAGES,
        {"aten.pad"},
    ),
    "conv1d": (lambda m, x: m.a(x).relu(), nn.Conv1d(6, 6, 3, padding=1), (2, 6, 9), set()),
    "conv3d": (lambda m, x: m.a(x).relu(), nn.Conv3d(6, 6, 3), (2, 6, 4, 5, 6), set()),
    "transposed": (lambda m, x: m.a(x), nn.ConvTranspose2d(6, 6, 3, 2, 1, 1), IMAGES, set()),
    "norm": (
        lambda m, x: m.a(x),
        nn.Sequential(_conv(), nn.BatchNorm2d(6), nn.ReLU()),
        IMAGES,
        set(),
    ),
    "norm, transposed": (
        lambda m, x: m.a(x),
        nn.Sequential(nn.ConvTranspose2d(6, 8, 2, 2, groups=2), nn.BatchNorm2d(8)),
        IMAGES,
        set(),
    ),
    "norm of a linear": (
        lambda m, x: m.a(x),
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)),
        (3, 6),
        set(),
    ),
    "norm alone": (
        lambda m, x: m.a(m.b(x).relu()),
        nn.Sequential(nn.BatchNorm2d(6), _conv()),
        IMAGES,
        {"aten.batch_norm"},
    ),
    "residual": (lambda m, x: F.relu(m.a(x) + x), _conv(), IMAGES, set()),
    "residual first": (lambda m, x: F.relu(x + m.a(x)), _conv(), IMAGES, set()),
    "residual in place": (lambda m, x: F.relu_(m.b(m.a(x)).add_(x)), _conv(), IMAGES, set()),
    "two branches": (lambda m, x: F.relu(m.a(x) + m.b(x)), _conv(), IMAGES, set()),
    "sum with itself": (lambda m, x: (y := m.a(x)) + y, _conv(), IMAGES, {"aten.add.Tensor"}),
    "sum of curves": (lambda m, x: F.silu(m.a(x)) + m.b(x), _conv(), IMAGES, set()),
    "scaled sum": (
        lambda m, x: torch.add(m.a(x), x, alpha=2),
        _conv(),
        IMAGES,
        {"aten.add.Tensor"},
    ),
    "broadcast sum": (
        lambda m, x: m.a(x) + x[:, :1],
        _conv(),
        IMAGES,
        {"aten.add.Tensor", "aten.slice.Tensor"},
    ),
    "sum with a number": (lambda m, x: m.a(x) + 1, _conv(), IMAGES, {"aten.add.Tensor"}),
    "sum in float64": (
        lambda m, x: m.a(x) + x.double(),
        _conv(),
        IMAGES,
        {"aten.add.Tensor", "aten.to.dtype"},
    ),
    "read twice": (lambda m, x: [F.relu(y := m.a(x)), y], _conv(), IMAGES, {"aten.relu"}),
    "linear": (lambda m, x: m.a(x), nn.Linear(6, 4), ROWS, set()),
    "linear of one row": (lambda m, x: m.a(x), nn.Linear(6, 4), (6,), set()),
    "linear residual": (lambda m, x: m.a(x) + x, nn.Linear(6, 6), ROWS, set()),
    "linear twice": (lambda m, x: m.b(F.gelu(m.a(x))) + x, nn.Linear(6, 6), ROWS, set()),
    "addmm": (
        lambda m, x: torch.addmm(m.a.bias, x, m.a.weight.t()),
        nn.Linear(6, 6),
        (3, 6),
        set(),
    ),
    "matmul": (lambda m, x: x @ m.a.weight, nn.Linear(6, 6), ROWS, set()),
    "weight norm": (
        lambda m, x: m.a(x),
        parametrizations.weight_norm(nn.Linear(6, 6)),
        ROWS,
        set(),
    ),
    "tied": (lambda m, x: m.a(F.linear(x, m.a.weight)), nn.Linear(6, 6), ROWS, set()),
    "dropout": (lambda m, x: m.a(x), nn.Sequential(_conv(), nn.Dropout(0.5)), IMAGES, set()),
    "attention": (
        lambda m, x: m.a(x, x, x, need_weights=False)[0],
        nn.MultiheadAttention(6, 2, batch_first=True),
        ROWS,
        {"aten.scaled_dot_product_attention"},
    ),
    "encoder": (
        lambda m, x: m.a(x),
        nn.TransformerEncoderLayer(6, 2, 12, batch_first=True, activation="gelu"),
        ROWS,
        {"aten.scaled_dot_product_attention", "aten.add.Tensor"},
    ),
    "view of images": (
        lambda m, x: m.a(x).view(2, -1).sum(1),
        _conv(),
        IMAGES,
        {"aten.view", "aten.sum.dim_IntList"},
    ),
    "strided images": (
        lambda m, x: torch.as_strided(m.a(x), (2, 5), (6, 1), 3),
        _conv(),
        IMAGES,
        {"aten.conv2d", "aten.as_strided"},
    ),
    "part is written": (
        lambda m, x: [(y := m.a(x)), y[:, 0].zero_(), y.relu_(), m.b(y)],
        _conv(),
        IMAGES,
        {"aten.select.int", "aten.zero_", "aten.relu_"},
    ),
    "input is written later": (
        lambda m, x: [m.a(x).mul(1), x.add_(1), m.b(x)],
        _conv(),
        IMAGES,
        {"aten.mul.Tensor", "aten.add_.Tensor"},
    ),
    "written before the curve": (
        lambda m, x: [(y := m.a(x)), x.mul_(2), F.relu(y)][2] + x,
        _conv(),
        IMAGES,
        {"aten.mul_.Tensor", "aten.relu", "aten.add.Tensor"},
    ),
    "addend is written later": (
        lambda m, x: [y := m.b(m.a(x)) + x, x.add_(1), F.relu(y)],
        _conv(),
        IMAGES,
        {"aten.add.Tensor", "aten.add_.Tensor", "aten.relu"},
    ),
    "pools and joins": (
        lambda m, x: torch.cat(
            [m.a(x), F.interpolate(F.avg_pool2d(m.b(F.max_pool2d(x, 2)), 2), (9, 7))], 1
        ).mean((2, 3)),
        _conv(),
        IMAGES,
        {
            "aten.upsample_nearest2d.vec",
            "aten.avg_pool2d",
            "aten.max_pool2d",
            "aten.mean.dim",
        },
    ),
    "gate": (
        lambda m, x: m.a(x) * torch.sigmoid(m.b(x.mean((2, 3), keepdim=True))),
        _conv(),
        IMAGES,
        {"aten.mul.Tensor", "aten.mean.dim"},
    ),
    "two results": (
        lambda m, x: {"a": m.a(x), "b": [m.b(x).relu(), x]},
        _conv(),
        IMAGES,
        set(),
    ),
    "no layer": (lambda m, x: x.relu() + 1, _conv(), IMAGES, {"aten.relu", "aten.add.Tensor"}),
    "one image": (lambda m, x: m.a(x), _conv(), (6, 9, 7), {"aten.conv2d"}),
    "double": (
        lambda m, x: m.a(x.double()),
        _conv().double(),
        IMAGES,
        {"aten.conv2d", "aten.to.dtype"},
    ),
}


def _model_of(name: str) -> tuple[nn.Module, Tensor]:
    f, layer, sizes, _ = PROGRAMS[name]
    torch.manual_seed(3)
    model = Program(f, layer)
    for (
        module
    ) in model.modules():  # it was made when this file was read, which may be after any other file
        getattr(module, "reset_parameters", lambda: None)()
    return _random_norms(model), torch.randn(sizes)


@BOTH
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_frozen_program_gives_what_torch_gives(name: str, dtype: torch.dtype) -> None:
    model, x = _model_of(name)
    frozen = frametap.freeze(model, dtype=dtype)
    for _ in range(2):
        _compare(model, frozen, x)
    if x.dim() == 4 and name != "view of images":  # torch has no such view of channels_last images
        _compare(model, frozen, x.contiguous(memory_format=torch.channels_last))
    if name not in ("view of images", "linear of one row", "one image"):
        _compare(model, frozen, torch.cat([x, x * 2, x]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_f3_ops_run_in_kernels_or_say_why_not(name: str) -> None:
    model, x = _model_of(name)
    frozen = frametap.freeze(model, [x], progress=False)
    by_torch = {
        row["op"] for row in frozen.report if row["form"] == "torch" and row["op"][:4] == "aten"
    }
    moves = {
        "aten.reshape",
        "aten.transpose.int",
        "aten.unflatten.int",
        "aten.unsqueeze",
        "aten.squeeze.dim",
    }
    moves |= {
        "aten.select.int",
        "aten.contiguous",
        "aten.view",
        "aten.permute",
        "aten.t",
        "aten.flatten.using_ints",
    }
    assert by_torch - moves == PROGRAMS[name][3] - moves
    for row in frozen.report:
        is_layer = row["op"].startswith(("aten.conv", "aten.linear"))
        assert not is_layer or (row["form"] == "torch") == bool(row["reason"])


CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu_": F.relu_,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.4),
    "hardswish": F.hardswish,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
}


@pytest.mark.parametrize("after_sum", [False, True])
@pytest.mark.parametrize("layer", [_conv(), nn.Linear(6, 6)], ids=["conv", "linear"])
@pytest.mark.parametrize("name", CURVES)
def test_curves_are_part_of_the_kernel(name: str, layer: nn.Module, after_sum: bool) -> None:
    def f(m: Any, x: Tensor) -> Tensor:
        return CURVES[name](m.a(x) + x if after_sum else m.a(x))

    model = Program(f, layer).eval()
    x = torch.randn(IMAGES if isinstance(layer, nn.Conv2d) else ROWS) * 3
    frozen = frametap.freeze(model)
    _compare(model, frozen, x)
    assert {form for op, form in _forms(frozen).items()} == {"kernel", "fused"}


def _by_matrix(m: Any, x: Tensor) -> Tensor:
    """A linear layer as transformers' Conv1D has it."""
    product = torch.addmm(m.a.bias, x.reshape(-1, 6), m.a.weight.t())
    return product.view(x.shape[0], x.shape[1], 6)


def _reads_twice(m: Any, x: Tensor, y: Tensor) -> Tensor:
    product = _by_matrix(m, x)
    return F.relu(product) + product


def _writes(m: Any, x: Tensor, y: Tensor) -> Tensor:
    product = _by_matrix(m, x)
    product.mul_(2)
    return F.relu(product).exp()


# Each with whether something is part of the kernel.
BY_MATRIX: dict[str, tuple[Callable[[Any, Tensor, Tensor], Tensor], bool]] = {
    "curve": (lambda m, x, y: torch.tanh(_by_matrix(m, x)) * 2, True),
    "sum": (lambda m, x, y: (_by_matrix(m, x) + y) * 2, True),
    "sum on the left, curve": (lambda m, x, y: F.gelu(y + _by_matrix(m, x)) * 2, True),
    "before a layer": (lambda m, x, y: _by_matrix(m, F.relu(_by_matrix(m, x) + y)) * 2, True),
    "result of the graph": (lambda m, x, y: F.relu(_by_matrix(m, x)), False),
    "view of the result": (lambda m, x, y: F.relu(_by_matrix(m, x))[:, 0], False),
    "nothing follows": (lambda m, x, y: _by_matrix(m, x).softmax(-1), False),
    "read twice": (_reads_twice, False),
    "written": (_writes, False),
}


@BOTH
@pytest.mark.parametrize("curve", [nn.Identity(), nn.ReLU(), nn.Sigmoid()])
@pytest.mark.parametrize("channels", [(3, 16), (6, 6), (16, 5)])
def test_every_transposed_convolution_has_a_kernel(
    channels: tuple[int, int], curve: nn.Module, dtype: torch.dtype
) -> None:
    model = nn.Sequential(
        nn.ConvTranspose2d(*channels, 3), curve, nn.Conv2d(channels[1], 4, 3)
    ).eval()
    images = torch.randn(2, channels[0], 8, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frozen = frametap.freeze(model, [images], dtype=dtype)
        _compare(model, frozen, images)
    assert [row["form"] for row in frozen.report if "conv" in row["op"]] == ["kernel", "kernel"]


@BOTH
@pytest.mark.parametrize("name", BY_MATRIX)
def test_a_view_may_stand_before_the_sum_and_the_curve(name: str, dtype: torch.dtype) -> None:
    f, is_fused = BY_MATRIX[name]
    model = Program(f, nn.Linear(6, 6)).eval()
    frozen = frametap.freeze(model, dtype=dtype)
    _compare(model, frozen, torch.randn(2, 5, 6), torch.randn(2, 5, 6))
    assert ("fused" in _forms(frozen).values()) == is_fused
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", frametap.FrametapWarning)
        for a, b in [
            ((3, 4, 6), (3, 4, 6)),
            ((3, 4, 6), (1, 4, 6)),  # broadcast
            ((1, 4, 6), (3, 4, 6)),
            ((3, 4, 6), (6,)),
            ((3, 1, 6), (3, 1, 6)),
            ((0, 4, 6), (0, 4, 6)),
            ((2, 5, 6), (2, 5, 6)),
        ]:
            x, y = torch.randn(a), torch.randn(b)
            _compare(model, frozen, x, y)
            with torch.no_grad():
                assert frozen(x, y)._is_view() == model(x, y)._is_view()


def test_an_addend_that_fits_the_matrix_only_is_refused_as_by_torch() -> None:
    model = Program(BY_MATRIX["sum"][0], nn.Linear(6, 6)).eval()
    frozen = frametap.freeze(model)
    _compare(model, frozen, torch.randn(2, 4, 6), torch.randn(2, 4, 6))
    with pytest.raises(RuntimeError, match="must match the size"):
        frozen(torch.randn(2, 6, 6), torch.randn(1, 12, 6))


@BOTH
def test_sizes_may_change_from_call_to_call(dtype: torch.dtype) -> None:
    model, _ = _model_of("residual")
    frozen = frametap.freeze(model, dtype=dtype)
    for sizes in [(1, 6, 9, 7), (3, 6, 8, 8), (0, 6, 5, 5), (2, 6, 20, 3), (1, 6, 9, 7)]:
        _compare(model, frozen, torch.randn(sizes))


def test_an_addend_that_is_broadcast_in_a_replay_is_right() -> None:
    model = Program(lambda m, x, y: F.relu(m.a(x) + y), nn.Linear(6, 6)).eval()
    frozen = frametap.freeze(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", frametap.FrametapWarning)
        for a, b in [((3, 6), (3, 6)), ((3, 6), (1, 6)), ((1, 6), (3, 6)), ((2, 6), (2, 6))]:
            _compare(model, frozen, torch.randn(a), torch.randn(b))


def test_f1_the_model_and_its_later_changes_do_not_show() -> None:
    model, x = _model_of("norm")
    model.train()
    frozen = frametap.freeze(model)
    before = frozen(x).clone()
    assert model.training
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert frozen(x).equal(before)


def test_f1_weights_of_a_method_are_copied() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def encode(self, x: Tensor) -> Tensor:
            return self.layer(x).relu()

    model, x = Two().eval(), torch.randn(ROWS)
    frozen = frametap.freeze(model.encode)
    want = model.encode(x)
    assert torch.allclose(frozen(x), want, atol=1e-5)
    with torch.no_grad():
        model.layer.weight.zero_()
    assert torch.allclose(frozen(x), want, atol=1e-5)


def test_f2_branches_breaks_and_effects_stay_alive() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.calls = 0

        def forward(self, x: Tensor, names: list[str] | None = None) -> Tensor:
            self.calls += 1
            y = self.a(x)
            if y.sum() > 0:
                return self.b(y)
            print("negative")
            return F.relu(self.a(y)) * (len(names) if names else 1)

    model = Branches().eval()
    frozen = frametap.freeze(model)
    torch.manual_seed(0)
    for _ in range(8):
        _compare(model, frozen, torch.randn(ROWS), names=["a", "b"])
    assert frozen._model.calls == 8  # type: ignore[attr-defined]
    assert len({row["segment"] for row in frozen.report}) >= 3


def test_r1_grad_mode_autocast_and_inference_mode_change_nothing() -> None:
    model, x = _model_of("residual")
    frozen = frametap.freeze(model)
    want = frozen(x)
    with torch.inference_mode():
        assert frozen(x).equal(want)
    with torch.enable_grad():
        assert not frozen(x.clone().requires_grad_()).requires_grad
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert frozen(x).equal(want)
        assert frozen(x.bfloat16()).dtype == torch.float32
    assert len(frametap.segments(frozen)) <= 3
    outer = torch.compile(lambda x: frozen(x) + 1, backend="eager")
    assert outer(x).equal(want + 1)


def test_a_program_that_uses_autocast_keeps_its_types() -> None:
    def f(m: Any, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m.a(x)

    model = Program(f, nn.Linear(6, 6)).eval()
    frozen = frametap.freeze(model)
    _compare(model, frozen, torch.randn(ROWS))
    [row] = [row for row in frozen.report if row["op"] == "aten.linear"]
    assert (row["form"], row["reason"]) == ("torch", "it ran under autocast")


def test_weights_that_are_computed_are_left_to_torch() -> None:
    model = Program(lambda m, x, w: F.linear(x, w, m.a.bias), nn.Linear(6, 6)).eval()
    frozen = frametap.freeze(model)
    _compare(model, frozen, torch.randn(ROWS), torch.randn(6, 6))
    _compare(model, frozen, torch.randn(ROWS), torch.randn(6, 6))
    [row] = frozen.report
    assert row["reason"] == "its weight is not a parameter or buffer of float32"


def test_buffers_that_a_call_writes_are_read_anew() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.register_buffer("seen", torch.zeros(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x[0, :6].mean())
            return self.layer(x) + F.linear(x, self.seen)

    torch.manual_seed(1)
    model = Cache().eval()
    frozen = frametap.freeze(model)
    for _ in range(4):
        _compare(model, frozen, torch.randn(ROWS))


def test_data_is_recorded_in_advance() -> None:
    model, x = _model_of("linear")
    frozen = frametap.freeze(model, [x, (x,), {"x": x}][:2], progress=False)
    with frametap.assert_no_recording():
        _compare(model, frozen, x)
    assert "1 kernels" in repr(frozen)


def test_the_report_reads_well() -> None:
    model, x = _model_of("norm")
    frozen = frametap.freeze(model)
    assert "nothing was recorded yet" in frozen.report_text()
    frozen(x)
    text = frozen.report_text()
    assert "folded into the weight of aten.conv2d in a.0" in text
    assert "by the kernel of aten.conv2d in a.0" in text
    assert text.endswith("3 ops: 1 kernels, 1 fused into them, 1 folded away")
    segment = frametap.segments(frozen)[0]
    graph = frozen.frozen_graph(segment)
    assert graph is not None
    assert "frametap.packed_conv" in str(graph)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda m: frametap.freeze(m, dtype=torch.int8), "for int8 there is frametap.quantize"),
        (lambda m: frametap.freeze(m, dtype="bfloat16"), "dtype must be torch.float32"),
        (lambda m: frametap.freeze(lambda x: x), "the function reaches none"),
        (lambda m: frametap.freeze(3), "a torch.nn.Module or a function expected, got int"),
        (lambda m: frametap.freeze(frametap.freeze(m)), "the model is frozen already"),
        (lambda m: frametap.freeze(m, torch.ones(3)), "put it in a list"),
        (lambda m: frametap.freeze(m, [3]), "batch 0 is int 3"),
        (lambda m: frametap.freeze(m, [torch.ones(3)]), "does not accept batch 0"),
        (lambda m: frametap.freeze(m).train(), "train the original, then freeze again"),
        (lambda m: frametap.freeze(m).state_dict(), "take the state dict of the original"),
        (lambda m: frametap.freeze(m).load_state_dict({}), "load them into the original"),
        (lambda m: frametap.freeze(m).double(), "takes torch.float32"),
        (lambda m: copy.deepcopy(frametap.freeze(m)), "cannot be copied.*use frametap.save"),
        (lambda m: torch.jit.script(frametap.freeze(m)), "script the original"),
        (
            lambda m: torch.export.export(frametap.freeze(m), (torch.ones(2, 6),)),
            "export the original",
        ),
    ],
)
def test_r3_bad_input_is_refused_in_words(call: Callable[[nn.Module], Any], text: str) -> None:
    model = nn.Linear(6, 6)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(frametap.FreezeError, match=text):
        call(model)
    assert model.training
    assert all(before[name].equal(tensor) for name, tensor in model.state_dict().items())


class Saved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)
        nn.init.uniform_(self.norm.running_mean)  # type: ignore[arg-type]
        self.calls = 0

    def encode(self, x: Tensor) -> dict[str, Tensor]:
        self.calls += 1
        return {"features": self.norm(self.conv(x)).relu().mean((2, 3))}

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        features = self.encode(x)["features"]
        if x.mean() > 0:
            features = features + 1
        return self.head(features), self.calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_model_is_frozen_again_where_it_is_loaded(
    dtype: torch.dtype, tmp_path: Any
) -> None:
    model = Saved().eval()
    batches = [torch.randn(4, 3, 8, 8) + 5, torch.randn(2, 3, 8, 8) - 5]
    frozen = frametap.freeze(model, batches, dtype=dtype, progress=False)
    frametap.save(frozen, tmp_path / "model")
    program = frametap.load(tmp_path / "model")
    kernels = {"packed_conv", "packed_linear"}
    assert program.program.frozen is not None
    assert kernels <= {
        node.op.removeprefix("frametap.")
        for graph in program.frozen_graphs().values()
        for node in graph.nodes
    }
    for x in batches:
        (got, count), (want, calls) = program(x), frozen(x)
        assert got.equal(want) and count == calls
        assert not got.requires_grad


def test_a_method_is_saved(tmp_path: Any) -> None:
    model, x = Saved().train(), torch.randn(4, 3, 8, 8)
    frozen = frametap.freeze(model.encode, [x], progress=False)
    assert model.training and model.calls == 0
    frametap.save(frozen, tmp_path / "model")
    with torch.no_grad():
        want = copy.deepcopy(model).eval().encode(x)["features"]
    for call in (frozen, frametap.load(tmp_path / "model")):
        assert torch.allclose(call(x)["features"], want, atol=1e-5)


SCALE = nn.Parameter(torch.full((5,), 3.0))
MODELS = {"here": Saved().eval()}


def reaches(x: Tensor, *, more: nn.Module = nn.Linear(5, 5)) -> dict[str, Tensor]:  # noqa: B008
    return {"out": more(MODELS["here"](x)[0] * SCALE)}


def test_a_function_is_frozen_with_the_weights_that_it_reaches(tmp_path: Any) -> None:
    x, first = torch.randn(2, 3, 8, 8), nn.Conv2d(3, 3, 1).eval()

    def function(x: Tensor) -> dict[str, Tensor]:
        return reaches(first(x))

    frozen = frametap.freeze(function, [x], progress=False)
    with torch.no_grad():
        want = function(x)["out"]
        assert torch.allclose(frozen(x)["out"], want, atol=1e-5)
        first.weight.zero_()
        assert torch.allclose(frozen(x)["out"], want, atol=1e-5)
    forms = [row["form"] for row in frozen.report if row["op"] in ("aten.conv2d", "aten.linear")]
    assert forms == 4 * ["kernel"]


def test_a_file_of_a_frozen_model_is_checked(tmp_path: Any) -> None:
    frozen = frametap.freeze(nn.Linear(6, 6), [torch.ones(2, 6)], progress=False)
    path = tmp_path / "model"
    frametap.save(frozen, path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files["manifest.json"] = files["manifest.json"].replace(
        b'"products": "float32"', b'"products": "float3"'
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    with pytest.raises(frametap.ArtifactError, match="unknown products 'float3'"):
        frametap.load(path)
    with pytest.raises(frametap.ArtifactError, match="was captured yet"):
        frametap.save(frametap.freeze(nn.Linear(6, 6)), path)


def test_threads_share_a_frozen_model() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model, _ = _model_of("encoder")
    frozen = frametap.freeze(model)
    inputs = [torch.randn(1 + i % 3, 5, 6) for i in range(24)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for want, got in zip(wanted, pool.map(frozen, inputs), strict=True):
            assert torch.allclose(want, got, atol=1e-5)


HALVES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "layers, curves, a pool and a reshape": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.Softplus(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        ),
        (2, 3, 12, 12),
        1,  # of the input
    ),
    "a residual sum": (
        lambda: Program(lambda m, x: m.b(F.relu(m.b(F.relu(y := m.a(x))) + y)), _conv()),
        (2, 6, 8, 8),
        1,
    ),
    "attention": (
        lambda: Program(
            lambda m, x: m.b(F.scaled_dot_product_attention(y := m.a(x), y * 2, y.relu())),
            nn.Linear(16, 16),
        ),
        (2, 6, 16),
        1,
    ),
    "a norm between layers": (
        lambda: nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)),
        (3, 8),
        1,
    ),
    "a value that is also a result": (
        lambda: Program(lambda m, x: [y := m.a(x), m.b(y.view(-1, 8))], nn.Linear(8, 8)),
        (3, 8),
        2,
    ),
    "a value that is written later": (
        lambda: Program(
            lambda m, x: [y := m.a(x), z := m.b(y), y[:, 1:].zero_(), m.b(y) + z][3],
            nn.Linear(8, 8),
        ),
        (3, 8),
        3,
    ),
}


@pytest.mark.parametrize("name", HALVES)
def test_f8_values_between_layers_are_bfloat16(name: str) -> None:
    """The number of conversions shows which values are stored in it."""
    build, sizes, conversions = HALVES[name]
    torch.manual_seed(9)
    model, x = build().eval(), torch.randn(sizes)
    frozen = frametap.freeze(model, [x], dtype=torch.bfloat16)
    _compare(model, frozen, x)
    [segment] = frametap.segments(frozen)
    graph = str(_C.freeze_of(segment.executable)["graph"])
    if _C.bfloat16_products():
        assert graph.count("aten._to_copy") + graph.count("frametap.pixels") == conversions


def _attend(m: Any, x: Tensor, heads: int = 2, **options: Any) -> Tensor:
    def split(y: Tensor, count: int) -> Tensor:
        return y.view(*x.shape[:2], count, -1).transpose(1, 2)

    keys = m.a(x)[..., : 16 // heads] if options.get("enable_gqa") else m.a(x)
    number = 1 if options.get("enable_gqa") else heads
    out = F.scaled_dot_product_attention(
        split(m.b(x), heads), split(keys, number), split(keys.relu(), number), **options
    )
    return m.b(out.transpose(1, 2).reshape(x.shape))


def _lower(x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1]).tril()


ATTENTIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "heads": _attend,
    "causal": functools.partial(_attend, is_causal=True),
    "scale": functools.partial(_attend, scale=0.7),
    "one head": functools.partial(_attend, heads=1),
    "fewer keys than queries": lambda m, x: m.b(
        F.scaled_dot_product_attention(m.a(x)[:, None], m.b(x)[:, None, 1:], m.a(x)[:, None, 1:])
    ),
    "causal, fewer keys than queries": lambda m, x: m.b(
        F.scaled_dot_product_attention(
            m.a(x)[:, None], m.b(x)[:, None, 1:], m.a(x)[:, None, 1:], is_causal=True
        )
    ),
    "grouped": functools.partial(_attend, enable_gqa=True),
    "mask of bools": lambda m, x: _attend(m, x, attn_mask=_lower(x).bool()),
    "mask of minus infinity": lambda m, x: _attend(m, x, attn_mask=_lower(x).log()),
    "mask of the least number": lambda m, x: _attend(
        m, x, attn_mask=(1 - _lower(x)) * torch.finfo(torch.float32).min
    ),
    "computed mask": lambda m, x: _attend(m, x, attn_mask=m.a(x)[:, None, :, :1]),
    "three dimensions": lambda m, x: m.b(F.scaled_dot_product_attention(m.a(x), m.b(x), m.a(x))),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_f8_attention_of_bfloat16(name: str) -> None:
    torch.manual_seed(10)
    model = Program(ATTENTIONS[name], nn.Linear(16, 16)).eval()
    frozen = frametap.freeze(model, dtype=torch.bfloat16)
    for sizes in [(2, 6, 16), (1, 6, 16), (2, 3, 16), (2, 6, 16), (1, 40, 16), (3, 2, 16)]:
        _compare(model, frozen, torch.randn(sizes))
    graph = str(_C.freeze_of(frametap.segments(frozen)[0].executable)["graph"])
    assert ("frametap.bfloat16_attention" in graph) == _C.bfloat16_products()
