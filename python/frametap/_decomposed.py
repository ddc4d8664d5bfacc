"""Quantized graphs of others: the ops of ``quantized_decomposed`` in a ``torch.fx.GraphModule`` become ops of ours.

torch registers kernels in Python for these ops, which no graph can hold. Ours give the same values and are compiled code.

Not here: how they become int8 kernels (``backends/quant/decomposed.h``).
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["has_decomposed", "take_decomposed"]

_THEIRS = "quantized_decomposed"
_OURS = "frametap_decomposed"


def _ours_for(target: Any) -> Any:
    """Returns our op for an op of theirs, or None: another target, or an op that has no kernel here."""
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace != _THEIRS:
            return None
        packet = getattr(getattr(torch.ops, _OURS), target._opname, None)
        return getattr(packet, target._overloadname, None)
    if isinstance(target, torch._ops.OpOverloadPacket):
        namespace, _, name = target._qualified_op_name.partition("::")
        return getattr(getattr(torch.ops, _OURS), name, None) if namespace == _THEIRS else None
    return None


def _modules(root: torch.nn.Module) -> list[torch.fx.GraphModule]:
    return [module for module in root.modules() if isinstance(module, torch.fx.GraphModule)]


def has_decomposed(root: torch.nn.Module) -> bool:
    return any(
        _ours_for(node.target) is not None
        for module in _modules(root)
        for node in module.graph.nodes
    )


def take_decomposed(root: torch.nn.Module) -> None:
    """Exchanges the ops in all graph modules of `root`, which must not be the user's."""
    for module in _modules(root):
        found = [(node, ours) for node in module.graph.nodes if (ours := _ours_for(node.target))]
        for node, ours in found:
            node.target = ours
        if found:
            module.recompile()
