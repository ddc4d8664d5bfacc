"""The reports of an int8 model about parts that are float, that cannot be compared, or that cannot be exported or
saved.
"""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap


class Cond(nn.Module):
    def __init__(self, first: nn.Module) -> None:
        super().__init__()
        self.first, self.a, self.b = first, nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return torch.cond(x.sum() > 0, lambda y: self.a(y), lambda y: self.b(y), (x,)).relu()


def test_the_arms_of_cond_are_told_to_be_float() -> None:
    data = [(torch.randn(4, 16),) for _ in range(3)]
    text = frametap.quantize(Cond(nn.Linear(16, 16)).eval(), data).report_text()
    assert "torch._higher_order_ops.cond" in text
    assert "runs in float, and none of its ops is in the table" in text
    with pytest.raises(frametap.QuantizationError, match="none of its ops is in the table"):
        frametap.quantize(Cond(nn.Identity()).eval(), data)


def test_a_model_without_breaks_has_no_such_line() -> None:
    quantized = frametap.quantize(nn.Linear(16, 16).eval(), [(torch.randn(4, 16),)])
    assert "in the table" not in quantized.report_text()


class Picked(nn.Module):
    """A mask on scores: which rows it picks may differ between float and int8."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        scores = self.linear(x)[:, 0]
        return {"scores": scores, "kept": x[scores > 0]}


def test_outputs_of_other_sizes_are_not_comparable() -> None:
    torch.manual_seed(0)
    # Scores near zero, where the error of int8 decides which rows the mask picks.
    quantized = frametap.quantize(Picked().eval(), [(torch.randn(4000, 16),)])
    sqnr = quantized.output_sqnr
    assert sqnr["['scores']"] > 20
    assert sqnr["['kept']"] != sqnr["['kept']"]
    (line,) = [line for line in quantized.report_text().splitlines() if "['kept']" in line]
    assert "not comparable: " in line
    assert " rows in float, " in line
    assert line.endswith(" in int8")


def test_onnx_says_that_it_is_onnx() -> None:
    quantized = frametap.quantize(nn.Linear(16, 16).eval(), [(torch.randn(4, 16),)])
    with pytest.raises(frametap.QuantizationError, match="cannot be exported to ONNX"):
        torch.onnx.export(quantized, (torch.randn(4, 16),), io.BytesIO(), dynamo=False)


def test_saving_a_model_that_begins_in_python(tmp_path: Path) -> None:
    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(16, 8)

        def forward(self, x: Tensor) -> Tensor:
            time.perf_counter()
            return self.out(x)

    quantized = frametap.quantize(Timed().eval(), [(torch.randn(3, 2, 16),)])
    with pytest.raises(frametap.ArtifactError, match="plain Python runs before") as caught:
        frametap.save(quantized, tmp_path / "program")
    assert "perf_counter" in str(caught.value)
    assert "hooks" not in str(caught.value)
