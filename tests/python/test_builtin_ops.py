"""The functions of builtin ops in Python, against the results of a replay and as formulas of saved programs."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from frametap import _C
from frametap._builtin_ops import BUILTIN_OPS
from frametap._formula import Formula

INTS = [-(2**63), -(2**31), -7, -2, -1, 0, 1, 2, 3, 8, 62, 63, 2**53 + 1, 2**62, 2**63 - 1]
FLOATS = [-math.inf, -1e300, -7.5, -2.5, -1.0, -0.0, 0.0, 0.5, 1.5, 2.0, 3.25, 1e19, 1e300]
FLOATS += [math.inf, math.nan]
ON_NUMBERS = [row for row in _C.builtin_ops() if row[2] is not None]
TAKE_FLOATS = {"int.of", "int.floor", "int.ceil", "int.round"}


def operands_of(name: str) -> list[list[Any]]:
    if name == "float.round":
        return [FLOATS, [0, 1, 2, 5, 100]]
    return [FLOATS if name.startswith("float.") or name in TAKE_FLOATS else INTS] * 2


def result_of(function: Any, operands: Any) -> Any:
    """A 64-bit int or a float; None where there is none."""
    try:
        result = function(*operands)
    except (ArithmeticError, ValueError, RuntimeError):
        return None
    is_number = isinstance(result, float) or (type(result) is int and -(2**63) <= result < 2**63)
    return result if is_number else None


def test_every_builtin_op_has_a_function():
    assert len(ON_NUMBERS) > 40
    assert {name for name, _, _ in _C.builtin_ops()} == set(BUILTIN_OPS)


@pytest.mark.parametrize(("name", "arity", "notation"), ON_NUMBERS)
def test_a_function_computes_the_result_of_a_replay(name, arity, notation):
    kinds = ["float" if lists is FLOATS else "int" for lists in operands_of(name)][:arity]
    names = ["%a", "%b"][:arity]
    inputs = ", ".join(f"{n} : {kind}" for n, kind in zip(names, kinds, strict=True))
    text = f"graph ({inputs}) {{\n  %c = {name}({', '.join(names)})\n  return %c\n}}\n"
    replay = _C.compile(_C.reference_backend(), _C.parse_graph(text))
    compared = 0
    for operands in itertools.product(*operands_of(name)[:arity]):
        if name in ("int.pow", "int.lshift") and operands[1] > 64:
            continue  # Python would compute them
        if name == "int.pow" and operands[1] < 0:
            continue  # a float
        in_python = result_of(BUILTIN_OPS[name], operands)
        in_replay = result_of(lambda *numbers: replay.run(numbers)[0], operands)
        # A replay gives up where its result might not be Python's.
        assert in_replay is None or repr(in_replay) == repr(in_python), f"{name}{operands}"
        compared += in_replay is not None
    assert compared > 5


@pytest.mark.parametrize(("name", "arity", "notation"), ON_NUMBERS)
def test_a_formula_computes_the_function(name, arity, notation):
    places = ["n0", "n1"][:arity]
    text = notation.join(places) if notation[0] == " " else f"{notation}({', '.join(places)})"
    formula = Formula(f"({text}) == n{arity}", arity + 1)
    compared = 0
    for operands in itertools.product(*operands_of(name)[:arity]):
        is_huge = name in ("int.pow", "int.lshift") and operands[1] > 64
        result = None if is_huge else result_of(BUILTIN_OPS[name], operands)
        holds = formula.holds([*operands, 0 if result is None else result])
        if result is not None and not math.isnan(result):
            assert holds, f"{formula} {operands}"
            compared += 1
    assert compared > 5


@pytest.mark.parametrize(
    "text", ["min(n0) > 1", "sqrt(n0, n0) > 1", "tan(n0) > 1", "max(*n0) > 1", "n0 @ n0 > 1"]
)
def test_a_text_that_is_not_a_formula_is_refused(text):
    with pytest.raises(ValueError, match="a formula has no"):
        Formula(text, 1)


def test_a_formula_without_a_value_does_not_hold():
    assert not Formula("n0 // n1 == 1", 2).holds([1, 0])
    assert not Formula("n0 ** n1 > 0", 2).holds([-8.0, 0.5])
    assert not Formula("n0 << n1 > 0", 2).holds([1, 10**9])
    assert not Formula("sqrt(n0) > 0", 1).holds([-1.0])
