"""Paths of modules in reports and in `float_scopes` are the paths of `named_modules()`, also after a graph break."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import frametap


class Block(nn.Module):
    """Ends the graph between its two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(32, 32)
        self.two = nn.Linear(32, 32)
        self.seen: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x).relu()
        if x.sum() > 1e30:
            return x
        return self.two(x).relu()


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def _linears(model: nn.Module, **options: object) -> dict[str, str]:
    torch.manual_seed(0)
    data = [torch.randn(8, 32) for _ in range(4)]
    quantized = frametap.quantize(model, data, **options)
    return {row["scope"]: row["decision"] for row in quantized.report if row["op"] == "aten.linear"}


LAYERS = {"blocks.0.one", "blocks.0.two", "blocks.1.one", "blocks.1.two", "head.0", "head.2"}


def test_report_names_layers_after_a_break() -> None:
    assert set(_linears(Tower().eval())) == LAYERS


@pytest.mark.parametrize(
    ("scope", "in_float"),
    [
        ("blocks.1.two", {"blocks.1.two"}),
        ("blocks.0", {"blocks.0.one", "blocks.0.two"}),
        ("blocks", {layer for layer in LAYERS if layer.startswith("blocks")}),
        ("head", {"head.0", "head.2"}),
        ("head.2", {"head.2"}),
    ],
)
def test_float_scopes_reach_layers_after_a_break(scope: str, in_float: set[str]) -> None:
    decisions = _linears(Tower().eval(), float_scopes=[scope])
    assert {layer for layer, decision in decisions.items() if decision == "float"} == in_float


def test_op_of_the_code_after_a_break_has_the_path_of_its_module() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 32))

        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 1e30:
                return x
            return nn.functional.linear(x, self.weight)

    model = nn.Sequential(
        nn.Linear(32, 32), nn.ModuleDict({"deep": nn.Sequential(Inner())})["deep"]
    )
    assert set(_linears(model)) == {"0", "1.0"}
    assert _linears(model, float_scopes=["1"]) == {"0": "int8", "1.0": "float"}
