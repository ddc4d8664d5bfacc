"""oneDNN under a quantized model: other sizes, threads, modes, files, instruction sets; and torch's own copy beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fixtures.instruction_sets import output_of
from fixtures.quantized import sqnr
from fixtures.subject import frametap, needs_capture

pytestmark = needs_capture


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.inner = nn.Conv2d(16, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        h = (self.inner(h) + h).relu()
        h = self.depthwise(h).relu().mean((2, 3))
        return self.head(h)


@pytest.fixture
def net() -> tuple[Net, nn.Module]:
    torch.manual_seed(3)
    model = Net().eval()
    data = [torch.randn(2, 3, 12, 12) for _ in range(4)]
    return model, frametap.quantize(model, data, progress=False)


def test_K1_other_sizes_make_other_primitives(net: tuple[Net, nn.Module]) -> None:
    model, int8 = net
    kernels = frametap.explain(int8).int8_kernels
    assert kernels["layers"] == 4
    for size in (1, 5, 2, 33, 2, 5):
        x = torch.randn(size, 3, 12, 12)
        with torch.no_grad():
            assert sqnr(model(x), int8(x)) > 25
    with torch.no_grad():
        assert int8(torch.randn(0, 3, 12, 12)).shape == (0, 10)
    later = frametap.explain(int8)
    # For few rows the last layer, which is small, needs no primitive.
    assert later.int8_kernels["made"] >= kernels["layers"] + 3 * 3
    assert f"made ready {later.int8_kernels['made']} times" in str(later)
    for size in range(40, 80):
        int8(torch.randn(size, 3, 12, 12))
    assert frametap.explain(int8).int8_kernels["sizes"] <= 4 * 16
    assert frametap.explain(int8).int8_kernels["dropped"] > 0


def test_K3_threads_share_a_model(net: tuple[Net, nn.Module]) -> None:
    _, int8 = net
    inputs = [torch.randn(1 + i % 5, 3, 12, 12) for i in range(10)]
    wanted = [int8(x) for x in inputs]
    wrong: list[int] = []

    def run(start: int) -> None:
        for i in range(60):
            k = (start + i) % len(inputs)
            if not torch.equal(int8(inputs[k]), wanted[k]):
                wrong.append(k)

    threads = [threading.Thread(target=run, args=(3 * t,)) for t in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_numbers_of_threads_and_modes(net: tuple[Net, nn.Module]) -> None:
    _, int8 = net
    x = torch.randn(3, 3, 12, 12)
    want = int8(x)
    before = torch.get_num_threads()
    try:
        for count in (2, 1):
            torch.set_num_threads(count)
            assert torch.equal(int8(x), want)
    finally:
        torch.set_num_threads(before)
    with torch.inference_mode():
        assert torch.equal(int8(x), want)
    with torch.no_grad():
        assert torch.equal(int8(x), want)


def test_Q3_a_file_has_plain_weights(net: tuple[Net, nn.Module], tmp_path: Path) -> None:
    _, int8 = net
    x = torch.randn(3, 3, 12, 12)
    frametap.save(int8, tmp_path / "net")
    loaded = frametap.load(tmp_path / "net")
    assert torch.equal(loaded(x), int8(x))


# Under instruction sets without VNNI ranges are of 7 bits; a file says which, so each process calibrates.
PROGRAM = """
import sys, torch, frametap
from torch import nn
torch.manual_seed(int(sys.argv[1]))
def pick(a, b): return int(torch.randint(a, b + 1, ()))
worst = 0.0
for _ in range(12):
    inputs, hidden = pick(1, 20), 2 * pick(1, 12)
    groups = (1, 2, hidden)[pick(0, 2)]
    model = nn.Sequential(
        nn.Conv2d(inputs, hidden, pick(1, 3), stride=pick(1, 2), padding=pick(0, 1)),
        (nn.ReLU(), nn.Hardswish(), nn.SiLU(), nn.ReLU6(), nn.Identity())[pick(0, 4)],
        nn.Conv2d(hidden, hidden, pick(1, 3), padding=1, dilation=pick(1, 2), groups=groups),
        nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * hidden, 9),
        (nn.GELU(), nn.GELU("tanh"), nn.ReLU())[pick(0, 2)], nn.Linear(9, 5),
    ).eval()
    x = torch.randn(pick(1, 3), inputs, 12, 12)
    q = frametap.quantize(model, [x, torch.randn_like(x)], progress=False)
    assert "not lowered" not in q.report_text(), q.report_text()
    (segment,) = frametap.segments(q)
    graph = q.quantized_graph(segment)
    assert "frametap.qconv" in graph.lowered.text() and "frametap.qlinear" in graph.lowered.text()
    with torch.no_grad():
        want, got = model(x), q(x)
    worst = max(worst, float((want - got).abs().max() / (want.max() - want.min() + 1e-6)))
print(worst)
"""


@pytest.mark.parametrize("isa", ["AVX2", "AVX512_CORE", "AVX512_CORE_VNNI", "DEFAULT"])
def test_random_nets_on_each_instruction_set(isa: str) -> None:
    assert float(output_of(PROGRAM, "5", ONEDNN_MAX_CPU_ISA=isa)) < 0.12


def test_one_openmp_and_no_symbols_shared() -> None:
    """torch has a oneDNN of its own: neither is to see the other's symbols, and both are to use torch's threads."""
    code = """
import torch, frametap
print(sorted({line.split()[-1].rsplit("/", 1)[-1] for line in open("/proc/self/maps") if "gomp" in line}))
print(frametap._C.onednn_version().split(".")[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "LD_DEBUG": "bindings", "LD_BIND_NOW": "1"},
    )
    runtimes, version = done.stdout.splitlines()
    assert runtimes == "['libgomp.so.1']"
    assert version == "3"
    bindings = [line for line in done.stderr.splitlines() if "binding file" in line]
    crossing = [
        line
        for line in bindings
        if "libdnnl" in line
        and line.split(" to ")[1].split(" ")[0].rsplit("/", 1)[-1].startswith("libtorch")
    ]
    assert any("libdnnl" in line for line in bindings)
    assert not crossing
    assert not [
        line
        for line in bindings
        if "libtorch" in line.split(" to ")[0] and "libdnnl" in line.split(" to ")[1]
    ]
