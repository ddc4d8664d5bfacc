"""The tables of C callables are complete for the functions that programs use, and true.

Laws
  T1  Every C callable of the families below has a row, or stands in WITHOUT_ROW with a reason. That list only shrinks.
  T2  A callable whose row is pure has the same results captured and plainly. It is recorded with some arguments and
      called with others. Result, type and the text of exceptions are compared.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import itertools
import math
import operator
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import frametap
from frametap import _C

_C_TYPES = (types.BuiltinFunctionType, types.MethodDescriptorType, types.ClassMethodDescriptorType)

FAMILIES: dict[str, Any] = {
    "builtins": builtins,
    "str": str,
    "bytes": bytes,
    "int": int,
    "float": float,
    "complex": complex,
    "list": list,
    "tuple": tuple,
    "dict": dict,
    "set": set,
    "frozenset": frozenset,
    "range": range,
    "slice": slice,
    "math": math,
    "operator": operator,
    "functools": functools,
    "itertools": itertools,
    "deque": collections.deque,
    "OrderedDict": collections.OrderedDict,
    "defaultdict": collections.defaultdict,
    "re.Pattern": re.Pattern,
    "re.Match": re.Match,
    "Tensor": torch._C.TensorBase,
    "torch": torch._C._VariableFunctions,
    "torch.nn": torch._C._nn,
}

_PROTOCOL = "a protocol of copying and pickling, of sizes in memory, or of typing"
_OUTSIDE = "runs code, reads or writes what is outside of the program"
_IN_PLACE = "an operator in place; the statement is known"
_FOREIGN = "its object is of an extension type whose content no guard compares"

# Special methods, called by name: _PROTOCOL for all types.
PROTOCOL = {
    *(
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__sizeof__",
        "__copy__",
        "__deepcopy__",
    ),
    *(
        "__class_getitem__",
        "__init_subclass__",
        "__subclasshook__",
        "__dir__",
        "__length_hint__",
        "__format__",
    ),
    *("__getnewargs__", "__missing__", "__reversed__", "__new__", "__alloc__"),
}

WITHOUT_ROW: dict[str, str] = {
    **dict.fromkeys(
        [
            *(
                "builtins.breakpoint",
                "builtins.compile",
                "builtins.eval",
            ),
            *("builtins.exec", "builtins.input", "builtins.open", "builtins.print"),
        ],
        _OUTSIDE,
    ),
    **dict.fromkeys(
        ["builtins.globals", "builtins.locals"],
        "reads a whole namespace",
    ),
    **dict.fromkeys(
        ["builtins.aiter", "builtins.anext"], "coroutines are an event loop's business"
    ),
    "builtins.memoryview": _FOREIGN,
    "operator.iconcat": _IN_PLACE,
    **dict.fromkeys(
        ["list.__getitem__"],
        "ends the segment; the statement is known",
    ),
    **dict.fromkeys(
        ["operator.attrgetter", "operator.methodcaller"], "asks for attributes in C code"
    ),
    **dict.fromkeys(["operator.call"], "ends the segment; of no use in graphs"),
    "functools.GenericAlias": _PROTOCOL,
    "bytes.__bytes__": _PROTOCOL,
    **dict.fromkeys(["deque.count", "deque.index", "deque.remove"], _FOREIGN),
    **dict.fromkeys(["defaultdict.copy"], _FOREIGN),
    **{f"re.Pattern.{name}": _FOREIGN for name in dir(re.Pattern) if not name.startswith("__")},
    **{f"re.Match.{name}": _FOREIGN for name in dir(re.Match) if not name.startswith("__")},
}


def members(family: str) -> Iterator[tuple[str, Any]]:
    owner = FAMILIES[family]
    for name in dir(owner):
        found = getattr(owner, name, None)
        if isinstance(owner, types.ModuleType) and name.startswith("_"):
            continue  # private, or a second name
        is_type = isinstance(found, type) and not found.__flags__ & (1 << 9)  # of C
        if isinstance(found, type) and issubclass(found, BaseException):
            continue
        if isinstance(found, _C_TYPES) or (is_type and isinstance(owner, types.ModuleType)):
            yield name, found


@pytest.mark.parametrize("family", FAMILIES)
def test_t1_every_callable_has_a_row_or_a_reason(family: str) -> None:
    missing, surplus = [], []
    for name, found in members(family):
        key = f"{family}.{name}"
        has_row = _C.conduct(found) is not None
        if not has_row and key not in WITHOUT_ROW and name not in PROTOCOL:
            missing.append(key)
        if has_row and key in WITHOUT_ROW:
            surplus.append(key)
    assert not missing, "neither a row nor a reason"
    assert not surplus, "has a row: take it out of WITHOUT_ROW"


# ---- T2 ----------------------------------------------------------------------------------------

SMALL = st.integers(-3, 12)
FLOATS = st.sampled_from([0.0, -0.0, 0.5, -1.5, 2.0, 3.25, 1e10, math.inf, -math.inf, math.nan])
TEXT = st.text("aB1 ,é.%", max_size=5)
BYTES = st.binary(max_size=4) | st.sampled_from([b"ab", b"A1", b" a "])
PLAIN = st.one_of(SMALL, FLOATS, TEXT, BYTES, st.none(), st.booleans())
ROWS = st.lists(st.one_of(SMALL, TEXT), max_size=4)
ANY = st.one_of(
    PLAIN,
    ROWS,
    ROWS.map(tuple),
    st.dictionaries(TEXT, SMALL, max_size=3),
    st.sets(SMALL, max_size=3),
    st.builds(range, SMALL),
    st.builds(slice, SMALL, SMALL),
)
SELF: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXT,
    "bytes": BYTES,
    "int": SMALL,
    "float": FLOATS,
    "complex": st.builds(complex, SMALL, SMALL),
    "list": ROWS,
    "tuple": ROWS.map(tuple),
    "dict": st.dictionaries(TEXT | SMALL, SMALL, max_size=3),
    "set": st.sets(SMALL, max_size=4),
    "frozenset": st.frozensets(SMALL | TEXT, max_size=4),
    "range": st.builds(range, SMALL, SMALL),
    "slice": st.builds(slice, SMALL, SMALL),
    "math": SMALL | FLOATS,
    "operator": ANY,
    "itertools": ROWS,
    "builtins": ANY,
}
# Functions that read more than their arguments, or whose result is not a value. Hashes of strings differ only between
# processes.
_NOT_COMPARED = {
    "id",
    "super",
    "classmethod",
    "staticmethod",
    "property",
    "copyright",
    "credits",
    "exit",
    "quit",
}


def compared(family: str) -> list[Callable[..., Any]]:
    kinds = {"pure", "pure_objects", "transparent", "special", "mutates"}
    return [
        found
        for name, found in members(family)
        if _C.conduct(found) in kinds and name not in _NOT_COMPARED and not name.startswith("__")
    ]


def outcome(call: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """The result in words, and what the call has made of its arguments."""
    mine = copy.deepcopy(args)
    try:
        result = call(torch.ones(1), mine)[1]
    except Exception as error:  # noqa: BLE001 - the program's exception is a result
        return f"{type(error).__name__}: {error} {mine!r}"
    words = type(result).__name__
    if isinstance(result, Iterator):
        try:
            result = list(itertools.islice(result, 10))
        except Exception as error:  # noqa: BLE001
            result = f"{type(error).__name__}: {error}"
    return f"{words} {result!r} {mine!r}"


def arguments(family: str) -> st.SearchStrategy[tuple[Any, ...]]:
    first = SELF[family]
    return st.one_of(
        st.tuples(first),
        st.tuples(first, first),
        st.tuples(first, ANY),
        st.tuples(first, PLAIN, PLAIN),
        st.tuples(first, TEXT, TEXT),
        st.tuples(first, SMALL, SMALL),
    )


@pytest.mark.parametrize("family", SELF)
def test_t2_pure_rows_are_true(family: str) -> None:
    callables = compared(family)
    if not callables:
        pytest.skip("no row of this family computes from its arguments")

    @settings(
        max_examples=12 * max(10, len(callables)) // 4,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(callables), arguments(family), arguments(family))
    def check(fn: Callable[..., Any], one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
        def call(x: torch.Tensor, args: tuple[Any, ...]) -> tuple[torch.Tensor, Any]:
            return x + 1, fn(*args)

        captured = frametap.compile(call)
        for args in (one, one, other, one, other):
            want = outcome(call, args)
            assert outcome(captured, args) == want, (fn, args)

    check()
