"""NaN and infinity in frozen models. backends/freeze/finite.h: finite/N1 and finite/N2."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frametap
from fixtures.subject import needs_capture
from frametap import _C

pytestmark = needs_capture

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
SPECIAL = [math.nan, math.inf, -math.inf]
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(32, 24), (4, 32)),
    "conv": (lambda: nn.Conv2d(3, 16, 3), (2, 3, 8, 8)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 16, 3), (2, 3, 8, 8)),
    "normed": (lambda: nn.Sequential(nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8)), (2, 6, 9)),
}
CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda y: y,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": F.hardtanh,
    "no slope": lambda y: F.leaky_relu(y, 0.0),
    "slope": F.leaky_relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "tanh": torch.tanh,
    "clamp": lambda y: y.clamp(min=0),
}


class Then(nn.Module):
    def __init__(self, layer: nn.Module, f: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.layer, self.f = layer, f

    def forward(self, *args: Any) -> Any:
        return self.f(self.layer, *args)


def _same(want: Tensor, got: Tensor, tolerance: float = 1e-4) -> None:
    """NaN and infinity stand at the same places; other elements are equal up to rounding."""
    assert torch.equal(want.isnan(), got.isnan())
    assert torch.equal(want.isinf(), got.isinf())
    finite = want.isfinite()
    torch.testing.assert_close(got[finite], want[finite], rtol=tolerance, atol=tolerance)


@BOTH
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("layer", LAYERS)
def test_n1_nan_and_infinity_of_inputs_come_through(
    layer: str, curve: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(1)
    make, shape = LAYERS[layer]
    model = Then(make(), lambda layer, x: CURVES[curve](layer(x))).eval()
    x = torch.randn(shape)
    frozen = frametap.freeze(model, [x], dtype=dtype)
    for special in SPECIAL:
        x = torch.randn(shape)
        x.view(-1)[5] = special
        with torch.no_grad():
            _same(model(x), frozen(x), 1e-4 if dtype is torch.float32 else 3e-2)
    segments = len(frametap.segments(frozen._frametap))
    assert segments == 1, "the graph stays, and is used for finite inputs"


def test_n1_a_view_of_infinite_memory_and_other_layouts() -> None:
    model = Then(nn.Linear(8, 8), lambda layer, x: F.relu(layer(x))).eval()
    frozen = frametap.freeze(model, [torch.randn(4, 8)])
    wide = torch.randn(4, 16)
    wide[0, 9] = math.nan
    for x in (wide[:, ::2], wide[:, 1::2], wide[:, :8], wide[:, 8:], wide.t()[:8].t()):
        with torch.no_grad():
            _same(model(x), frozen(x))


def test_n1_under_torch_compile() -> None:
    model = Then(nn.Linear(8, 8), lambda layer, x: F.relu(layer(x))).eval()
    compiled = torch.compile(model, backend="frametap", options={"freeze": True})
    with torch.no_grad():
        for special in [0.0, 0.0, *SPECIAL, 0.0]:
            x = torch.randn(4, 8)
            x[1, 2] = special
            _same(model(x), compiled(x))


def _masked(layer: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    scores = (x @ x.transpose(-1, -2)) / 4 + mask
    return F.relu(layer(scores.softmax(-1) @ x))


INSIDE: dict[str, tuple[Callable[..., Tensor], Callable[[], list[tuple[Tensor, ...]]]]] = {
    "log": (
        lambda layer, x: F.relu(layer(x.log())),
        lambda: [(torch.rand(4, 8) + 1,), (torch.randn(4, 8),)],
    ),
    "quotient": (
        lambda layer, x: F.relu(layer(x / x.sum(-1, keepdim=True))),
        lambda: [(torch.rand(4, 8),), (torch.zeros(4, 8),)],
    ),
    "two layers later": (
        lambda layer, x: F.relu6(layer(F.gelu(layer(x.sqrt())))),
        lambda: [(torch.rand(4, 8),), (torch.randn(4, 8),)],
    ),
    "sum": (
        lambda layer, x: F.relu(layer(x) + x.log()),
        lambda: [(torch.rand(4, 8) + 1,), (torch.randn(4, 8),)],
    ),
    "written": (
        lambda layer, x: F.relu(layer((x * 2).log_())),
        lambda: [(torch.rand(4, 8) + 1,), (torch.randn(4, 8),)],
    ),
    "hidden rows": (
        _masked,
        lambda: [
            (torch.randn(4, 8), torch.zeros(4, 4)),
            (torch.randn(4, 8), torch.zeros(4, 4).index_fill(0, torch.tensor([1]), -math.inf)),
        ],
    ),
}


@BOTH
@pytest.mark.parametrize("name", INSIDE)
def test_n2_nan_that_ops_make_comes_through(name: str, dtype: torch.dtype) -> None:
    f, data = INSIDE[name]
    model = Then(nn.Linear(8, 8), f).eval()
    calls = data()
    frozen = frametap.freeze(model, [copy.deepcopy(calls[0])], dtype=dtype)
    for args in calls:
        with torch.no_grad():
            want, got = model(*args), frozen(*args)
        assert torch.equal(want.isnan(), got.isnan())
    assert want.isnan().any(), "the case is of use"


def test_n1_a_mask_runs_in_kernels() -> None:
    """Minus infinity in a mask sends no call to the recorded ops, whose results differ by rounding."""
    model = Then(
        nn.Linear(64, 64), lambda layer, x, mask: F.relu(layer(x)) + (x + mask).softmax(-1)
    ).eval()
    x, mask = torch.randn(64, 64), torch.zeros(64, 64)
    frozen = frametap.freeze(model, [(x, mask)], dtype=torch.bfloat16)
    hidden = mask.clone()
    hidden[:, 3] = -math.inf
    frozen(x, mask), frozen(x, hidden)
    with torch.no_grad():
        rounded = (frozen(x, hidden) - model(x, hidden)).abs().max()
    if _C.bfloat16_products():
        assert rounded > 1e-4, "products of bfloat16"


def test_weights_that_are_not_finite() -> None:
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        layer.weight[2, 3] = math.nan
        layer.bias[4] = math.inf
    model = Then(layer, lambda layer, x: F.relu(layer(x))).eval()
    frozen = frametap.freeze(model, [torch.randn(4, 8)])
    x = torch.randn(4, 8)
    with torch.no_grad():
        _same(model(x), frozen(x))
