"""Expressions over a value that differs from call to call: each call gives what plain Python gives.

A value that the recording leaves open, or whose guard is missing, gives the first call's result again in a replay. So each
expression of open_values/*.txt stands in functions that get the value in different ways, and each is called with values
that make the expression differ. The expressions of pairs.txt are about two objects, which are one in some calls.
"""

from __future__ import annotations

import collections
import functools
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from open_values import names

from fixtures.subject import frametap

ADDRESS = "0x[0-9a-f]+"
FOLDER = Path(__file__).resolve().parent / "open_values"
INTS = (3, 3, 4, 4, 5, 3, 5, 4, 3)
FLOATS = (3.5, 3.5, 4.0, 4.5, -0.0, 3.5, float("nan"), float("inf"), 3.0, 4.0)
TEXTS = ("ab", "ab", "cd", "abc", "ab", "", "a", "cd", "ab", "B")

# How a function comes to the value `n` by its argument `m`, and the argument that holds a value.
OF_ALL: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "argument": ("m", lambda n: n),
    "attribute": ("m.k", lambda n: types.SimpleNamespace(k=n)),
    "dict": ('m["k"]', lambda n: {"k": n}),
    "list": ("m[0]", lambda n: [n]),
    "call": ("m()", lambda n: functools.partial(n.__class__, n)),
}
OF_NUMBERS = OF_ALL | {"element": ("m.item()", lambda n: torch.tensor(n, dtype=_dtype(n)))}
OF_INTS = OF_NUMBERS | {
    "size": ("m.shape[0]", torch.ones),
    "computed size": ("(m.shape[0] * 2) // 2", torch.ones),
    "length": ("len(m)", lambda n: [0] * n),
    "sum": ("int(m.sum())", lambda n: torch.ones(n, dtype=torch.int64)),
}
# Containers of the value that an expression may name.
CONTAINERS = {
    "pair": "(n, 1)",
    "row": "[n, 1]",
    "table": "{'a': n}",
    "nested": "((n, 1), 2)",
    "holder": "types.SimpleNamespace(v=n)",
}
# Containers of the letters of a text.
OF_SEQUENCES: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "list": ("m", list),
    "tuple": ("m", tuple),
    "dict": ("m", lambda s: {c: i for i, c in enumerate(s)}),
    "set": ("m", set),
    "frozenset": ("m", frozenset),
    "deque": ("m", collections.deque),
    "class of list": ("m", names.Row),
    "class of Python code": ("m", names.Own),
    "list in a list": ("m[0]", lambda s: [list(s), 1]),
    "keys": ("m.keys()", lambda s: dict.fromkeys(s, 0)),
    "values": ("m.values()", lambda s: dict(enumerate(s))),
    "ordered dict": ("m", collections.OrderedDict.fromkeys),
    "counter": ("m", collections.Counter),
    "proxy": ("m", lambda s: types.MappingProxyType(dict.fromkeys(s, 1))),
}
# Two of these objects are passed. Which ones is in ORDER.
PAIRS: dict[str, Callable[[], list[Any]]] = {
    "objects": lambda: [names.Plain(), names.Plain()],
    "lists": lambda: [[1], [1]],
    "tensors": lambda: [torch.ones(1), torch.ones(1)],
}
ORDER = ((0, 1), (0, 1), (0, 0), (1, 1), (1, 0), (0, 1), (0, 0))
OF_PAIRS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "tuple": ("m", lambda n, k: (n, k)),
    "attributes": ("m.n, m.k", lambda n, k: types.SimpleNamespace(n=n, k=k)),
    "mixed": ('m[0], m[1]["k"]', lambda n, k: [n, {"k": k}]),
}
KINDS = {
    "ints": (INTS, OF_INTS),
    "floats": (FLOATS, OF_NUMBERS),
    "texts": (TEXTS, OF_ALL),
    "sequences": (TEXTS, OF_SEQUENCES),
}


def _dtype(n: Any) -> torch.dtype:
    return torch.float64 if isinstance(n, float) else torch.int64


def _function(expression: str, value: str, target: str = "n") -> Callable[..., Any]:
    used = [name for name in CONTAINERS if re.search(rf"\b{name}\b", expression)]
    lines = [
        f"{target} = {value}",
        *(f"{name} = {CONTAINERS[name]}" for name in used),
        f"return x + 1, {expression}",
    ]
    space = dict(vars(names))
    exec("def f(x, m):\n    " + "\n    ".join(lines), space)  # noqa: S102  the expressions are this folder's
    return space["f"]


def _outcome(function: Callable[..., Any], argument: Any) -> str:
    names.cached.cache_clear()
    try:
        return re.sub(ADDRESS, "", repr(function(torch.ones(2), argument)))
    except Exception as error:  # noqa: BLE001  a program's own, compared with that of plain Python
        return re.sub(ADDRESS, "", f"{type(error).__name__}: {error}")


def difference(function: Callable[..., Any], arguments: list[Any]) -> str:
    """Says which call of the captured function differs from plain Python, or returns ""."""
    captured = frametap.compile(function)
    for argument in arguments:
        want, got = _outcome(function, argument), _outcome(captured, argument)
        if want != got:
            return f"{argument!r}: want {want}, got {got}"
    return ""


def differences(file: str, value: str, arguments: list[Any], target: str = "n") -> list[str]:
    """Says which expressions of a file differ."""
    found = []
    for expression in (FOLDER / f"{file}.txt").read_text().splitlines():
        if one := difference(_function(expression, value, target), arguments):
            found.append(f"{expression}: {one}")
        frametap.reset()
    return found


@pytest.mark.parametrize(
    ("kind", "way"), [(kind, way) for kind, (_, ways) in KINDS.items() for way in ways]
)
def test_expressions(kind: str, way: str) -> None:
    values, ways = KINDS[kind]
    value, hold = ways[way]
    arguments = [hold(n) for n in values]
    assert differences(kind, value, arguments) == []


@pytest.mark.parametrize(("kind", "way"), [(kind, way) for kind in PAIRS for way in OF_PAIRS])
def test_pairs(kind: str, way: str) -> None:
    objects = PAIRS[kind]()
    value, hold = OF_PAIRS[way]
    arguments = [hold(objects[n], objects[k]) for n, k in ORDER]
    assert differences("pairs", value, arguments, "n, k") == []


def test_a_difference_is_found() -> None:
    calls: list[int] = []

    def counts(x: torch.Tensor, m: int) -> Any:
        calls.append(m)
        return x, len(calls)

    assert difference(counts, [3]) != ""
