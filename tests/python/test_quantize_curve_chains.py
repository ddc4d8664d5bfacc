"""A curve that a program spells out op by op is the one op that computes it, inside of the layer before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import frametap
from fixtures.quantized import graphs_of, least, sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture

Curve = Callable[[Tensor], Tensor]

# As `transformers` has them, and others.
SPELT: dict[str, tuple[Curve, Curve]] = {
    "gelu_new": (
        lambda x: (
            0.5
            * x
            * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
        ),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "gelu_fast": (
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "gelu_python": (lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))), F.gelu),
    "gelu, divided": (lambda x: x * (torch.erf(x * 2**-0.5) + 1) / 2, F.gelu),
    "swish": (lambda x: x * torch.sigmoid(x), F.silu),
    "swish, as a quotient": (lambda x: x / (1 + torch.exp(-x)), F.silu),
    "sigmoid": (lambda x: 1 / (1 + torch.exp(-x)), torch.sigmoid),
    "mish": (lambda x: x * torch.tanh(F.softplus(x)), F.mish),
    "in place": (lambda x: x.mul(0.5).mul_(torch.erf(x / math.sqrt(2.0)).add_(1)), F.gelu),
}


def read_inside(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    return torch.cat([x * gate, gate], -1)


def written_to(x: Tensor) -> Tensor:
    y = x * 1
    return y.add_(y.detach() * torch.sigmoid(y))


# Not a curve that has a name, or not one of a single value.
OTHERS: dict[str, Curve] = {
    "another factor": lambda x: 0.5 * x * (1.0 + torch.tanh(0.7 * (x + 0.044715 * x**3))),
    "cut off far out": lambda x: (x * torch.sigmoid(x)).clamp(max=50.0),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "a gate": lambda x: x[..., :12] * torch.sigmoid(x[..., 12:]),
    "a value inside is read": read_inside,
    "written to": written_to,
}


class Between(nn.Module):
    def __init__(self, curve: Curve, outputs: int) -> None:
        super().__init__()
        self.curve = curve
        self.first, self.last = nn.Linear(16, 24), nn.Linear(outputs, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.curve(self.first(x)))


def ops_of(graph: Any) -> list[str]:
    return [node.op for node in graph.nodes]


@pytest.mark.parametrize("name", SPELT)
def test_g2_a_spelt_curve_is_part_of_the_layer(name: str) -> None:
    torch.manual_seed(0)
    spelt, named = SPELT[name]
    model = Between(spelt, 24).eval()
    x = torch.randn(4, 16) * 3
    quantized = frametap.quantize(model, [x, torch.randn(4, 16) * 3], progress=False)
    twin = Between(named, 24).eval()
    twin.load_state_dict(model.state_dict())
    same = frametap.quantize(twin, [x, torch.randn(4, 16) * 3], progress=False)
    assert ops_of(graphs_of(quantized).lowered) == ops_of(graphs_of(same).lowered)
    assert sqnr(model(x), quantized(x)) > least(33)
    frozen = frametap.freeze(model, [x])
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_g1_other_chains_stay_as_they_are(name: str) -> None:
    torch.manual_seed(0)
    curve = OTHERS[name]
    outputs = curve(torch.randn(1, 24)).shape[-1]
    model = Between(curve, outputs).eval()
    x = torch.randn(4, 16) * 3
    quantized = frametap.quantize(model, [x], progress=False)
    assert sqnr(model(x), quantized(x)) > 28
    frozen = frametap.freeze(model, [x])
    for factor in (1, 200):
        torch.testing.assert_close(frozen(x * factor), model(x * factor), rtol=1e-4, atol=1e-4)
    named = {"aten.gelu", "aten.silu"} & set(ops_of(graphs_of(quantized).reference))
    assert named == ({"aten.silu"} if name == "cut off far out" else set())


def test_values_at_the_edge_are_as_before() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.eye(2))
        model[1].weight.copy_(torch.eye(2))

    class Spelt(nn.Module):
        def __init__(self, curve: Curve) -> None:
            super().__init__()
            self.curve, self.model = curve, model

        def forward(self, x: Tensor) -> Tensor:
            return self.model[1](self.curve(self.model[0](x)))

    for name, (curve, _) in SPELT.items():
        for edge in (0.0, -0.0, 1e-30, 1e12, -1e12, 1e30, -1e30, torch.nan):
            x = torch.tensor([[edge, 0.0]])
            frozen = frametap.freeze(Spelt(curve).eval(), [torch.randn(1, 2)])
            want, got = Spelt(curve)(x), frozen(x)
            torch.testing.assert_close(got, want, equal_nan=True, msg=f"{name} of {edge}")


def test_the_table_says_where_the_parts_went() -> None:
    model = Between(SPELT["gelu_new"][0], 24).eval()
    quantized = frametap.quantize(model, [torch.randn(4, 16)], progress=False)
    rows = {row["op"]: row for row in quantized.report}
    assert rows["aten.tanh"]["decision"] == "folded"
    assert "aten::gelu" in rows["aten.tanh"]["reason"]
