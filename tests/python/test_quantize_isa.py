"""Products of bytes saturate where oneDNN has no VNNI: calibration takes 7 bits there, whatever the processor has."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.instruction_sets import output_of
from fixtures.quantized import BITS
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
    assert float(output_of(PROGRAM, **{name: isa})) > 35


SAVES = """
import sys, torch, frametap
model = torch.nn.Linear(64, 8).eval()
torch.nn.init.constant_(model.weight, 0.1)
x = torch.linspace(0, 3, 512).view(8, 64)
q = frametap.quantize(model, [x], progress=False, activation_bits=int(sys.argv[2]))
q(x)
frametap.save(q, sys.argv[1])
"""
LOADS = """
import sys, torch, frametap
x = torch.linspace(0, 3, 512).view(8, 64)
try:
    program = frametap.load(sys.argv[1])
except frametap.ArtifactError as error:
    print(error)
else:
    want = x.sum(1, keepdim=True) * 0.1
    print((program(x) - want).abs().max().item() < 0.5)
"""


@pytest.mark.parametrize("bits", BITS)
def test_a_saved_program_is_refused_where_its_products_saturate(bits: int, tmp_path: Path) -> None:
    path = str(tmp_path / "q.frametap")
    output_of(SAVES, path, str(bits))
    loaded = output_of(LOADS, path, ONEDNN_MAX_CPU_ISA="AVX2")
    if bits == 7:
        assert loaded.strip() == "True"
    else:
        assert "activations have 8 bits" in loaded
        assert "activation_bits=7" in loaded


REFUSED = """
import torch, frametap
for scheme in ("static", "dynamic", "auto"):
    try:
        frametap.quantize(torch.nn.Linear(4, 4).eval(), [torch.ones(2, 4)], scheme=scheme, activation_bits=8)
    except frametap.QuantizationError as error:
        print(error)
"""


def test_8_bits_are_refused_where_products_saturate() -> None:
    said = output_of(REFUSED, ONEDNN_MAX_CPU_ISA="AVX2").splitlines()
    assert len(said) == 3
    assert all("saturate on this processor" in line for line in said)
    assert all("leave activation_bits out" in line for line in said)
