"""Float sums after int8 linear layers are part of the kernel (patterns/V2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frametap
from fixtures.quantized import graphs_of, results_of, sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture


class Sums(nn.Module):
    def __init__(self, f: Callable[..., Tensor], inputs: int = 24, outputs: int = 24) -> None:
        super().__init__()
        self.f, self.a, self.b = f, nn.Linear(inputs, outputs), nn.Linear(outputs, inputs)
        self.norm = nn.LayerNorm(outputs, elementwise_affine=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.f(self, x, y)


# How many sums are inside of a kernel.
PROGRAMS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "before a norm": (lambda m, x, y: m.b(m.norm(m.a(x) + y)), 1),
    "the other way round": (lambda m, x, y: m.b(m.norm(y + m.a(x))), 1),
    "a residual": (lambda m, x, y: m.norm(x + m.b(F.gelu(m.a(x)))) + y, 1),
    "of two layers": (lambda m, x, y: m.norm(m.a(x) + m.a(y)), 1),
    "a result": (lambda m, x, y: m.a(x) + y, 1),
    "written afterwards": (lambda m, x, y: m.a(x).add(y).add_(y), 1),
    "with a factor": (lambda m, x, y: m.norm(torch.add(m.a(x), y, alpha=2)), 0),
    "with itself": (lambda m, x, y: m.norm((z := m.a(x)) + z), 0),
    "of a value that is read twice": (lambda m, x, y: m.norm((z := m.a(x)) + y) * z, 0),
    "of a row": (lambda m, x, y: m.norm(m.a(x) + y[:1]), 0),
}


def made_of(f: Callable[..., Tensor], *args: Tensor) -> tuple[Sums, frametap.QuantizedModel]:
    model = Sums(f, args[0].shape[-1]).eval()
    return model, frametap.quantize(model, [args], progress=False)


@pytest.mark.parametrize("name", PROGRAMS)
def test_sums_are_part_of_kernels(name: str) -> None:
    f, count = PROGRAMS[name]
    torch.manual_seed(6)
    args = {"x": torch.randn(5, 7, 24), "y": torch.randn(5, 7, 24)}
    _, quantized = made_of(f, *args.values())
    graphs = graphs_of(quantized)
    assert str(graphs.lowered).count("packed_linear") == count
    _, got = results_of(graphs, args)
    assert torch.equal(got, quantized(*args.values()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_near_torch(name: str) -> None:
    torch.manual_seed(7)
    x, y = torch.randn(4, 24), torch.randn(4, 24)
    model, quantized = made_of(PROGRAMS[name][0], x, y)
    before = y.clone()
    with torch.no_grad():
        for _ in range(2):
            assert sqnr(model(x, y), quantized(x, y)) > 30
    assert torch.equal(y, before)


def test_operands_may_be_broadcast_in_a_later_call() -> None:
    torch.manual_seed(8)
    x, y = torch.randn(3, 24), torch.randn(3, 24)
    model, quantized = made_of(lambda m, x, y: m.a(x) + y, x, y)
    calls = dict(quantized.calls)
    with torch.no_grad():
        for a, b in [
            (x, y[:1]),
            (x[:1], y),
            (x[:0], y[:0]),
            (x, y.t().contiguous().t()),
        ]:
            assert model(a, b).shape == quantized(a, b).shape
            if a.numel():
                assert sqnr(model(a, b), quantized(a, b)) > 30
    assert quantized.calls["float"] == calls["float"]
    with pytest.raises(RuntimeError, match="size of tensor"):
        quantized(x, torch.randn(2, 24))


class Grouped(nn.Module):
    """Has sizes that follow from numbers, which no symbol of the graph stands for."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(24, 24), nn.LayerNorm(24, elementwise_affine=False)

    def forward(self, x: Tensor, groups: int) -> Tensor:
        x = x.view(groups, -1, 24)
        return self.norm(x + self.a(x))


def test_a_file_gives_the_bits_of_the_model_that_was_saved(tmp_path: Path) -> None:
    torch.manual_seed(9)
    x = torch.randn(4, 1, 24)
    model, data = Grouped().eval(), [(x, 1), (x, 2)]
    for form, converted in (
        ("int8", frametap.quantize(model, data, progress=False)),
        ("float32", frametap.freeze(model, data)),
    ):
        for args in (*data, (x, 2)):
            converted(*args)
        path = tmp_path / form
        frametap.save(converted, path)
        loaded = frametap.load(path)
        for args in (*data, (x, 2)):
            assert torch.equal(loaded(*args), converted(*args)), form
