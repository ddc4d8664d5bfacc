"""Formulas on numbers, as guards print them: ``n0 // 2 > n1``. Read with Python's own parser, and worked out here: a file
that is loaded runs no code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

_BITS = 64  # of a number; where a result has more, a guard does not hold


def broadcast_size(a: int, b: int) -> int:
    """Returns the size of two broadcast sizes: the one that is not 1."""
    return b if a == 1 else a


def _power(a: float, b: float) -> Any:
    """``a**b``; OverflowError instead of the work of making a huge int."""
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and b > _BITS:
        raise OverflowError
    return a**b


def _shift(a: int, b: int) -> int:
    if b > _BITS:
        raise OverflowError
    return a << b


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Div: operator.truediv,
    ast.Pow: _power,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: _shift,
    ast.RShift: operator.rshift,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
    ast.Not: operator.not_,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "int": int,
    "float": float,
    "sqrt": math.sqrt,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "exp": math.exp,
    "log": math.log,
    "log2": math.log2,
    "broadcast": broadcast_size,
}


class Formula:
    """Returns ``text`` with the names n0, n1 … for numbers. Raises :class:`ValueError` if it is not
    such a formula.
    """

    def __init__(self, text: str, count: int) -> None:
        self._names = [f"n{i}" for i in range(count)]
        try:
            self._tree = ast.parse(text, mode="eval").body
        except SyntaxError as e:
            raise ValueError(f"{text!r} is not a formula: {e.msg}") from e
        self._read(self._tree, None)

    def holds(self, numbers: Sequence[int | float]) -> bool:
        """False as well where the formula has no value (a division by zero)."""
        try:
            return bool(self._read(self._tree, dict(zip(self._names, numbers, strict=True))))
        except (ArithmeticError, ValueError):
            return False

    def _read(self, node: ast.AST, numbers: dict[str, Any] | None) -> Any:
        """The value of `node`; without `numbers`, only whether it is one of those that have one."""
        match node:
            case ast.Constant(value=int() | float() as value):
                return value
            case ast.Name(id=name) if name in self._names:
                return None if numbers is None else numbers[name]
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return self._apply(_OPERATORS[type(op)], [operand], numbers)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self._apply(_OPERATORS[type(op)], [left, right], numbers)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return self._apply(_OPERATORS[type(op)], [left, right], numbers)
            case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
                return self._apply(_FUNCTIONS[name], args, numbers)
        raise ValueError(f"a formula has no {ast.unparse(node)!r}")

    def _apply(
        self,
        function: Callable[..., Any],
        operands: Sequence[ast.AST],
        numbers: dict[str, Any] | None,
    ) -> Any:
        values = [self._read(operand, numbers) for operand in operands]
        return None if numbers is None else function(*values)
