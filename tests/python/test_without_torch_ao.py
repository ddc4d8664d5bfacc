"""int8 needs neither torch.ao nor torchao. FRAMETAP_TEST_WITHOUT_TORCH_AO=1 hides them from all tests."""

from __future__ import annotations

from pathlib import Path

from fixtures.instruction_sets import output_of
from fixtures.subject import needs_capture

pytestmark = needs_capture

PROGRAM = """
import importlib, importlib.util, sys
sys.path.insert(0, "tests")
from fixtures import torch_ao_hidden
torch_ao_hidden.hide()
import torch, frametap

for name in ("torchao", "torch.ao", "torch.ao.quantization", "torch.quantization"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        print("hidden")
    else:
        print(name, "is there")
print(importlib.util.find_spec("torchao"))

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 8)).eval()
data = [torch.randn(4, 3, 8, 8) for _ in range(2)]
for scheme in ("static", "dynamic", "auto"):
    quantized = frametap.quantize(model, data, scheme=scheme, progress=False)
    frametap.save(quantized, sys.argv[1])
    with torch.no_grad():
        want, got = model(data[0]), frametap.load(sys.argv[1])(data[0])
    print(float(10 * torch.log10(want.square().mean() / (want - got).square().mean())) > 30)
frozen = frametap.freeze(model, data)
with torch.no_grad():
    print(torch.allclose(frozen(data[0]), model(data[0]), atol=1e-5))
    compiled = torch.compile(model, backend="frametap", options={"freeze": True})
    print(torch.allclose(compiled(data[0]), model(data[0]), atol=1e-5))
"""


def test_int8_without_torch_ao(tmp_path: Path) -> None:
    printed = output_of(PROGRAM, str(tmp_path / "q.frametap")).split()
    assert printed == ["hidden"] * 4 + ["None"] + ["True"] * 5
