"""Layer norms of frozen models give float32, bfloat16 or both, by a kernel of our own. layer_norm/Z1, layer_norm/Z2, freeze/F8."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap
from fixtures.quantized import tensors_of
from fixtures.subject import needs_capture
from frametap import _C

pytestmark = needs_capture

WIDTH = 40
HAS_BFLOAT16 = _C.bfloat16_products()


class Normed(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.norm, self.plain = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.bias, -1, 1)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def after_a_residual(m: Normed, x: Tensor) -> Tensor:
    h = m.norm(x + m.a(x))
    return m.plain(h + m.b(F.relu(h)))


def read_and_returned(m: Normed, x: Tensor) -> tuple[Tensor, Tensor]:
    h = m.norm(x)
    return h, m.a(h)


def written_later(m: Normed, x: Tensor) -> Tensor:
    h = m.norm(x)
    y = m.a(h)
    h.mul_(2)
    return y + m.b(h)


def under_autocast(m: Normed, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return m.norm(x) * 1.0


# A program, and the operators of its norms where layers read bfloat16. With float32 all are `layer_norm`.
PROGRAMS: dict[str, tuple[Callable[[Any, Tensor], Any], list[str]]] = {
    "before a layer": (lambda m, x: m.a(m.norm(x)), ["layer_norm_to_bfloat16"]),
    "before two layers": (lambda m, x: m.a(h := m.norm(x)) * m.b(h), ["layer_norm_to_bfloat16"]),
    "before a layer and a curve": (
        lambda m, x: m.a(h := m.norm(x)) * h.sin(),
        ["layer_norm_with_bfloat16"],
    ),
    "after a residual": (after_a_residual, ["layer_norm_with_bfloat16", "layer_norm"]),
    "read and returned": (read_and_returned, ["layer_norm_with_bfloat16"]),
    "returned": (lambda m, x: m.norm(x), ["layer_norm"]),
    "without weights": (lambda m, x: m.a(m.plain(x)), ["layer_norm_to_bfloat16"]),
    "of a transposed tensor": (
        lambda m, x: m.a(m.norm((x * 2).transpose(0, 1))),
        ["layer_norm_to_bfloat16"],
    ),
    "of a large mean": (lambda m, x: m.a(m.norm(x + 1000)), ["layer_norm_to_bfloat16"]),
    "of a norm": (lambda m, x: m.a(m.norm(m.plain(x))), ["layer_norm", "layer_norm_to_bfloat16"]),
    "of a reshaped result": (
        lambda m, x: m.a(m.norm(x).reshape(-1, WIDTH)),
        ["layer_norm_to_bfloat16"],
    ),
    "written later": (written_later, ["layer_norm_to_bfloat16"]),
    "autocast": (under_autocast, []),
}


def norms_of(frozen: Any) -> list[str]:
    graph = _C.freeze_of(frametap.segments(frozen)[0].executable)["graph"]
    ops = [node.op.removeprefix("frametap.") for node in graph.nodes]
    return [op for op in ops if op.startswith("layer_norm")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_near_for_any_batch(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    function, norms = PROGRAMS[name]
    torch.manual_seed(0)
    model = Normed(function).eval()
    frozen = frametap.freeze(model, [torch.randn(4, 3, WIDTH)], dtype=dtype)
    saved = None
    if name == "before a layer and a curve":
        frametap.save(frozen, tmp_path / "model")
        saved = frametap.load(tmp_path / "model")
    halves = dtype == torch.bfloat16 and HAS_BFLOAT16
    with torch.no_grad():
        for batch in (4, 1, 70, 0):
            x = torch.randn(batch, 3, WIDTH)
            for want, got in zip(tensors_of(model(x)), tensors_of(frozen(x)), strict=True):
                assert (got.shape, got.dtype, got.stride()) == (
                    want.shape,
                    want.dtype,
                    want.stride(),
                )
                noise = (want - got).float().square().sum()
                assert noise <= (1e-4 if halves else 1e-8) * want.float().square().sum()
                if saved is not None:
                    assert torch.equal(saved(x), got)
    assert norms_of(frozen) == [op if halves else "layer_norm" for op in norms]


def test_the_report_names_the_kernel() -> None:
    model = Normed(lambda m, x: m.a(m.norm(x)))
    frozen = frametap.freeze(model, [torch.randn(2, WIDTH)])
    rows = [row for row in frozen.report if row["op"] == "aten.layer_norm"]
    assert [(row["form"], row["reason"]) for row in rows] == [("kernel", "of frametap")]


SIZES = [((5, 7), 1), ((3, 64), 1), ((2, 3, 65), 1), ((4, 8, 130), 2), ((1, 1024), 1), ((0, 8), 1)]


@pytest.mark.parametrize(("sizes", "rank"), SIZES, ids=str)
@pytest.mark.parametrize("kind", ["dense", "strided", "double", "bfloat16"])
@pytest.mark.parametrize("affine", [False, True])
def test_ops_are_torch_s(sizes: tuple[int, ...], rank: int, kind: str, affine: bool) -> None:
    frametap.freeze(nn.Linear(2, 2), [torch.ones(1, 2)])  # the operators are there after the first
    ops = torch.ops.frametap
    torch.manual_seed(0)
    shape = list(sizes[-rank:])
    x = torch.randn(sizes) * 3 + 1
    x = x.mT.contiguous().mT if kind == "strided" else x
    x = x.to({"double": torch.float64, "bfloat16": torch.bfloat16}.get(kind, torch.float32))
    weight = torch.rand(shape, dtype=x.dtype) + 0.5 if affine else None
    bias = torch.randn(shape, dtype=x.dtype) if affine else None
    args = (x, shape, weight, bias, 1e-5, True)
    want = F.layer_norm(x, shape, weight, bias, 1e-5)
    got = ops.layer_norm(*args)
    floats, halves = ops.layer_norm_with_bfloat16(*args)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(floats, got)
    assert torch.equal(halves, got.to(torch.bfloat16))
    assert torch.equal(ops.layer_norm_to_bfloat16(*args), halves)
    assert halves.dtype == torch.bfloat16


def test_nan_stays() -> None:
    frametap.freeze(nn.Linear(2, 2), [torch.ones(1, 2)])
    x = torch.randn(3, 64)
    x[1, 5] = float("nan")
    halves = torch.ops.frametap.layer_norm_to_bfloat16(x, [64], None, None, 1e-5, True)
    assert halves.isnan().all(1).tolist() == [False, True, False]
    assert not halves[0].isnan().any()
