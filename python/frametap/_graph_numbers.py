"""The numbers of a graph: which of them only give other numbers, and which reach tensor ops.

Numbers that only give other numbers (a counter) are computed here, with Python's own operators. A compiler gets
the others: as constants, or as tensors where an op gives equal results for a tensor (``fx.takes_tensor``).

Not here: which numbers make a variant (``_callable.py``), the functions (``_builtin_ops.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any

import torch

from frametap import _C, fx
from frametap._builtin_ops import BUILTIN_OPS

__all__ = ["GraphNumbers", "number_key", "tensor_of"]


class GraphNumbers:
    """The part of a graph that is arithmetic on input numbers."""

    def __init__(self, graph: _C.Graph) -> None:
        self._inputs = [
            (i, value) for i, value in enumerate(graph.inputs) if value.kind in fx.NUMBER_KINDS
        ]
        known = {value for _, value in self._inputs}
        self._nodes: list[tuple[Callable[..., Any], list[Any], _C.Value]] = []
        # By those that reach an op: whether each place they have there takes a tensor as well.
        baked: dict[_C.Value, bool] = {}
        for node in graph.nodes:
            args = node.args
            if node.is_scalar and all(not isinstance(a, _C.Value) or a in known for a in args):
                (out,) = node.outputs
                self._nodes.append((BUILTIN_OPS[node.op], args, out))
                known.add(out)
            else:
                for value in _values(args):
                    if value in known:
                        as_tensor = value.kind == "float" and fx.takes_tensor(node, value)
                        baked[value] = baked.get(value, True) and as_tensor
        self.values = frozenset(known)
        self.baked = tuple(baked)
        self._as_tensor = baked

    def free_floats(self, is_open: Collection[_C.Value]) -> tuple[set[_C.Value], list[_C.Value]]:
        """Open floats that reach ops as tensors only, with all that follows from them; and those that ops take."""
        bound = {value for value, as_tensor in self._as_tensor.items() if not as_tensor}
        for _, args, out in reversed(self._nodes):
            if out in bound:
                bound.update(arg for arg in args if isinstance(arg, _C.Value))
        free = {
            value
            for _, value in self._inputs
            if value.kind == "float" and value in is_open and value not in bound
        }
        for _, args, out in self._nodes:
            if any(isinstance(arg, _C.Value) and arg in free for arg in args):
                free.add(out)
        return free, [value for value in self._as_tensor if value in free]

    def evaluate(self, inputs: Sequence[Any]) -> dict[_C.Value, Any]:
        return self.evaluate_from({value: inputs[i] for i, value in self._inputs})

    def evaluate_from(self, numbers: dict[_C.Value, Any]) -> dict[_C.Value, Any]:
        """These and all that follows from them alone."""
        for function, args, out in self._nodes:
            if all(not isinstance(a, _C.Value) or a in numbers for a in args):
                values = (numbers[a] if isinstance(a, _C.Value) else a for a in args)
                numbers[out] = function(*values)
        return numbers


def _values(args: Any) -> Iterator[_C.Value]:
    for arg in args:
        if isinstance(arg, _C.Value):
            yield arg
        elif isinstance(arg, list):
            yield from _values(arg)


def tensor_of(number: float) -> torch.Tensor:
    """Returns the tensor that stands for an open float."""
    return torch.scalar_tensor(number, dtype=torch.float64, device="cpu")


def number_key(number: Any) -> Hashable:
    """Returns a key that is equal exactly if the numbers are the same."""
    return number.hex() if isinstance(number, float) else number  # 0.0 is not -0.0, nan is nan
