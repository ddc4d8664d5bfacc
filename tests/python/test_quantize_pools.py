"""Means of images are int8 with parameters of their own. pools/P1."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap
from fixtures.quantized import BITS, graphs_of, sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture

MEANS: dict[str, Callable[[Tensor], Tensor]] = {
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1),
    "of parts": lambda x: F.adaptive_avg_pool2d(x, (2, 1)).flatten(1),
    "average": lambda x: F.avg_pool2d(x, 16).flatten(1),
    "mean": lambda x: x.mean((2, 3)),
    "mean that keeps": lambda x: x.mean((-1, -2), keepdim=True).flatten(1),
}


class Net(nn.Module):
    def __init__(self, mean: Callable[[Tensor], Tensor], features: int) -> None:
        super().__init__()
        self.mean = mean
        self.conv, self.head = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(features, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mean(F.relu(self.conv(x))))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("name", MEANS)
def test_a_mean_has_a_scale_of_its_own(name: str, bits: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net(MEANS[name], 64 if name == "of parts" else 32).eval()
    data = [torch.randn(4, 3, 16, 16) for _ in range(4)]
    quantized = frametap.quantize(model, data, progress=False, activation_bits=bits)
    rows = [row for row in quantized.report if row["reason"] == "int8 mean"]
    assert len(rows) == 1
    # Means lie within a tenth of the range of the elements: the scale of the elements would cost 20 dB.
    assert rows[0]["sqnr"] > (48 if bits == 8 else 42)
    assert "dequantize" not in str(graphs_of(quantized).lowered)
    path = tmp_path / "q.frametap"
    frametap.save(quantized, path)
    loaded = frametap.load(path)
    with torch.no_grad():
        for x in (data[0], torch.randn(1, 3, 16, 16)):
            want, got = model(x), quantized(x)
            assert sqnr(want, got) > 30
            assert torch.equal(loaded(x), got)
