"""Layer norms of int8 models: one op normalises and quantizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap
from fixtures.quantized import graphs_of, least, tensors_of
from fixtures.subject import needs_capture

pytestmark = needs_capture

WIDTH = 24


class Normed(nn.Module):
    def __init__(self, norm: Callable[..., Any]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.other = nn.LayerNorm((3, WIDTH), eps=0.1)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.bias, -0.5, 0.5)
        self.f = norm

    def forward(self, x: Tensor) -> Any:
        return self.f(self, x)


def post(m: Normed, x: Tensor) -> Tensor:
    h = m.norm(m.a(x))
    return m.norm(m.b(h) + h)


def returned(m: Normed, x: Tensor) -> tuple[Tensor, Tensor]:
    h = m.norm(x)
    return m.a(h), h


def read_before_a_write(m: Normed, x: Tensor) -> Tensor:
    h = m.norm(x)
    y = m.a(h)
    h.add_(1)
    return y + h


def written_before(m: Normed, x: Tensor) -> Tensor:
    h = m.norm(x)
    h[:, 0] = 2.0
    return m.a(h)


def view_written(m: Normed, x: Tensor) -> Tensor:
    h = m.norm(x)
    part = h[:, 1:]
    y = m.a(h)
    part.mul_(2)
    return y + m.b(h)


# A program, and how often one op normalises and quantizes.
PROGRAMS: dict[str, tuple[Callable[[Any, Tensor], Any], int]] = {
    "before": (lambda m, x: m.a(m.norm(x)), 1),
    "twice": (lambda m, x: m.b(m.norm(m.a(m.norm(x)))), 2),
    "after": (post, 1),
    "for two layers": (lambda m, x: m.a(h := m.norm(x)) * m.b(h), 1),
    "returned": (returned, 1),
    "without weight": (lambda m, x: m.a(F.layer_norm(x, (WIDTH,))), 1),
    "without bias": (lambda m, x: m.a(F.layer_norm(x, (WIDTH,), m.norm.weight)), 1),
    "of two dimensions": (lambda m, x: m.a(m.other(x)), 1),
    "of a transposed tensor": (lambda m, x: m.a(m.norm(x.transpose(0, 1) * 2)), 1),
    "of a large mean": (lambda m, x: m.a(m.norm(x + 1000)), 1),
    "constant rows": (lambda m, x: m.a(m.norm(x[..., :1].expand(x.shape))), 1),
    "read before a write": (read_before_a_write, 1),
    "written before": (written_before, 0),
    "view is written": (view_written, 0),
    "autocast": (lambda m, x: m.a(under_autocast(m, x)), 0),
}


def under_autocast(m: Normed, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m.norm(x)


def quantized(name: str, **options: Any) -> tuple[Normed, Any, Tensor]:
    torch.manual_seed(4)
    model = Normed(PROGRAMS[name][0]).eval()
    data = [torch.randn(4, 3, WIDTH) for _ in range(4)]
    return model, frametap.quantize(model, data, progress=False, **options), data[0]


def assert_near(model: nn.Module, int8: Any, x: Tensor) -> None:
    with torch.no_grad():
        for want, got in zip(tensors_of(model(x)), tensors_of(int8(x)), strict=True):
            assert (got.shape, got.dtype, got.stride()) == (want.shape, want.dtype, want.stride())
            noise = (want - got).square().mean() / want.square().mean()
            assert -10 * math.log10(noise + 1e-12) > least(24)


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_near_for_any_batch(name: str) -> None:
    model, int8, _ = quantized(name)
    for batch in (4, 1, 7, 300, 4):
        assert_near(model, int8, torch.randn(batch, 3, WIDTH))
    text = str(graphs_of(int8).lowered)
    assert text.count("frametap.layer_norm_") == PROGRAMS[name][1], text


@pytest.mark.parametrize("name", ["before", "after", "returned", "without weight"])
def test_saved_norms(name: str, tmp_path: Path) -> None:
    _, int8, x = quantized(name)
    frametap.save(int8, tmp_path / "model")
    loaded = frametap.load(tmp_path / "model")
    for want, got in zip(tensors_of(int8(x)), tensors_of(loaded(x)), strict=True):
        assert torch.equal(want, got)


def test_empty_batch() -> None:
    _, int8, _ = quantized("before")
    assert int8(torch.randn(0, 3, WIDTH)).shape == (0, 3, WIDTH)


SIZES = [((5, 7), 1), ((3, 64), 1), ((2, 3, 65), 1), ((4, 8, 130), 2), ((1, 1024), 1), ((6, 1), 1)]


@pytest.mark.parametrize(("sizes", "rank"), SIZES, ids=str)
@pytest.mark.parametrize("layout", ["dense", "strided", "double"])
def test_op_is_within_a_step_of_two_ops(sizes: tuple[int, ...], rank: int, layout: str) -> None:
    quantized("before")  # the operators are there after the first
    ops = torch.ops.frametap
    shape = list(sizes[-rank:])
    x = torch.randn(sizes) * 3 + 1
    x = x.mT.contiguous().mT if layout == "strided" else x.double() if layout == "double" else x
    weight, bias = torch.rand(shape, dtype=x.dtype) + 0.5, torch.randn(shape, dtype=x.dtype)
    numbers = (0.02, 120, 0, 255)
    want = F.layer_norm(x, shape, weight, bias, 1e-5)
    if layout == "double":  # only float32 is quantized
        with pytest.raises(RuntimeError, match="expected a tensor of float32 or bfloat16"):
            ops.layer_norm_to_bytes(x, shape, weight, bias, 1e-5, *numbers)
        return
    bytes_ = ops.quantize_per_tensor(want, *numbers, torch.uint8)
    got = ops.layer_norm_to_bytes(x, shape, weight, bias, 1e-5, *numbers)
    floats, same = ops.layer_norm_with_bytes(x, shape, weight, bias, 1e-5, *numbers)
    assert torch.equal(got, same)
    assert int((got.int() - bytes_.int()).abs().max()) <= 1
    torch.testing.assert_close(floats, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("part", ["input", "weight", "bias"])
def test_what_a_norm_reads_is_checked(part: str) -> None:
    _, int8, x = quantized("before", check_finite=True)
    int8(x)
    with torch.no_grad():
        of = x if part == "input" else getattr(int8._model.norm, part)
        of.view(-1)[3] = math.nan
    with pytest.raises(frametap.QuantizationError, match="NaN or infinity reached an int8 op"):
        int8(x)
