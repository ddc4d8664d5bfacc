"""Second derivatives of graphs that AOTAutograd has compiled.

The gradients that a compiled graph computes cannot be differentiated (torch 2.13): it is an error, or they count as constants. Where
``create_graph`` asks for gradients that can be, the ops of the graph run once more, and autograd differentiates these.

D1  The graph neither writes to tensors nor draws random numbers, so that its ops may run again.
D2  Each result that has a gradient comes from the compiled graph itself. Gradients of views that torch makes of its results are
    left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["allow_second_derivatives"]


def allow_second_derivatives(
    results: Sequence[Any], inputs: Sequence[Any], run: Callable[..., Sequence[Any]]
) -> None:
    """Makes gradients of these results differentiable. ``run`` runs the ops of the graph."""
    node: Any = None
    places: list[tuple[int, int]] = []  # of a result in the graph, and in the node
    for i, result in enumerate(results):
        if not isinstance(result, torch.Tensor) or not result.requires_grad:
            continue
        if result.grad_fn is None or (node is not None and result.grad_fn is not node):
            return
        node = result.grad_fn
        places.append((i, result.output_nr))
    if node is None or not hasattr(getattr(type(node), "_forward_cls", None), "_aot_id"):
        return
    differentiated = [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad]
    sources: list[tuple[int, torch.Tensor]] = []  # the place of a gradient, and its input
    for i, edge in enumerate(node.next_functions):
        if edge[0] is None:
            continue
        found = [x for x in differentiated if _is_edge_of(edge, x)]
        if len(found) != 1 or any(x is found[0] for _, x in sources):
            return
        sources.append((i, found[0]))
    versions = [x._version for _, x in sources]

    def differentiate(grad_inputs: Any, grad_outputs: Any) -> Any:
        if not torch.is_grad_enabled() or versions != [x._version for _, x in sources]:
            return None
        again = run(*inputs)
        pairs = [(again[i], grad_outputs[at]) for i, at in places if grad_outputs[at] is not None]
        made = torch.autograd.grad(
            [result for result, _ in pairs],
            [x for _, x in sources],
            [grad for _, grad in pairs],
            create_graph=True,
            allow_unused=True,
        )
        given = list(grad_inputs)
        for (i, _), grad in zip(sources, made, strict=True):
            given[i] = grad
        return tuple(given)

    node.register_hook(differentiate)


def _is_edge_of(edge: tuple[Any, int], x: torch.Tensor) -> bool:
    function, index = edge
    if x.grad_fn is None:
        return getattr(function, "variable", None) is x
    return x.grad_fn is function and x.output_nr == index
