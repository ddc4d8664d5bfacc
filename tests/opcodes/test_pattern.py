"""The match statement."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pytest

from opcodes.harness import Program, check, programs


@dataclass
class Point:
    x: int
    y: int


class Strange:
    __match_args__ = ["x"]
    x = 1


class Numbered:
    __match_args__ = (1,)


def describe(value):
    match value:
        case 0 | 1:
            return "small"
        case int(n) if n > 100:
            return f"big {n}"
        case str() as s:
            return f"text {s}"
        case []:
            return "empty"
        case [x]:
            return f"one {x}"
        case [1, *rest]:
            return f"from one {rest}"
        case [first, *_, last]:
            return f"{first} to {last}"
        case {"kind": "a", **rest}:
            return f"a with {rest}"
        case {"kind": kind, "n": int(n)}:
            return f"{kind} {n}"
        case Point(x=0, y=y):
            return f"on axis {y}"
        case Point(x, y):
            return f"point {x} {y}"
        case float(v) | complex(v):
            return f"number {v}"
        case None:
            return "none"
        case _:
            return "other"


def program_match():
    values = [
        0,
        1,
        7,
        500,
        "s",
        [],
        [5],
        [1, 2, 3],
        [2, 3, 4],
        (9, 8),
        {"kind": "a", "z": 1},
        {"kind": "b", "n": 2},
        {"kind": "c"},
        Point(0, 5),
        Point(1, 2),
        1.5,
        2j,
        None,
        object,
        {},
        defaultdict(int),
        b"xy",
        range(3),
    ]
    return [describe(value) for value in values]


def program_default_dict_is_not_grown():
    table = defaultdict(int)
    match table:
        case {"x": 1}:
            pass
    return dict(table)


def program_too_many_positional():
    match Point(1, 2):
        case Point(1, 2, 3):
            pass


def program_repeated_attribute():
    match Point(1, 2):
        case Point(1, x=1):
            pass


def program_match_args_not_tuple():
    match Strange():
        case Strange(1):
            pass


def program_match_args_not_names():
    match Numbered():
        case Numbered(1):
            pass


def program_pattern_is_no_class():
    kind = 3
    match 1:
        case kind():
            pass


def program_builtin_with_two_positional():
    match 1:
        case int(1, 2):
            pass


def program_duplicate_keys():
    class Keys:
        a = "same"
        b = "same"

    match {"same": 1}:
        case {Keys.a: x, Keys.b: y}:
            return x, y


def program_length_raises():
    class Bad(list):
        def __len__(self):
            raise OSError("len")

    match Bad():
        case [1, 2]:
            pass


def program_attribute_raises():
    class Bad:
        __match_args__ = ("x",)

        @property
        def x(self):
            raise OSError("x")

    match Bad():
        case Bad(1):
            pass


def program_missing_attribute_is_no_match():
    class Half:
        __match_args__ = ("x",)

    match Half():
        case Half(1):
            return 1
        case Half():
            return 2


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
