"""Curves, sums and products with broadcasting, and pieces of tensors stay in int8 between layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frametap
from fixtures.quantized import graphs_of, least, sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture


class Around(nn.Module):
    """Layers a, b and c around a function of them."""

    def __init__(self, f: Callable[..., Tensor], make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.f = f
        self.a, self.b, self.c = make(6, 24), make(6, 24), make(24, 4)
        self.bias = nn.Parameter(torch.randn(24, *[1] * (2 if make is conv else 0)))

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self, x)


def conv(inputs: int, outputs: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def linear(inputs: int, outputs: int) -> nn.Module:
    return nn.Linear(inputs, outputs)


Program = tuple[Callable[..., Tensor], Callable[[int, int], nn.Module], tuple[int, ...]]

IMAGES, ROWS = (2, 6, 9, 8), (3, 5, 6)

CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.4),
    "hardswish": F.hardswish,
    "hardswish_": lambda x: F.hardswish(x, inplace=True),
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "tanh": torch.tanh,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
}
TABLES: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: f for name, f in CURVES.items() if name[:4] != "relu"},
    "elu": F.elu,
    "mish": F.mish,
    "softplus": F.softplus,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "log_sigmoid": F.logsigmoid,
    "hardshrink": lambda x: F.hardshrink(x, 0.1),
    "softshrink": lambda x: F.softshrink(x, 0.1),
    "threshold": lambda x: F.threshold(x, 0.1, 0.05),
    "clamp": lambda x: x.clamp(-0.5, 0.75),
    "clamp_min": lambda x: torch.clamp_min(x, -0.25),
    "clamp_max": lambda x: torch.clamp_max(x, 0.5),
    "neg": lambda x: -x,
    "abs": torch.abs,
    "times a number": lambda x: x * -0.5,
    "plus a number": lambda x: x + 1.5,
    "minus a number": lambda x: x - 1,
    "by a number": lambda x: x / 3,
    "from a number": lambda x: 1 - x,
}


def _squeeze_and_excite(m: Any, x: Tensor) -> Tensor:
    y = m.a(x)
    gate = torch.sigmoid(F.conv2d(F.adaptive_avg_pool2d(y, 1).relu(), m.gate))
    return m.c(y * gate)


class Excited(Around):
    def __init__(self) -> None:
        super().__init__(_squeeze_and_excite, conv)
        self.gate = nn.Parameter(torch.randn(24, 24, 1, 1) * 0.5)


BETWEEN: dict[str, Program] = {
    "gated": (lambda m, x: m.c(m.a(x) * torch.sigmoid(m.b(x))), conv, IMAGES),
    "gated by channel": (
        lambda m, x: m.c(m.a(x) * m.b(x)[:, :, 3, 2][:, :, None, None]),
        conv,
        IMAGES,
    ),
    "gated by channel, other way": (
        lambda m, x: m.c(m.b(x)[:, :, :1, :1] * m.a(x)),
        conv,
        IMAGES,
    ),
    "gated by row": (lambda m, x: m.c(m.a(x) * m.b(x)[..., :1]), linear, ROWS),
    "gated by position": (lambda m, x: m.c(m.a(x) + m.b(x)[:, :1]), linear, ROWS),
    "bias": (lambda m, x: m.c(m.a(x) + m.bias), linear, ROWS),
    "factor": (lambda m, x: m.c(m.a(x) * m.bias), linear, ROWS),
    "factor of images": (lambda m, x: m.c(m.bias * m.a(x)), conv, IMAGES),
    "other ranks": (lambda m, x: m.c(m.a(x)[0] - m.b(x)), linear, ROWS),
    "outer": (lambda m, x: m.c(m.a(x)[:, :1] * m.b(x)[:1]), linear, ROWS),
    "sum and relu": (lambda m, x: m.c(F.relu(m.a(x) + m.b(x)[:, :, :1])), conv, IMAGES),
    "chunk": (
        lambda m, x: m.c(torch.cat([t.relu() for t in m.a(x).chunk(3, 1)], 1)),
        conv,
        IMAGES,
    ),
    "chunk of the last": (lambda m, x: m.c(torch.cat(m.a(x).chunk(2, -1)[::-1], -1)), linear, ROWS),
    "glu": (
        lambda m, x: m.c(
            (y := m.a(x).chunk(2, -1))[0].repeat(1, 1, 2) * torch.sigmoid(y[1]).repeat(1, 1, 2)
        ),
        linear,
        ROWS,
    ),
    "split": (lambda m, x: m.c(torch.cat(m.a(x).split(5, 1)[::-1], 1)), conv, IMAGES),
    "split with sizes": (
        lambda m, x: m.c(torch.cat(m.a(x).split([1, 20, 3], -1)[::-1], -1)),
        linear,
        ROWS,
    ),
    "unbind": (lambda m, x: m.c(m.a(x).unbind(1)[2]), linear, ROWS),
    "narrow": (lambda m, x: m.c(m.a(x).narrow(1, 1, 3)), linear, ROWS),
    "select": (lambda m, x: m.c(m.a(x)[:, -1]), linear, ROWS),
    "unflatten": (lambda m, x: m.c(m.a(x).unflatten(1, (4, 6)).flatten(1, 2)), conv, IMAGES),
    "movedim": (lambda m, x: m.c(m.a(x).movedim(1, 0)), linear, ROWS),
    "swapaxes": (lambda m, x: m.c(m.a(x).swapaxes(0, 1)), linear, ROWS),
    "mT": (lambda m, x: m.c(m.a(x).mT.mT), linear, ROWS),
    "detach": (lambda m, x: m.c(m.a(x).detach()), conv, IMAGES),
    "tile": (lambda m, x: m.c(m.a(x).tile(2, 1, 1)), linear, ROWS),
    "repeat_interleave": (
        lambda m, x: m.c(m.a(x)[:, :12].repeat_interleave(2, 1)),
        conv,
        IMAGES,
    ),
    "squeeze": (lambda m, x: m.c(m.a(x)[:, None, :, None].squeeze((1, 3))), linear, ROWS),
    "steps": (lambda m, x: m.c(m.a(x)[:, :, ::2, 1:]), conv, IMAGES),
    "shuffle": (
        lambda m, x: m.c(
            torch.stack(m.a(x).chunk(2, 1), 2).flatten(1, 2),
        ),
        conv,
        IMAGES,
    ),
}


def _model_of(name: str) -> tuple[nn.Module, tuple[int, ...]]:
    torch.manual_seed(5)
    if name == "squeeze and excite":
        return Excited().eval(), IMAGES
    f, make, sizes = BETWEEN[name]
    return Around(f, make).eval(), sizes


def _quantized(model: nn.Module, sizes: tuple[int, ...], **options: Any) -> Any:
    data = [torch.randn(sizes) for _ in range(4)]
    return frametap.quantize(model, data, progress=False, **options), data


def _check(model: nn.Module, sizes: tuple[int, ...], decibels: float = 25, **options: Any) -> Any:
    """All is int8, near the model, and within a step of the reference graph at the end."""
    quantized, data = _quantized(model, sizes, **options)
    rows = [(row["op"], row["reason"]) for row in quantized.report if row["decision"] == "float"]
    assert rows == []
    assert "not lowered" not in quantized.report_text()
    assert "dequantize" not in str(graphs_of(quantized).lowered)
    with torch.no_grad():
        for x in [*data, torch.randn(1, *sizes[1:]), torch.randn(sizes) * 3]:
            want, got = model(x), quantized(x)
            assert want.shape == got.shape
            if x is data[0]:
                noise = (want - got).square().mean()
                assert 10 * torch.log10(want.square().mean() / noise) > least(decibels)
    return quantized


@pytest.mark.parametrize("make", [conv, linear])
@pytest.mark.parametrize("name", CURVES)
def test_a_curve_is_part_of_the_kernel_before_it(
    name: str, make: Callable[[int, int], nn.Module]
) -> None:
    torch.manual_seed(5)
    model = Around(lambda m, x: m.c(CURVES[name](m.a(x))), make).eval()
    quantized = _check(model, IMAGES if make is conv else ROWS)
    [row] = [row for row in quantized.report if row["op"].split(".")[1] not in ("conv2d", "linear")]
    assert row["reason"].startswith("computed inside")


@pytest.mark.parametrize("make", [conv, linear])
@pytest.mark.parametrize("name", TABLES)
def test_a_curve_on_its_own_is_a_table(name: str, make: Callable[[int, int], nn.Module]) -> None:
    torch.manual_seed(5)
    model = Around(lambda m, x: m.c(TABLES[name](m.a(x) * m.b(x))), make).eval()
    quantized = _check(model, IMAGES if make is conv else ROWS)
    assert [row["reason"] for row in quantized.report].count("int8 curve, read from a table") == 1


@pytest.mark.parametrize("name", [*BETWEEN, "squeeze and excite"])
def test_pieces_sums_and_products_are_int8(name: str) -> None:
    _check(*_model_of(name))


@pytest.mark.parametrize("name", ["gated by channel", "gated by row", "outer", "glu"])
def test_sizes_may_differ_from_calibration(name: str) -> None:
    model, sizes = _model_of(name)
    quantized, _ = _quantized(model, sizes)
    with torch.no_grad():
        for batch in (1, 2, 5):
            x = torch.randn(batch, *sizes[1:-1], sizes[-1])
            want, got = model(x), quantized(x)
            assert (want - got).abs().max() < 0.25 * want.abs().max()


def test_a_piece_that_is_written_stays_right() -> None:
    def f(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        first, second = y.chunk(2, 1)
        first.mul_(2)
        return m.c(m.b(x)) + y.sum() + second.mean()

    torch.manual_seed(5)
    model = Around(f, conv).eval()
    quantized, data = _quantized(model, IMAGES)
    with torch.no_grad():
        want, got = model(data[0]), quantized(data[0])
    assert sqnr(want, got) > 25


def _random_bytes(sizes: tuple[int, ...], form: int) -> Tensor:
    q = torch.randint(0, 256, sizes, dtype=torch.uint8)
    if form == 1 and len(sizes) == 4:
        return q.contiguous(memory_format=torch.channels_last)
    return q.transpose(0, -1).contiguous().transpose(0, -1) if form == 2 else q


@pytest.mark.parametrize("seed", range(60))
def test_kernels_broadcast_as_torch_does(seed: int) -> None:
    torch.manual_seed(seed)
    rank = int(torch.randint(0, 6, ()))
    sizes = torch.randint(1, 40 if rank < 3 else 9, (rank,)).tolist()
    operands = []
    for _ in range(2):
        own = [size if torch.rand(()) < 0.6 else 1 for size in sizes]
        own = own[int(torch.randint(0, rank + 1, ())) :] if torch.rand(()) < 0.3 else own
        operands.append(_random_bytes(tuple(own), int(torch.randint(0, 3, ()))))
    a, b = operands
    ops = torch.ops.frametap
    x, y = (ops.dequantize_per_tensor(a, 0.1, 30), ops.dequantize_per_tensor(b, 0.05, 100))
    total = ops.qadd(a, 0.1, 30, b, 0.05, 100, 0.3, 90, 0, 255, False)
    product = ops.qmul(a, 30, b, 100, 0.1 * 0.05, 0.4, 80, 0, 255)
    for want, got in (
        (ops.quantize_per_tensor(x + y, 0.3, 90, 0, 255, torch.uint8), total),
        (ops.quantize_per_tensor(x * y, 0.4, 80, 0, 255, torch.uint8), product),
    ):
        assert want.shape == got.shape
        assert (want.int() - got.int()).abs().max() <= 1
    table = torch.randint(0, 256, (256,), dtype=torch.uint8)
    assert torch.equal(ops.qcurve(a, table), table[a.long()])


@pytest.mark.parametrize("sizes", [(1, 3), (2, 16), (1, 17), (3, 64), (0, 4), (2, 1)])
@pytest.mark.parametrize("image", [(1,), (33,), (5, 7), (16, 16), (2, 3, 4)])
def test_images_become_contiguous(sizes: tuple[int, int], image: tuple[int, ...]) -> None:
    x = torch.randn(sizes[0], *image, sizes[1]).movedim(-1, 1)
    got = torch.ops.frametap.planes(x)
    assert torch.equal(got, x)
    assert got.is_contiguous()
    kept = torch.randn(2, 3, 4)
    assert torch.ops.frametap.planes(kept).data_ptr() == kept.data_ptr()
    assert torch.equal(torch.ops.frametap.planes(x[:, :1]), x[:, :1])
