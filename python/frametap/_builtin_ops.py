"""The ops of a graph that are not ops of torch, as functions on plain numbers and on torch's symbols.

Exported graphs (``fx.py``), numbers that a compiler does not get (``_graph_numbers.py``) and the formulas of saved programs
(``_formula.py``) all call these functions. The rows and their results in a replay are C++ (``ir/graph/builtin_op.cc``);
a test compares both.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["BUILTIN_OPS", "AssumptionFails", "require_another", "require_contiguous"]


class AssumptionFails(RuntimeError):
    """An assumption of the graph about a tensor that is made on the way does not hold."""


def require_contiguous(tensor: torch.Tensor) -> bool:
    if not tensor.is_contiguous():
        raise AssumptionFails(
            "a tensor was contiguous when this graph was recorded, and is not now"
        )
    return True


def require_another(tensor: torch.Tensor, made: torch.Tensor) -> bool:
    if made is tensor:
        raise AssumptionFails(
            "an op made a new tensor when this graph was recorded, and does not now"
        )
    return True


def broadcast_size(a: int, b: int) -> int:
    """Returns the size of two broadcast sizes: the one that is not 1."""
    return b if a == 1 else a


BUILTIN_OPS: dict[str, Callable[..., Any]] = {
    "int.add": operator.add,
    "int.sub": operator.sub,
    "int.mul": operator.mul,
    "int.neg": operator.neg,
    "int.floordiv": operator.floordiv,
    "int.mod": operator.mod,
    "int.truediv": operator.truediv,
    "int.min": torch.sym_min,
    "int.max": torch.sym_max,
    "int.abs": operator.abs,
    "int.pow": operator.pow,
    "int.and": operator.and_,
    "int.or": operator.or_,
    "int.xor": operator.xor,
    "int.lshift": operator.lshift,
    "int.rshift": operator.rshift,
    "int.invert": operator.invert,
    "int.of": torch.sym_int,
    "int.floor": math.floor,
    "int.ceil": math.ceil,
    "int.round": round,
    "int.broadcast": broadcast_size,
    "float.add": operator.add,
    "float.sub": operator.sub,
    "float.mul": operator.mul,
    "float.div": operator.truediv,
    "float.neg": operator.neg,
    "float.floordiv": operator.floordiv,
    "float.mod": operator.mod,
    "float.pow": operator.pow,
    "float.min": torch.sym_min,
    "float.max": torch.sym_max,
    "float.abs": operator.abs,
    "float.round": round,
    "float.of": torch.sym_float,
    "float.sqrt": math.sqrt,
    "float.exp": math.exp,
    "float.log": math.log,
    "float.log2": math.log2,
    "float.cos": math.cos,
    "float.sin": math.sin,
    "list.item": operator.getitem,
    "size": torch.ops.aten.sym_size.int,
    "contiguous": require_contiguous,
    "another": require_another,
}
