"""Each kernel on bytes is within one step of the reference graph, on each instruction set that oneDNN can be held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import test_quantize_attention as attention
import test_quantize_convolutions as convolutions
import test_quantize_norms as norms
import test_quantize_pointwise as pointwise
import test_quantize_spellings as spellings
import test_quantize_sums as sums
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap
from fixtures.instruction_sets import INSTRUCTION_SETS, output_of
from fixtures.models import ResNet18, UNet
from fixtures.quantized import graphs_of
from fixtures.subject import needs_capture
from frametap import _C
from frametap.fx import to_fx

pytestmark = needs_capture

Program = tuple[nn.Module, tuple[Tensor, ...]]


class Pooled(nn.Module):
    def __init__(self, pool: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.pool = pool
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.pool(self.first(x)))


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max, dilated": lambda x: F.max_pool2d(x, 2, 1, dilation=2, ceil_mode=True),
    "average": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "average without padding": lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
    "adaptive": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "mean": lambda x: x.mean((2, 3), keepdim=True),
}


def programs() -> Iterator[tuple[str, Program]]:
    """Every pattern that has a kernel, as a model with its inputs."""
    for name, (make, sizes) in convolutions.CASES.items():
        yield f"convolution: {name}", (make(), (torch.randn(sizes),))
    for make, sizes in ((pointwise.conv, pointwise.IMAGES), (pointwise.linear, pointwise.ROWS)):
        for name, curve in pointwise.CURVES.items():
            inside = pointwise.Around(lambda m, x, f=curve: m.c(f(m.a(x))), make)
            yield f"curve inside: {name}", (inside, (torch.randn(sizes),))
        for name, curve in pointwise.TABLES.items():
            table = pointwise.Around(lambda m, x, f=curve: m.c(f(m.a(x) * m.b(x))), make)
            yield f"table: {name}", (table, (torch.randn(sizes),))
    for name in [*pointwise.BETWEEN, "squeeze and excite"]:
        model, sizes = pointwise._model_of(name)
        yield f"pointwise: {name}", (model, (torch.randn(sizes),))
    for name, (product, shape, sizes) in spellings.PRODUCTS.items():
        yield f"product: {name}", (spellings.Product(product, *shape), (torch.randn(sizes),))
    for name, (op, inputs, channels) in spellings.BETWEEN.items():
        between = spellings.Between(op, inputs, channels)
        yield f"between: {name}", (between, (torch.randn(2, 3, 8, 8),))
    for name, (f, _) in sums.PROGRAMS.items():
        yield f"sum: {name}", (sums.Sums(f), (torch.randn(5, 7, 24), torch.randn(5, 7, 24)))
    for name, pool in POOLS.items():
        yield f"pool: {name}", (Pooled(pool), (torch.randn(2, 3, 9, 11),))
    norm, _ = norms.PROGRAMS["without weight"]  # the weights of others stay floats
    yield "norm", (norms.Normed(norm), (torch.randn(4, 3, norms.WIDTH),))
    for name, attend in attention.PROGRAMS.items():
        # Others have weights that stay floats, or floats that are near by bfloat16 only.
        if name not in ("twice", "read again", "normed"):
            model = attention.Attends(attend)
            yield f"attention: {name}", (model, (torch.randn(2, 9, attention.WIDTH),))
    yield "residuals", (ResNet18(), (torch.randn(1, 3, 64, 64),))
    yield "u-net", (UNet(widths=(8, 16)), (torch.randn(1, 3, 32, 32),))


class _Interpreter(torch.fx.Interpreter):
    """Runs a graph op by op, and knows the names of its values."""

    def __init__(self, graph: _C.Graph) -> None:
        super().__init__(to_fx(graph, fake=False))
        ops = [n for n in self.module.graph.nodes if _is_op(n) and not _copies_constant(n)]
        named = [node for node in graph.nodes if not node.is_scalar]
        assert len(ops) == len(named)
        self.name_of = {n: node.outputs[0].name for n, node in zip(ops, named, strict=True)}

    def run_node(self, n: torch.fx.Node) -> Any:
        if _copies_constant(n):  # at each run, and nothing copies a kernel
            return self.env[n.all_input_nodes[0]]
        return super().run_node(n)


def _is_op(n: torch.fx.Node) -> bool:
    return isinstance(n.target, torch._ops.OpOverload)


def _copies_constant(n: torch.fx.Node) -> bool:
    return n.target is torch.ops.aten.clone.default and n.all_input_nodes[0].op == "get_attr"


class _Kernels(_Interpreter):
    """Runs the graph with kernels, and keeps what each node made: some kernels write over it later."""

    def __init__(self, graph: _C.Graph) -> None:
        super().__init__(graph)
        self.made: dict[str, Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n in self.name_of and isinstance(result, Tensor):
            self.made[self.name_of[n]] = result.clone()
            if n.target is torch.ops.aten.clamp_max.default:  # the end of a kernel with 7 bits
                self.made[self.name_of[n.all_input_nodes[0]]] = result.clone()
        return result


class _Reference(_Interpreter):
    """Runs the reference graph on what the kernels made, so that each kernel is compared alone."""

    def __init__(self, graph: _C.Graph, made: dict[str, Tensor]) -> None:
        super().__init__(graph)
        self._made = made
        self.bytes, self.steps, self.distance = 0, 0, 0.0

    def run_node(self, n: torch.fx.Node) -> Any:
        want = super().run_node(n)
        got = self._made.get(self.name_of.get(n, ""))
        if got is None or not isinstance(want, Tensor):
            return want
        assert (got.shape, got.dtype) == (want.shape, want.dtype), n.name
        if want.dtype == torch.uint8:
            self.bytes += 1
            self.steps = max(self.steps, int((want.int() - got.int()).abs().max()))
        elif want.is_floating_point():
            far = (want - got).abs().max() / want.abs().max().clamp(min=1e-9)
            self.distance = max(self.distance, float(far))
        return got.contiguous()


def measured(model: nn.Module, args: tuple[Tensor, ...]) -> _Reference:
    model.eval()(*args)  # torch warns once of some padding, and a warning would end the graph
    quantized = frametap.quantize(model, [args], progress=False)
    graphs = graphs_of(quantized)
    assert not graphs.lowering_note
    read = {value.name for node in graphs.reference.nodes for value in _values_in(node.args)}
    given = iter(args)  # the other inputs are weights, which are constants in both graphs

    def given_for(name: str) -> Any:
        if name not in read:
            return torch.zeros(1)
        _, is_size, axis = name.partition("_size")
        return args[0].shape[int(axis)] if is_size else next(given)

    inputs = [given_for(value.name) for value in graphs.reference.inputs]
    with torch.no_grad():
        kernels = _Kernels(graphs.lowered)
        kernels.run(*inputs)
        reference = _Reference(graphs.reference, kernels.made)
        reference.run(*inputs)
    return reference


def _values_in(args: list[Any]) -> Iterator[_C.Value]:
    for arg in args:
        if isinstance(arg, _C.Value):
            yield arg
        elif isinstance(arg, list):
            yield from _values_in(arg)


def main() -> None:
    torch.manual_seed(0)
    for name, (model, args) in programs():
        reference = measured(model, args)
        print(name, reference.bytes, reference.steps, reference.distance, sep="\t")


PROGRAM = """
import sys
sys.path[:0] = ["tests", "tests/python"]
import test_quantize_steps as t
t.main()
"""


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_each_kernel_is_within_a_step_of_the_reference(isa: str) -> None:
    rows = [line.split("\t") for line in output_of(PROGRAM, ONEDNN_MAX_CPU_ISA=isa).splitlines()]
    assert len(rows) > 140
    assert all(int(found) > 0 for _, found, _, _ in rows)
    assert [row for row in rows if int(row[2]) > 1 or float(row[3]) > 1e-4] == []
