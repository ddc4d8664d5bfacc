"""Products of bytes saturate where oneDNN has no VNNI: calibration takes 7 bits there, whatever the processor has."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fixtures.subject import needs_capture

pytestmark = needs_capture

# Weights of one sign and inputs near the end of their range: two products overflow 16 bits.
PROGRAM = """
import torch, frametap
model = torch.nn.Linear(64, 8).eval()
torch.nn.init.constant_(model.weight, 0.1)
x = torch.linspace(0, 3, 512).view(8, 64)
q = frametap.quantize(model, [x], progress=False)
with torch.no_grad():
    want, got = model(x), q(x)
print((10 * torch.log10(want.square().mean() / (want - got).square().mean())).item())
"""


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
@pytest.mark.parametrize("isa", ["AVX2", "avx512_core", "DEFAULT"])
def test_no_product_saturates(name: str, isa: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.endswith("_MAX_CPU_ISA")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, name: isa},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) > 35
