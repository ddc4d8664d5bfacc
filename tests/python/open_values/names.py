"""The names that the expressions of this folder use. The module is the globals of the functions that hold them."""

from __future__ import annotations

import array  # noqa: F401
import bisect  # noqa: F401
import collections
import contextlib
import copy  # noqa: F401
import dataclasses
import datetime  # noqa: F401
import decimal  # noqa: F401
import enum
import fractions  # noqa: F401
import functools
import heapq  # noqa: F401
import itertools  # noqa: F401
import json  # noqa: F401
import math  # noqa: F401
import operator  # noqa: F401
import re  # noqa: F401
import statistics  # noqa: F401
import string  # noqa: F401
import struct  # noqa: F401
import textwrap  # noqa: F401
import types  # noqa: F401
from collections.abc import Iterator
from typing import Any, ClassVar

import torch  # noqa: F401

Pair = collections.namedtuple("Pair", "a b")
LOOKUP = {(3, 1): 7}


@dataclasses.dataclass(order=True)
class Point:
    a: Any
    b: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any


class Color(enum.Enum):
    RED = 3
    GREEN = 4
    BLUE = 5


class Names:
    v3, v4, v5 = 1, 2, 3
    ab, cd = 4, 5


class Row(list):
    pass


class Own:
    """A sequence of Python code."""

    def __init__(self, items: Any) -> None:
        self.items = list(items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: Any) -> Any:
        return self.items[i]

    def __contains__(self, v: Any) -> bool:
        return v in self.items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and self.items == other.items

    def __hash__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"Own({self.items})"


class Iterated:
    """An object that C code searches by its iterator."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


class Plain:
    """Compared by identity."""

    def meth(self) -> None: ...

    def __repr__(self) -> str:
        return "Plain()"


class Slotted:
    __slots__ = ("a",)


@functools.cache
def cached(v: Any) -> Any:
    return v, 1


def factorial(v: int) -> int:
    return 1 if v <= 1 else v * factorial(v - 1)


def matching(v: Any) -> Any:
    match v:
        case 3:
            return "three"
        case (4, k) | [4, k]:
            return "four", k
        case (a, b):
            return a, b
        case int(k):
            return k


def caught(v: int) -> Any:
    try:
        return [1, 2, 3, 4][v]
    except IndexError:
        return "no"


def looped(v: int) -> int:
    total = 0
    for i in range(v):
        if i == 3:
            break
        total += i
    else:
        total += 100
    return total


def halved(v: int) -> int:
    k = 0
    while v > 1:
        v //= 2
        k += 1
    return k


def counted(v: int) -> Any:
    c = v

    def more() -> int:
        nonlocal c
        c += 1
        return c

    return more(), more(), c


def generated(v: int) -> Any:
    def pairs() -> Iterator[Any]:
        for i in range(v):
            yield i, v

    return list(pairs()), dict(pairs()), len(set(pairs()))


def compared(v: int) -> Any:
    class Number:
        def __init__(self) -> None:
            self.v = v

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Number) and self.v == other.v

        def __hash__(self) -> int:
            return hash(self.v)

        def __len__(self) -> int:
            return self.v

        def __contains__(self, k: int) -> bool:
            return k == self.v

        def __getitem__(self, k: int) -> Any:
            return k, self.v

    one, other = Number(), Number()
    other.v = 3
    return one == other, len({one, other}), len(one), 3 in one, one[v]


def named(**k: Any) -> Any:
    return dict(k), len(k)


def starred(*a: Any) -> Any:
    return a, len(a), a[0] == 3


def managed(v: int) -> Any:
    @contextlib.contextmanager
    def more() -> Iterator[int]:
        yield v + 1

    with more() as w:
        return w


def assigned(v: int) -> Any:
    return (w := v + 1), w, [u := v, u * 2]


def numbered(v: Any) -> Any:
    store: dict[Any, int] = {}
    for k in (v, (3, 1), v):
        if k not in store:
            store[k] = len(store)
    return store, store[v]


def updated(table: Any, items: Any) -> Any:
    table.update(items)
    return len(table)


def numbered_texts(v: Any) -> Any:
    store: dict[Any, int] = {}
    for k in (v, "ab", "cd"):
        store.setdefault(k, len(store))
    return store


def set_of(v: Any) -> Any:
    s = set()
    s.add((3, 1))
    s.add(v)
    s.discard((4, 1))
    s.update([v, (5, 1)])
    return len(s), v in s, (3, 1) in s, sorted(s)


def default_of(v: Any) -> Any:
    d: dict[Any, int] = collections.defaultdict(int)
    d[v] += 1
    d[(3, 1)] += 1
    d[v] += 1
    return dict(d), len(d)


def ordered(v: Any) -> Any:
    d: Any = collections.OrderedDict()
    d[v] = 1
    d[(3, 1)] = 2
    d.move_to_end(v)
    return list(d.items())


def set_operators(v: Any) -> Any:
    a, b = {v, (3, 1)}, {(3, 1), (4, 1)}
    return len(a | b), len(a & b), len(a - b), len(a ^ b), a <= b


def table_of_class(v: Any) -> Any:
    class Kept:
        table: ClassVar[dict[Any, int]] = {}

        def __init__(self, k: Any) -> None:
            self.table[k] = 1

    Kept(v)
    Kept((3, 1))
    return len(Kept.table)


def nested_lists(v: Any) -> Any:
    d: dict[Any, list[int]] = {}
    for a in (v, (3, 1)):
        d.setdefault(a, []).append(len(d))
    return d


def slotted(v: Any) -> Any:
    s = Slotted()
    s.a = v
    return s.a == (3, 1), len({s.a, (3, 1)})
