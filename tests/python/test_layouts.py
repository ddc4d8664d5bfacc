"""layouts/U1 to U3: images that frozen and int8 models give, or look at as views, have the strides that the program gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap
from fixtures.subject import needs_capture

pytestmark = needs_capture

LAST = torch.channels_last


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.up = nn.BatchNorm2d(8), nn.ConvTranspose2d(8, 6, 2, stride=2, groups=2)
        self.narrow, self.wide = nn.Conv2d(8, 1, 1), nn.Conv2d(8, 8, 3, dilation=2, groups=8)
        self.head = nn.Linear(8, 4)


def _images(m: Any, x: Tensor) -> list[Tensor]:
    h = F.relu(m.first(x))
    y = m.norm(m.second(h))
    return [
        h,
        y,
        m.up(y),
        m.narrow(y),
        m.wide(y),
        F.max_pool2d(y, 2),
        F.interpolate(y, scale_factor=2),
    ]


def _sums(m: Any, x: Tensor) -> list[Tensor]:
    h = m.first(x)
    y = m.second(h)
    return [h + y, y * 0.5 + x[:, :1], torch.cat([h, y], 1), (x[:, :1] + y).sigmoid(), y / h.exp()]


def _one_pixel(m: Any, x: Tensor) -> list[Tensor]:
    h = F.relu(m.first(x))
    return [
        F.avg_pool2d(h, 8),
        F.adaptive_avg_pool2d(m.second(h), 1),
        m.second(h).mean((2, 3), keepdim=True),
    ]


def _views(m: Any, x: Tensor) -> list[Tensor]:
    y = m.second(F.relu(m.first(x)))
    return [y.permute(0, 2, 3, 1), y[:, 1:5], y.flatten(2), y.transpose(1, 2), y[0], y.unbind(1)[1]]


def _moved_to_last(m: Any, x: Tensor) -> Tensor:
    y = m.second(F.relu(m.first(x))).permute(0, 2, 3, 1)
    if y.is_contiguous():
        y = y.view(-1, 8)
    return m.head(y).log_softmax(-1)


def _from_last(m: Any, x: Tensor) -> list[Tensor]:
    y = m.first(x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))
    return [y, m.head(y.permute(0, 2, 3, 1)).softmax(-1)]


PROGRAMS: dict[str, Callable[[Any, Tensor], Any]] = {
    "images": _images,
    "sums": _sums,
    "one pixel": _one_pixel,
    "views": _views,
    "moved to last": _moved_to_last,
    "from last": _from_last,
}


class Program(Net):
    def __init__(self, f: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Any:
        return self.f(self, x)


def _compare(want: Any, got: Any, least: float) -> None:
    for a, b in zip(*([t] if isinstance(t, Tensor) else t for t in (want, got)), strict=True):
        assert a.stride() == b.stride(), (tuple(a.shape), a.stride(), b.stride())
        noise = (a - b).square().mean()
        assert noise == 0 or float(10 * torch.log10(a.square().mean() / noise)) > least


@pytest.mark.parametrize("weights_last", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", ["freeze", "int8"])
def test_strides_of_images(kind: str, name: str, weights_last: bool) -> None:
    torch.manual_seed(0)
    model = Program(PROGRAMS[name]).eval()
    if weights_last:
        model.to(memory_format=LAST)
    data = [torch.randn(2, 3, 8, 8) for _ in range(3)]
    data.append(data[0].contiguous(memory_format=LAST))
    made = (
        frametap.freeze(model, data)
        if kind == "freeze"
        else frametap.quantize(model, data, progress=False)
    )
    with torch.no_grad():
        for x in (*data, torch.randn(1, 3, 8, 8), torch.randn(1, 3, 8, 8).to(memory_format=LAST)):
            _compare(model(x), made(x), 100 if kind == "freeze" else 25)


@pytest.mark.parametrize("kind", ["freeze", "int8"])
def test_images_of_three_dimensions(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU(), nn.Conv3d(4, 4, 1), nn.AvgPool3d(2)).eval()
    data = [torch.randn(2, 2, 6, 6, 6) for _ in range(3)]
    data.append(data[0].contiguous(memory_format=torch.channels_last_3d))
    made = (
        frametap.freeze(model, data)
        if kind == "freeze"
        else frametap.quantize(model, data, progress=False)
    )
    with torch.no_grad():
        for x in data:
            _compare(model(x), made(x), 100 if kind == "freeze" else 25)
