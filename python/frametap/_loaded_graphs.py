"""The graphs of a saved program, made for this machine from their texts: parsed, verified, lowered or frozen.

A graph that is wrong, does not fit its block, or has no kernels on this machine is an ``ArtifactError``.

Not here: compiling and running the graphs (``_loaded_program.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from frametap import _C
from frametap._errors import SATURATES, ArtifactError, FreezeError, GraphError, QuantizationError
from frametap._program import Block, Frozen, Operand, Program, Ref

__all__ = ["frozen_graphs", "graph_of"]


def frozen_graphs(program: Program) -> dict[str, _C.Graph]:
    """Returns the frozen graphs of a frozen model by block. Tests of branches are not frozen."""
    if program.frozen is None:
        return {}
    backend = _freezing(program.frozen)
    decisions = {block.decisions for block in program.blocks}
    graphs = {}
    for block in program.blocks:
        if block.name in decisions:
            continue
        try:
            graphs[block.name] = backend.freeze(
                graph_of(block), _weights_among(block.inputs, program.weights)
            )
        except FreezeError as error:
            raise ArtifactError(
                f"the graph of block {block.name!r} cannot be frozen here: {error}"
            ) from error
    return graphs


_HAS_8_BITS = f"its activations have 8 bits, and {SATURATES}; quantize it here or with activation_bits=7, and save it again"


def _freezing(frozen: Frozen) -> _C.FreezeBackend:
    if frozen.activation_bits == 8 and not _C.quant_full_range():
        raise ArtifactError(_HAS_8_BITS)
    bits = {"activation_bits": frozen.activation_bits} if frozen.activation_bits else {}
    return _C.FreezeBackend([], products=frozen.products, options=bits)


def _weights_among(
    inputs: Iterable[Operand], weights: Mapping[str, torch.Tensor]
) -> list[torch.Tensor | None]:
    return [
        weights.get(operand.name)
        if isinstance(operand, Ref) and operand.weight and not operand.path
        else None
        for operand in inputs
    ]


def graph_of(block: Block, checks_finite: bool = False, *, gradients: bool = True) -> _C.Graph:
    """Returns the verified graph of a block. The graph of an int8 block is lowered."""
    try:
        graph = _C.parse_graph(block.graph_text, block.constants, gradients=gradients)
        _C.verify(graph)
        _refuse_saturation(graph)
        if block.int8:
            graph = _C.quant_lower(graph, checks_finite)
    except GraphError as error:
        raise ArtifactError(f"the graph of block {block.name!r} is wrong: {error}") from error
    except QuantizationError as error:
        raise ArtifactError(
            f"the int8 graph of block {block.name!r} has no kernels here: {error}"
        ) from error
    for what, given, wanted in (
        ("inputs", block.inputs, graph.inputs),
        ("outputs", block.outputs, graph.outputs),
    ):
        if len(given) != len(wanted):
            raise ArtifactError(
                f"block {block.name!r} names {len(given)} {what}, its graph has {len(wanted)}"
            )
    return graph


def _refuse_saturation(graph: _C.Graph) -> None:
    """Refuses activations of 8 bits where oneDNN has no VNNI: sums of two products saturate there without a word."""
    if not _C.quant_full_range() and any(map(_takes_8_bits, graph.nodes)):
        raise ArtifactError(_HAS_8_BITS)


def _takes_8_bits(node: _C.Node) -> bool:
    if not node.op.startswith("frametap."):
        return False
    arguments = dict(zip(node.schema_args, node.args, strict=False))
    is_byte = arguments.get("dtype") == torch.uint8 and arguments.get("qmax") == 255
    return arguments.get("bits") in (8, 16) or (
        node.op == "frametap.quantize_per_tensor" and is_byte
    )
