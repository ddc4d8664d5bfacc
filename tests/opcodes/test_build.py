"""Displays, comprehensions, f-strings."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import pytest

from opcodes.harness import Program, check, programs


class Loud:
    def __format__(self, spec):
        return f"<{spec}>"

    def __str__(self):
        return "str"

    def __repr__(self):
        return "repr"


class Broken:
    def __hash__(self):
        raise TypeError("no hash")

    def __format__(self, spec):
        raise ValueError("no format")


def program_displays():
    a, b = 1, 2
    return (), (a,), [a, b], [], {a, b}, {a: b, "k": a}, {}, {"x": a, "y": b}, (a, b, [a])


def program_big_displays():
    a = 1
    return (
        [a, 2, 3, 4, 5, 6, 7, 8],
        {a: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 6},
        {a, 2, 3, 4, 5, 6, 7},
        {"a": a, "b": a, "c": a, "d": a, "e": a, "f": a, "g": a},
    )


def program_spread():
    a, d = [1, 2], {"x": 1}
    return [*a, 3, *a], (*a, *"xy"), {*a, 4}, {**d, "y": 2, **d}


def program_comprehensions():
    n = 3
    return (
        [x * n for x in range(4) if x % 2],
        {x: n for x in "abc"},
        {x // 2 for x in range(4)},
        list(x + y for x in range(2) for y in range(n)),
        [[y for y in range(x)] for x in range(3)],
    )


def program_format():
    x, width = 3.14159, 10
    thing = Loud()
    return (
        f"{x:.2f} {x!r} {x:{width}.3f} {thing} {thing!s} {thing!r} {thing!a} {thing:spec} {'t'} {x=}",
        f"{x}",
        "",
    )


def program_format_raises():
    return f"a{Broken()}b"


def program_unhashable_key():
    return {[]: 1}


def program_unhashable_member():
    return {1, []}


def program_broken_hash():
    return {Broken(): 1}


def program_spread_not_iterable():
    return [*1]


def program_spread_not_iterable_in_set():
    return {*1}


def program_spread_not_mapping():
    return {**1}


def program_comprehension_raises():
    return [1 // x for x in (2, 1, 0)]


def program_set_comprehension_raises():
    return {x for x in (1, [])}


def program_dict_comprehension_raises():
    return {x: 1 for x in (1, [])}


def program_slice_objects():
    class Keys:
        def __getitem__(self, key):
            return key

    keys = Keys()
    return keys[1:2], keys[::3], keys[1:2, :]


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
