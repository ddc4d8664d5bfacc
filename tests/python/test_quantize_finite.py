"""``check_finite``: NaN and infinity that reach an int8 op raise, where bytes would turn them into numbers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.subject import needs_capture

pytestmark = needs_capture


class Inside(nn.Module):
    """Divides in the middle, by a tensor that may have zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)) / by)


class Branching(Inside):
    def forward(self, x: Tensor, by: Tensor) -> Tensor:
        h = self.first(x)
        return self.second(h / by) if by.sum() > 0 else self.second(h * by)


def _quantized(model: nn.Module, *data: tuple[Tensor, ...], check_finite: bool = True) -> Any:
    return frametap.quantize(model.eval(), data, check_finite=check_finite, progress=False)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), (3, 8)),
        (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1)), (2, 3, 8, 8)),
    ],
)
def test_an_input_that_is_not_finite_raises(
    make: Callable[[], nn.Module], sizes: tuple[int, ...], value: float
) -> None:
    model, x = make(), torch.randn(sizes)
    quantized, silent = (_quantized(model, (x,), check_finite=c) for c in (True, False))
    assert torch.equal(quantized(x), silent(x))
    bad = x.clone()
    bad.view(-1)[5] = value
    with pytest.raises(
        frametap.QuantizationError, match="NaN or infinity reached an int8 op, in the input input"
    ):
        quantized(bad)
    assert silent(bad).isfinite().all()
    assert torch.equal(quantized(x), silent(x))  # and the next call is as before
    larger = torch.cat([bad, x])
    with pytest.raises(frametap.QuantizationError, match="NaN or infinity"):
        quantized(larger)


def test_values_inside_are_checked() -> None:
    x, by = torch.randn(3, 8), torch.rand(3, 8) + 0.5
    quantized = _quantized(Inside(), (x, by))
    quantized(x, by)
    by[1, 2] = 0
    with pytest.raises(
        frametap.QuantizationError, match=r"in the result of aten.div.Tensor at Inside.forward"
    ):
        quantized(x, by)


def test_graphs_after_a_branch_are_checked() -> None:
    x, by = torch.randn(3, 8), torch.rand(3, 8) + 0.5
    quantized = _quantized(Branching(), (x, by), (x, -by))
    quantized(x, by)
    by[1, 2] = 0
    with pytest.raises(frametap.QuantizationError, match="NaN or infinity"):
        quantized(x, by)


def test_a_file_keeps_the_checks(tmp_path: Path) -> None:
    x = torch.randn(3, 8)
    quantized = _quantized(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), (x,))
    path = tmp_path / "q.frametap"
    frametap.save(quantized, path)
    loaded = frametap.load(path)
    assert torch.equal(loaded(x), quantized(x))
    with pytest.raises(frametap.QuantizationError, match="NaN or infinity reached an int8 op"):
        loaded(x * math.nan)
    assert torch.equal(loaded(x), quantized(x))


def test_a_model_in_another_raises_for_its_own_values() -> None:
    x = torch.randn(3, 8)
    inner = _quantized(nn.Sequential(nn.Linear(8, 8)), (x,))

    def outer(x: Tensor) -> Tensor:
        return inner(x) + 1

    with pytest.raises(frametap.QuantizationError, match="NaN or infinity"):
        frametap.compile(outer)(x / 0)
    assert torch.equal(frametap.compile(outer)(x), inner(x) + 1)


def test_threads_have_their_own_notes() -> None:
    x = torch.randn(3, 8)
    quantized = _quantized(nn.Sequential(nn.Linear(8, 8)), (x,))
    bad, raised = x / 0, [0, 0]

    def run(which: int, value: Tensor) -> None:
        for _ in range(200):
            try:
                quantized(value)
            except frametap.QuantizationError:
                raised[which] += 1

    threads = [threading.Thread(target=run, args=pair) for pair in ((0, x), (1, bad))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == [0, 200]


class Masked(nn.Module):
    """Attention with a mask from outside; `norm` may make floats of its query."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.norm = norm

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.norm(self.q(x)), self.k(x), self.v(x)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))


@pytest.mark.parametrize("norm", [nn.Identity(), nn.LayerNorm(8)], ids=["bfloat16", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_results_of_attention_are_checked(norm: nn.Module, dtype: torch.dtype) -> None:
    x, mask = torch.randn(2, 5, 8), torch.zeros(5, 5)
    quantized = frametap.quantize(
        Masked(norm).eval(), [(x, mask)], float_dtype=dtype, check_finite=True, progress=False
    )
    quantized(x, mask.masked_fill(mask.triu(1) == 1, -math.inf))
    mask[1, 2] = math.nan
    with pytest.raises(
        frametap.QuantizationError,
        match=r"NaN or infinity reached an int8 op, in the result of .*attention",
    ):
        quantized(x, mask)
