"""Kernels of our own share the rows of a tensor among torch's threads, and give what one thread gives. quant/operators.h"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.subject import needs_capture
from frametap import _C

pytestmark = needs_capture


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def images(channels: int = 48, size: int = 61) -> Tensor:
    return torch.randn(2, channels, size, size).contiguous(memory_format=torch.channels_last)


def byte_images(channels: int = 48, size: int = 61) -> Tensor:
    like = images(channels, size)
    return (
        torch.randint(0, 256, like.shape)
        .to(torch.uint8)
        .contiguous(memory_format=torch.channels_last)
    )


def rows(count: int = 1400, width: int = 96) -> Tensor:
    return torch.randn(count, width)


RANGE = (0.02, 120, 0, 255)
NORM = ([96], torch.rand(96), torch.rand(96), 1e-5)

# Arguments that are larger than what one thread takes.
CALLS: dict[str, Callable[[Any], Any]] = {
    "quantize": lambda f: f.quantize_per_tensor(rows(), *RANGE, torch.uint8),
    "quantize bfloat16": lambda f: f.quantize_per_tensor(rows().bfloat16(), *RANGE, torch.uint8),
    "quantize images": lambda f: f.quantize_per_tensor_channels_last(
        images().contiguous(), *RANGE, torch.uint8
    ),
    "quantize strided images": lambda f: f.quantize_per_tensor_channels_last(
        images(3, 101).contiguous()[..., :90], *RANGE, torch.uint8
    ),
    "dequantize": lambda f: f.dequantize_per_tensor(byte_images(), 0.02, 7),
    "sum": lambda f: f.qadd(byte_images(), 0.1, 3, byte_images(), 0.2, 9, 0.2, 5, 0, 255, True),
    "broadcast sum": lambda f: f.qadd(
        byte_images(), 0.1, 3, byte_images()[:, :, :1, :1], 0.2, 9, 0.2, 5, 0, 255, False
    ),
    "product": lambda f: f.qmul(byte_images(), 3, byte_images(), 9, 0.01, 0.2, 5, 0, 255),
    "curve": lambda f: f.qcurve(byte_images(), torch.arange(255, -1, -1).to(torch.uint8)),
    "max pool": lambda f: f.max_pool2d(images(), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "max pool of bytes": lambda f: f.max_pool2d(
        byte_images(), [3, 2], [1, 2], [1, 0], [1, 2], True
    ),
    "mean": lambda f: f.qavg_pool2d(
        byte_images(), 0.1, 3, 0.05, 2, 0, 255, [3, 3], [1, 1], [1, 1], False, True, None
    ),
    "adaptive mean": lambda f: f.adaptive_avg_pool2d(images(), [40, 40]),
    "adaptive mean of bytes": lambda f: f.qadaptive_avg_pool2d(
        byte_images(), 0.1, 3, 0.05, 2, 0, 255, [40, 40]
    ),
    "concatenation": lambda f: f.cat([images(), images(16)], 1),
    "concatenation of rows": lambda f: f.cat([rows(), rows(width=10), rows()], 1),
    "interpolation": lambda f: f.upsample_bilinear2d(images(), [90, 77], False, None),
    "interpolation of bytes": lambda f: f.upsample_bilinear2d(byte_images(), [90, 77], True, None),
    "layer norm": lambda f: f.layer_norm(rows(), *NORM, False),
    "layer norm to bytes": lambda f: f.layer_norm_to_bytes(rows(), *NORM, *RANGE),
    "layer norm with bytes": lambda f: f.layer_norm_with_bytes(rows(), *NORM, *RANGE),
    "layer norm with bfloat16": lambda f: f.layer_norm_with_bfloat16(rows(), *NORM, False),
    "planes": lambda f: f.planes(images()),
    "pixels": lambda f: f.pixels(images(3, 200).contiguous(), torch.bfloat16),
    "attention": lambda f: f.bfloat16_attention(
        *(torch.randn(2, 3, 150, 40).bfloat16() for _ in range(3)),
        None,
        0.0,
        True,
        scale=None,
        enable_gqa=False,
    ),
}


def called(name: str, threads: int) -> list[Tensor]:
    torch.manual_seed(11)
    torch.set_num_threads(threads)
    result = CALLS[name](torch.ops.frametap)
    return list(result) if isinstance(result, list | tuple) else [result]


@pytest.mark.parametrize("name", CALLS)
def test_any_number_of_threads_gives_what_one_gives(name: str) -> None:
    frametap.freeze(nn.Linear(2, 2))  # registers the operators
    want = called(name, 1)
    for threads in (2, 3, 7):
        for a, b in zip(want, called(name, threads), strict=True):
            # Without AMX attention is oneDNN's, which may add in another order.
            torch.testing.assert_close(a, b, rtol=0, atol=0.02 if name == "attention" else 0)
            assert a.stride() == b.stride()


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "depthwise": lambda: (nn.Conv2d(48, 48, 3, padding=1, groups=48), images()),
    "tiles": lambda: (nn.ConvTranspose2d(48, 32, 2, stride=2), images()),
    "lstm": lambda: (nn.LSTM(32, 64), torch.randn(5, 200, 32)),
    "dynamic": lambda: (nn.Linear(96, 200), rows()),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_models_with_many_threads(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(12)
    model, x = MODELS[name]()
    model = nn.Sequential(model).eval()
    if dtype is torch.int8:
        made: Any = frametap.quantize(
            model, [x], scheme="dynamic" if name == "dynamic" else "static", progress=False
        )
    else:
        made = frametap.freeze(model, dtype=dtype)

    def run(threads: int) -> Tensor:
        torch.set_num_threads(threads)
        with torch.no_grad():
            result = made(x)
        return result[0] if isinstance(result, tuple) else result

    want = run(1)
    for threads in (2, 5):
        torch.testing.assert_close(run(threads), want, rtol=0.02, atol=0.02)


def test_work_is_shared() -> None:
    """Only our own kernel has run when the threads are counted."""
    code = """
import os, torch, frametap
frametap.freeze(torch.nn.Linear(2, 2))
torch.set_num_threads(1)
x = torch.ones(1000, 1000)
torch.set_num_threads(5)
before = len(os.listdir("/proc/self/task"))
torch.ops.frametap.quantize_per_tensor(x, 0.1, 0, 0, 255, torch.uint8)
print(len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert int(done.stdout) == (4 if _C.kernels_share_threads() else 0)
