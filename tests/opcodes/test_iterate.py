"""Iteration and unpacking."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import pytest

from opcodes.harness import Program, check, programs


class Counting:
    def __init__(self, n, error=None):
        self.n, self.error = n, error

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise self.error if self.error else StopIteration
        self.n -= 1
        return self.n


class Sequence:
    def __getitem__(self, i):
        if i > 2:
            raise IndexError
        return i * 10


def program_unpack():
    a, b = 1, 2
    (c, (d, e)), f = ((3, [4, 5]), 6)
    g, h, i = "xyz"
    j, k = {"p": 1, "q": 2}
    l, m = Counting(2)
    n, o, p = Sequence()
    () = []
    [] = ()
    return a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p


def program_unpack_star():
    a, *b = range(4)
    *c, d = "abc"
    e, *f, g = [1, 2]
    h, *i, j, k = Counting(6)
    return a, b, c, d, e, f, g, h, i, j, k


def program_unpack_in_loop():
    return [(i, k, v) for i, (k, v) in enumerate({"a": 1, "b": 2}.items())]


def program_too_few():
    a, b, c = 1, 2
    return a, b, c


def program_too_many():
    a, b = [1, 2, 3]
    return a, b


def program_too_many_from_iterator():
    a, b = Counting(3)
    return a, b


def program_too_few_from_iterator():
    a, b, c = Counting(2)
    return a, b, c


def program_too_few_for_star():
    a, *b, c = [1]
    return a, b, c


def program_too_few_before_star():
    a, b, *c = Counting(1)
    return a, b, c


def program_unpack_not_iterable():
    a, b = 1
    return a, b


def program_unpack_iterator_raises():
    a, b = Counting(1, KeyError("broken"))
    return a, b


def program_for_over_own_iterators():
    return [x for x in Counting(3)], [x for x in Sequence()], [x for x in iter(int, 0)]


def program_for_iterator_raises():
    for x in Counting(1, ValueError("broken")):
        seen = x
    return seen


def program_for_not_iterable():
    for x in 3:
        return x


def program_iterator_protocols():
    return (
        list(zip(range(2), "ab")),
        dict(enumerate("ab")),
        sum(range(5)),
        any(x > 1 for x in range(3)),
    )


def program_changing_dict():
    table = {1: 1}
    for key in table:
        table[key + 1] = 1


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
