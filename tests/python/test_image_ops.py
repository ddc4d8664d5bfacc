"""Our kernels for images that lie pixel by pixel give torch's results. pools/P2, resample/B2, concatenate.h, pixels.h."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap
from fixtures.quantized import sqnr
from fixtures.subject import needs_capture
from frametap import _C

pytestmark = needs_capture

DTYPES = [torch.uint8, torch.float32, torch.bfloat16]
LAYOUTS = [torch.contiguous_format, torch.channels_last]
CHANNELS = [1, 3, 16, 31, 32, 33, 70]  # below, at and above the size of a vector


@pytest.fixture(scope="module", autouse=True)
def _operators() -> None:
    """Quantizing registers the operators."""
    _C.quant_full_range()
    frametap.freeze(nn.Linear(2, 2), [torch.randn(1, 2)])


def images(*sizes: int, dtype: torch.dtype, layout: torch.memory_format) -> Tensor:
    x = torch.randint(0, 256, sizes).to(dtype)
    if dtype.is_floating_point:
        x = torch.randn(sizes).to(dtype)
    return x.contiguous(memory_format=layout)


def same(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.nan_to_num())


def pools() -> list[dict[str, Any]]:
    """Returns all windows that torch takes."""
    all_of = itertools.product((1, 2, (3, 2)), ([], [1], [3, 2]), (0, 1), (1, 2), (False, True))
    made = []
    for kernel, stride, padding, dilation, ceil_mode in all_of:
        both = (kernel, kernel) if isinstance(kernel, int) else kernel
        if 2 * padding <= min(both):
            made.append(
                {
                    "kernel_size": list(both),
                    "stride": stride * 2 if len(stride) == 1 else stride,
                    "padding": [padding] * 2,
                    "dilation": [dilation] * 2,
                    "ceil_mode": ceil_mode,
                }
            )
    return made


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_max_pools(dtype: torch.dtype, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    for window, channels in zip(pools() * 3, itertools.cycle(CHANNELS)):
        x = images(2, channels, 9, 8, dtype=dtype, layout=layout)
        if dtype.is_floating_point:
            x[torch.rand_like(x.float()) < 0.05] = math.nan
            x[torch.rand_like(x.float()) < 0.05] = -math.nan
            x[torch.rand_like(x.float()) < 0.2] = -math.inf
        want = F.max_pool2d(x, **window)
        same(torch.ops.frametap.max_pool2d(x, **window), want)
        same(torch.ops.frametap.max_pool2d(x[0], **window), want[0])


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_means(dtype: torch.dtype, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    sizes = [[1, 1], [3, 2], [9, 8], [11, 3]]
    for size, channels in itertools.product(sizes, CHANNELS):
        x = images(2, channels, 9, 8, dtype=dtype, layout=layout)
        x[0, 0, 0, 0] = math.nan
        want = F.adaptive_avg_pool2d(x.double(), size)
        got = torch.ops.frametap.adaptive_avg_pool2d(x, size)
        assert got.dtype == dtype
        step = 1e-6 if dtype == torch.float32 else 0.01
        torch.testing.assert_close(got.double(), want, rtol=step, atol=step, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5])
def test_pixels(dtype: torch.dtype, channels: int) -> None:
    """Rows of a pixel, of less and more than a tile, and of parts of images."""
    torch.manual_seed(0)
    for height, width in ((1, 1), (1, 2), (2, 3), (3, 128), (2, 131), (1, 300)):
        whole = torch.randn(3, channels + 1, height, width + 2)
        for x in (
            whole[:, 1:, :, 2:].contiguous(),
            whole[:, 1:, :, 2:],
            whole[:, 1:, :, 2:].contiguous(memory_format=torch.channels_last),
            whole[:0, 1:],
        ):
            got = torch.ops.frametap.pixels(x, dtype)
            assert torch.equal(got, x.to(dtype))
            assert got.is_contiguous(memory_format=torch.channels_last)
    assert torch.ops.frametap.pixels(torch.full((1, 3, 2, 2), math.nan), dtype).isnan().all()


def test_a_window_without_elements_gives_minus_infinity() -> None:
    x = images(1, 20, 1, 1, dtype=torch.float32, layout=torch.channels_last)
    window = {"kernel_size": [2, 2], "stride": [1, 1], "padding": [1, 1], "dilation": [2, 2]}
    same(
        torch.ops.frametap.max_pool2d(x, **window, ceil_mode=False),
        F.max_pool2d(x, **window),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_concatenations(dtype: torch.dtype, layout: torch.memory_format) -> None:
    random.seed(0)
    for rank, parts in itertools.product((1, 2, 3, 4, 5), (1, 2, 3)):
        for dim in range(-rank, rank):
            sizes = [random.choice((1, 2, 5)) for _ in range(rank)]
            tensors = []
            for _ in range(parts):
                sizes[dim] = random.choice((1, 8, 17, 64, 65, 300, 0))
                layout_of_one = layout if rank == 4 else torch.contiguous_format
                tensors.append(images(*sizes, dtype=dtype, layout=layout_of_one))
            want = torch.cat(tensors, dim)
            got = torch.ops.frametap.cat(tensors, dim)
            same(got, want)
            assert got.data_ptr() not in [x.data_ptr() for x in tensors] or got.numel() == 0
            # Strides of a part with a dimension of 0 or 1 have both layouts.
            if rank == 4 and all(min(x.shape) > 1 for x in tensors):
                assert got.stride() == want.stride()


def test_concatenations_that_are_torch_s() -> None:
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last)
    for tensors in (
        [a, b],  # two layouts
        [a, torch.empty(0)],  # torch passes these by
        [a, torch.randn(2, 3, 4, 5, dtype=torch.float64)],  # two types
        [a.transpose(2, 3), b.transpose(2, 3)],
    ):
        same(torch.ops.frametap.cat(tensors, 1), torch.cat(tensors, 1))
    for wrong in ([a, torch.randn(2, 3, 4, 6)], [a[0], a]):
        with pytest.raises((RuntimeError, ValueError)) as want:
            torch.cat(wrong, 1)
        with pytest.raises(type(want.value)) as got:
            torch.ops.frametap.cat(wrong, 1)
        assert str(got.value) == str(want.value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("align_corners", [False, True])
def test_bilinear_interpolation(
    dtype: torch.dtype, layout: torch.memory_format, align_corners: bool
) -> None:
    torch.manual_seed(0)
    sizes = [([7, 16], None), ([3, 2], None), (None, [2.0, 2.0]), (None, [1.7, 0.6])]
    for (size, factors), channels in itertools.product(sizes, CHANNELS):
        x = images(2, channels, 5, 8, dtype=dtype, layout=layout)
        got = torch.ops.frametap.upsample_bilinear2d(x, size, align_corners, factors)
        exact = torch.ops.aten.upsample_bilinear2d.vec(x.double(), size, align_corners, factors)
        assert got.dtype == dtype
        assert got.shape == exact.shape
        step = {torch.uint8: 0.51, torch.float32: 3e-6, torch.bfloat16: 0.02}[dtype]
        assert (got.double() - exact).abs().max() < step


def test_interpolation_of_nan_and_infinity() -> None:
    for value in (math.nan, math.inf):
        x = images(1, 33, 4, 4, dtype=torch.bfloat16, layout=torch.channels_last)
        x[0, :, 1, 2] = value
        got = torch.ops.frametap.upsample_bilinear2d(x, None, False, [2.0, 2.0])
        want = F.interpolate(x.float(), scale_factor=2, mode="bilinear")
        assert torch.equal(got.isfinite(), want.isfinite())


def test_arguments_that_torch_refuses() -> None:
    x = images(1, 4, 3, 3, dtype=torch.float32, layout=torch.channels_last)
    with pytest.raises(RuntimeError, match="greater than 0"):
        torch.ops.frametap.upsample_bilinear2d(x, [0, 3], False, None)
    with pytest.raises(RuntimeError, match="larger than its input"):
        torch.ops.frametap.max_pool2d(x, [5, 5], [], [0, 0], [1, 1], False)


class Around(nn.Module):
    def __init__(self, op: Callable[[Tensor, Tensor], Tensor], channels: int) -> None:
        super().__init__()
        self.op = op
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Conv2d(channels, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.op(self.first(x), self.second(x)))


PROGRAMS: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor], int]] = {
    "pool": ("frametap.max_pool2d", lambda a, b: F.max_pool2d(a, 3, 2, 1), 8),
    "mean": ("frametap.adaptive_avg_pool2d", lambda a, b: F.adaptive_avg_pool2d(a, (2, 3)), 8),
    "cat": ("frametap.cat", lambda a, b: torch.cat([a, b], 1), 16),
    "bilinear": (
        "frametap.upsample_bilinear2d",
        lambda a, b: F.interpolate(a, scale_factor=2, mode="bilinear"),
        8,
    ),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_frozen_models_use_them(name: str, dtype: torch.dtype) -> None:
    op, function, channels = PROGRAMS[name]
    torch.manual_seed(0)
    model = Around(function, channels).eval()
    x = torch.randn(2, 3, 10, 12)
    frozen = frametap.freeze(model, [x], dtype=dtype)
    with torch.no_grad():
        for given in (x, torch.randn(1, 3, 8, 6), x.to(memory_format=torch.channels_last)):
            want, got = model(given), frozen(given)
            assert sqnr(want, got) > (100 if dtype == torch.float32 else 40)
            assert got.stride() == want.stride()
    graph = str(_C.freeze_of(frametap.segments(frozen)[0].executable)["graph"])
    assert op in graph
    assert graph.count("frametap.pixels") == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 3, 4, 5])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_convolutions_of_few_channels(
    dtype: torch.dtype, channels: int, is_transposed: bool
) -> None:
    kind = nn.ConvTranspose2d if is_transposed else nn.Conv2d
    model = kind(channels, 8, 3).eval()
    frozen = frametap.freeze(model, [torch.randn(1, channels, 8, 8)], dtype=dtype)
    with torch.no_grad():
        for x in (
            torch.randn(1, channels, 8, 8),
            torch.randn(2, channels, 5, 140).to(memory_format=torch.channels_last),
            torch.randn(2, channels, 12, 9)[:, :, ::2],
            torch.randn(channels, 6, 7),
        ):
            want, got = model(x), frozen(x)
            assert sqnr(want, got) > 40
            assert got.stride() == want.stride()


@pytest.mark.parametrize("kernel", [3, 5, (1, 3)])
@pytest.mark.parametrize("stride", [1, 2, (3, 1)])
def test_depthwise_convolutions_in_bfloat16(kernel: Any, stride: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(5, 40, 1),
        nn.Conv2d(40, 40, kernel, stride, padding=1, groups=40),
        nn.BatchNorm2d(40),
        nn.ReLU6(),
        nn.Conv2d(40, 6, 1),
    ).eval()
    frozen = frametap.freeze(model, [torch.randn(2, 5, 16, 16)], dtype=torch.bfloat16)
    with torch.no_grad():
        for sizes in ((2, 5, 16, 16), (1, 5, 9, 31), (0, 5, 8, 8)):
            x = torch.randn(sizes)
            want, got = model(x), frozen(x)
            assert (got.shape, got.stride()) == (want.shape, want.stride())
            assert (want - got).square().sum() <= 1e-4 * want.square().sum()
