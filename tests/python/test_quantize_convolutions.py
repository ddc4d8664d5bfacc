"""Convolutions of one to three axes, transposed ones and every way to pad, in int8: no op is left in float."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import frametap
from fixtures.quantized import least, sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture


def _with_statistics(*layers: nn.Module) -> nn.Sequential:
    """Returns a model in eval form whose batch norms have been trained, so that folding them changes weights."""
    model = nn.Sequential(*layers)
    for layer in model:
        if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)):
            assert layer.running_mean is not None
            assert layer.running_var is not None
            nn.init.normal_(layer.running_mean)
            nn.init.uniform_(layer.running_var, 0.5, 2)
            nn.init.uniform_(layer.weight, 0.5, 2)
            nn.init.normal_(layer.bias)
    return model.eval()


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv1d": (
        lambda: _with_statistics(
            nn.Conv1d(8, 16, 5, 2, 2),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Conv1d(16, 16, 3, padding=2, dilation=2, groups=16),
            nn.SiLU(),
        ),
        (2, 8, 50),
    ),
    "conv3d": (
        lambda: _with_statistics(
            nn.Conv3d(4, 16, (3, 1, 3), padding=(1, 0, 1), stride=(1, 2, 1)),
            nn.BatchNorm3d(16),
            nn.ReLU(),
            nn.Conv3d(16, 8, 1, groups=2),
        ),
        (2, 4, 6, 8, 8),
    ),
    "transposed 1d": (
        lambda: _with_statistics(
            nn.ConvTranspose1d(8, 16, 4, 2, 1),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.ConvTranspose1d(16, 8, 3, 2, 1, output_padding=1),
        ),
        (2, 8, 20),
    ),
    "transposed 2d": (
        lambda: _with_statistics(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 12, 2, 2),
            nn.BatchNorm2d(12),
            nn.ReLU(),
            nn.ConvTranspose2d(12, 4, 3, 2, 1, 1),
        ),
        (2, 3, 12, 10),
    ),
    "transposed 2d in groups": (
        lambda: _with_statistics(
            nn.ConvTranspose2d(16, 8, 2, 2, groups=4),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=2),
        ),
        (2, 16, 12, 12),
    ),
    "transposed 3d": (
        lambda: _with_statistics(nn.ConvTranspose3d(8, 6, 2, 2), nn.BatchNorm3d(6), nn.ReLU()),
        (2, 8, 4, 5, 6),
    ),
    "padding by a word": (
        lambda: _with_statistics(
            nn.Conv2d(3, 8, 3, padding="same"),
            nn.ReLU(),
            nn.Conv2d(8, 8, (4, 2), padding="same", dilation=(1, 2)),
            nn.Conv2d(8, 8, 4, padding="same", groups=8),
            nn.Conv2d(8, 4, 3, padding="valid"),
        ),
        (2, 3, 12, 12),
    ),
    "padding by a word 1d": (
        lambda: _with_statistics(
            nn.Conv1d(3, 8, 4, padding="same"), nn.ReLU(), nn.Conv1d(8, 4, 2, padding="same")
        ),
        (2, 3, 15),
    ),
}


def _check(name: str, tmp_path: Path, least: float) -> None:
    make, sizes = CASES[name]
    torch.manual_seed(3)
    model = make()
    data = [torch.randn(sizes) for _ in range(4)]
    model(
        data[0]
    )  # torch warns once of padding="same" with an even window, and the warning would end the graph
    quantized = frametap.quantize(model, data, progress=False)
    assert [row for row in quantized.report if row["decision"] == "float"] == []
    assert "not lowered" not in quantized.report_text()
    assert quantized.sqnr > least
    other = torch.randn(1, *sizes[1:-1], sizes[-1] + 3)  # one program for all sizes
    with torch.no_grad():
        for x in (data[0], other, data[0].transpose(1, -1).contiguous().transpose(1, -1)):
            want, got = model(x), quantized(x)
            assert got.is_contiguous()
            assert sqnr(want, got) > least - 8  # larger values than in calibration are cut
    path = tmp_path / "q.frametap"
    frametap.save(quantized, path)
    assert torch.equal(frametap.load(path)(data[0]), quantized(data[0]))


@pytest.mark.parametrize("name", CASES)
def test_every_op_is_int8(name: str, tmp_path: Path) -> None:
    _check(name, tmp_path, least(35))


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE"])
def test_every_op_is_int8_without_vnni(isa: str, tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
sys.path[:0] = {sys.path!r}
import test_quantize_convolutions as t
for name in t.CASES:
    t._check(name, Path({str(tmp_path)!r}), 29)  # activations have 7 bits
"""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa}
    subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, cwd=Path(__file__).parent
    )


def test_an_output_padding_beyond_the_padding_has_a_reason() -> None:
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 4, 3, 2, output_padding=1)
    ).eval()
    quantized = frametap.quantize(model, [torch.randn(2, 4, 8, 8)], progress=False)
    [row] = [row for row in quantized.report if row["decision"] == "float"]
    assert row["op"] == "aten.conv_transpose2d.input"
    assert "its output padding is larger than its padding" in row["reason"]


def test_a_depthwise_transposed_convolution_has_a_reason() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=8)).eval()
    quantized = frametap.quantize(model, [torch.randn(2, 4, 8, 8)], progress=False)
    [row] = [row for row in quantized.report if row["decision"] == "float"]
    assert row["op"] == "aten.conv_transpose2d.input"
    assert "it is depthwise" in row["reason"]
