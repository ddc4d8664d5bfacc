"""Formulas on numbers, as guards print them: ``n0 // 2 > n1``. Read with Python's own parser, and worked out here: a file
that is loaded runs no code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from frametap import _C
from frametap._builtin_ops import BUILTIN_OPS

__all__ = ["COMPARISONS", "Formula"]

_BITS = 64  # of a number; where a result has more, a guard does not hold


def _power(a: float, b: float) -> Any:
    """``a**b``; an error instead of the work of making a huge int, and instead of a complex number."""
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and b > _BITS:
        raise OverflowError
    result = a**b
    if isinstance(result, complex):
        raise ValueError(f"{a}**{b} is not a real number")  # noqa: TRY004
    return result


def _shift(a: int, b: int) -> int:
    if b > _BITS:
        raise OverflowError
    return a << b


COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    ">=": operator.ge,
}


def _operation(node: ast.AST) -> tuple[str | type[ast.AST] | None, list[ast.expr]]:
    """The name of the function or the class of the operator, and the operands."""
    match node:
        case ast.UnaryOp(op=op, operand=operand):
            return type(op), [operand]
        case ast.BinOp(left=left, op=op, right=right):
            return type(op), [left, right]
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return type(op), [left, right]
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            return name, args
    return None, []


def _operations() -> dict[tuple[str | type[ast.AST] | None, int], Callable[..., Any]]:
    """The functions of all operations that a formula may have, by operation and number of operands."""
    bounded = {"int.pow": _power, "float.pow": _power, "int.lshift": _shift}
    forms: dict[str, Callable[..., Any]] = {f"a {op} b": f for op, f in COMPARISONS.items()}
    forms["not a"] = operator.not_
    for name, arity, notation in _C.builtin_ops():
        if notation is not None:
            operands = ", ".join("ab"[:arity])
            form = f"a{notation}b" if notation.startswith(" ") else f"{notation}({operands})"
            forms[form] = bounded.get(name, BUILTIN_OPS[name])
    found = {}
    for form, function in forms.items():
        operation, of = _operation(ast.parse(form, mode="eval").body)
        found[operation, len(of)] = function
    return found


_OPERATIONS = _operations()


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
        operation, operands = _operation(node)
        function = _OPERATIONS.get((operation, len(operands)))
        if function is None:
            raise ValueError(f"a formula has no {ast.unparse(node)!r}")
        values = [self._read(operand, numbers) for operand in operands]
        return None if numbers is None else function(*values)
