"""Products with a frozen weight in every spelling, and ops on bytes between layers: no op is left in float."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import frametap
from fixtures.quantized import least, sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture


class Product(nn.Module):
    def __init__(
        self, product: Callable[[Tensor, Tensor, Tensor], Tensor], rows: int, columns: int
    ) -> None:
        super().__init__()
        self.product = product
        self.weight = nn.Parameter(torch.randn(rows, columns) * 0.2)
        self.bias = nn.Parameter(torch.randn(8))
        self.first = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(self.first(x), self.weight, self.bias)


class Between(nn.Module):
    """An op between two convolutions, or between two convolutions and a third."""

    def __init__(self, op: Callable[..., Tensor], inputs: int, channels: int = 8) -> None:
        super().__init__()
        self.op = op
        self.first = nn.ModuleList(nn.Conv2d(3, 8, 3, padding=1) for _ in range(inputs))
        self.last = nn.Conv2d(channels, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.first) == 1:
            return self.last(self.op(self.first[0](x)))
        return self.last(self.op(self.first[0](x), self.first[1](x).relu()))


def _check(model: nn.Module, *sizes: int) -> frametap.QuantizedModel:
    torch.manual_seed(5)
    data = [torch.randn(sizes) for _ in range(4)]
    quantized = frametap.quantize(model.eval(), data, progress=False)
    assert [
        (row["op"], row["reason"]) for row in quantized.report if row["decision"] == "float"
    ] == []
    assert "not lowered" not in quantized.report_text()
    assert quantized.sqnr > least(30)
    with torch.no_grad():
        want, got = model(data[0]), quantized(data[0])
    assert want.shape == got.shape
    assert sqnr(want, got) > least(30)
    return quantized


PRODUCTS: dict[
    str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], tuple[int, int], tuple[int, ...]]
] = {
    "matmul": (lambda x, w, b: x @ w.t(), (8, 16), (2, 5, 16)),
    "matmul mT": (lambda x, w, b: torch.matmul(x, w.mT), (8, 16), (2, 5, 16)),
    "mm": (lambda x, w, b: torch.mm(x, w), (16, 8), (5, 16)),
    "addmm": (lambda x, w, b: torch.addmm(b, x, w), (16, 8), (5, 16)),
    "addmm with factors": (
        lambda x, w, b: torch.addmm(b, x, w, beta=0.5, alpha=2),
        (16, 8),
        (5, 16),
    ),
    "einsum": (lambda x, w, b: torch.einsum("bsi,oi->bso", x, w), (8, 16), (2, 5, 16)),
    "einsum transposed": (
        lambda x, w, b: torch.einsum("bsi, io -> bso", x, w),
        (16, 8),
        (2, 5, 16),
    ),
    "einsum with dots": (lambda x, w, b: torch.einsum("...i,oi->...o", x, w), (8, 16), (2, 5, 16)),
    "einsum, weight first": (lambda x, w, b: torch.einsum("oi,bi->bo", w, x), (8, 16), (5, 16)),
    "bmm": (lambda x, w, b: torch.bmm(x, w.expand(2, 16, 8)), (16, 8), (2, 5, 16)),
    "part of a weight": (lambda x, w, b: F.linear(x, w[:4], b[:4]), (8, 16), (5, 16)),
    "rows of a weight": (
        lambda x, w, b: F.linear(x, w[torch.tensor([1, 0, 5, 3])]),
        (8, 16),
        (5, 16),
    ),
    "weights in one": (
        lambda x, w, b: F.linear(x, torch.cat([w, -w]), torch.cat((b, b))).relu(),
        (8, 16),
        (5, 16),
    ),
    "weight with small elements left out": (
        lambda x, w, b: F.linear(x, torch.where(w.abs() > 0.1, w, 0.0), b),
        (8, 16),
        (5, 16),
    ),
    "weight that is standardised": (
        lambda x, w, b: F.linear(x, (w - (s := torch.std_mean(w, 1, keepdim=True))[1]) / s[0], b),
        (8, 16),
        (5, 16),
    ),
    "weight beside the identity": (
        lambda x, w, b: F.linear(x, w + 0.5 * torch.eye(16)),
        (16, 16),
        (5, 16),
    ),
    "weight times a factor": (lambda x, w, b: F.linear(x, w * 0.5, b), (8, 16), (5, 16)),
    "used twice": (lambda x, w, b: F.linear(F.linear(x, w).relu(), w), (16, 16), (5, 16)),
    "tied": (lambda x, w, b: F.linear(x, w).relu() @ w, (16, 16), (5, 16)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_with_a_weight_is_int8(name: str) -> None:
    product, shape, sizes = PRODUCTS[name]
    _check(Product(product, *shape), *sizes)


def test_a_product_that_is_not_one_with_a_matrix_keeps_its_value() -> None:
    for equation, sizes in (("bi,oi->b", (5, 16)), ("bi,bi->bi", (8, 16)), ("bi,oi->o", (5, 16))):
        model = Product(lambda x, w, b, e=equation: torch.einsum(e, x, w), 8, 16).eval()
        data = [torch.randn(sizes) for _ in range(3)]
        quantized = frametap.quantize(model, data, progress=False)
        [row] = [row for row in quantized.report if row["op"] == "aten.einsum"]
        assert row["decision"] == "float"
        assert "frozen matrix" in row["reason"]
        assert quantized.sqnr > 30


@pytest.mark.parametrize(
    "product", [lambda x, w, b: x @ w[0], lambda x, w, b: w @ x.mT, lambda x, w, b: x @ x.mT]
)
def test_the_reason_fits_each_product_in_float(
    product: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    model = Product(lambda x, w, b: product(F.linear(x, w), w, b), 16, 16).eval()
    quantized = frametap.quantize(model, [torch.randn(2, 5, 16)], progress=False)
    [row] = [row for row in quantized.report if row["op"] == "aten.matmul"]
    assert row["reason"].startswith("only the product of an activation and a frozen matrix")


def test_norms_of_weights_are_computed_once() -> None:
    def model() -> nn.Module:
        return nn.Sequential(
            parametrizations.weight_norm(nn.Linear(16, 8)),
            nn.ReLU(),
            parametrizations.spectral_norm(nn.Linear(8, 8)),
            parametrizations.orthogonal(nn.Linear(8, 6)),
        )

    _check(model(), 5, 16)


BETWEEN: dict[str, tuple[Callable[..., Tensor], int, int]] = {
    "nearest": (lambda y: F.interpolate(y, scale_factor=2), 1, 8),
    "bilinear": (lambda y: F.interpolate(y, scale_factor=2, mode="bilinear"), 1, 8),
    "bilinear, corners": (
        lambda y: F.interpolate(y, (11, 5), mode="bilinear", align_corners=True),
        1,
        8,
    ),
    "bilinear, to a size": (lambda y: F.interpolate(y, (5, 13), mode="bilinear"), 1, 8),
    "bilinear by parts": (
        lambda y: F.interpolate(y, scale_factor=(1.3, 2.6), mode="bilinear"),
        1,
        8,
    ),
    "pad": (lambda y: F.pad(y, (1, 2, 0, 1)), 1, 8),
    "reflect": (lambda y: F.pad(y, (1, 1, 1, 1), mode="reflect"), 1, 8),
    "replicate": (lambda y: F.pad(y, (1, 1, 1, 1), mode="replicate"), 1, 8),
    "circular": (lambda y: F.pad(y, (1, 1, 1, 1), mode="circular"), 1, 8),
    "flip": (lambda y: y.flip(-1), 1, 8),
    "roll": (lambda y: y.roll(1, -1), 1, 8),
    "pixel_shuffle": (lambda y: F.pixel_unshuffle(F.pixel_shuffle(y, 2), 2), 1, 8),
    "repeat": (lambda y: y.repeat(1, 2, 1, 1), 1, 16),
    "sub": (lambda a, b: a - b, 2, 8),
    "sub and relu": (lambda a, b: (b - a).relu(), 2, 8),
    "add with a factor": (lambda a, b: torch.add(a, b, alpha=0.5), 2, 8),
    "sub with a factor": (lambda a, b: torch.sub(a, b, alpha=2), 2, 8),
    "mul": (lambda a, b: a * b, 2, 8),
    "stack": (lambda a, b: torch.stack([a, b], 2).flatten(1, 2), 2, 16),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_an_op_between_convolutions_runs_on_bytes(name: str) -> None:
    op, inputs, channels = BETWEEN[name]
    _check(Between(op, inputs, channels), 2, 3, 8, 8)


def test_padding_with_a_number_is_float_and_exact() -> None:
    model = Between(lambda y: F.pad(y, (1, 1, 1, 1), value=3.0), 1).eval()
    quantized = frametap.quantize(
        model, [torch.randn(2, 3, 8, 8) for _ in range(3)], progress=False
    )
    [row] = [row for row in quantized.report if row["op"] == "aten.pad"]
    assert "another value than zero" in row["reason"]
    assert quantized.sqnr > 30


def test_ops_on_constant_zeros_keep_their_meaning() -> None:
    """Two dead features have the same parameters by chance; only the annotation may join ops on bytes."""

    def dead(y: Tensor) -> Tensor:
        return (y.relu() * 0).mean(1, keepdim=True) + F.pad(
            y.clamp(max=0).relu()[..., 2:], (1, 1), value=0.5
        )

    model = Between(dead, 1).eval()
    quantized = frametap.quantize(
        model, [torch.randn(2, 3, 8, 8) for _ in range(3)], progress=False
    )
    assert quantized.sqnr > 30
