"""An int in a class that changes between calls is recorded once more, and is then left open."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.subject import EAGER, frametap


@pytest.mark.skipif(EAGER, reason="there are recordings only where something is captured")
def test_a_counter_that_is_read_is_not_recorded_at_each_call() -> None:
    class Step:
        calls = 0

        def __call__(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return x * 2 if self.calls > 4 else x + 1

    step = Step()
    captured = frametap.compile(lambda x: step(x))
    results = [captured(torch.full((1,), 3.0)).item() for _ in range(12)]
    assert results == [4.0] * 4 + [6.0] * 8
    seen = frametap.explain(captured)
    assert seen.recordings <= 5, seen


class Meta(type):
    rate = 1


class Base:
    n = 1


class Counted(Base, metaclass=Meta):
    calls = 1
    __match_args__ = ("calls",)

    def through_super(self, x: Tensor) -> Any:
        return x, super().n

    def own_and_through_super(self, x: Tensor) -> Any:
        return x, self.n, super().n


class Hides(Counted):
    n = 100


class Hidden(Counted):
    def __init__(self) -> None:
        self.calls = 50


def by_pattern(x: Tensor, one: Counted) -> Any:
    match one:
        case Counted(calls=n):
            return x, n, one.calls


def by_place(x: Tensor, one: Counted) -> Any:
    match one:
        case Counted(n):
            return x, n, one.calls


def of_a_fresh_one(x: Tensor, one: Counted) -> Any:
    made = type(one)()
    match made:
        case Counted(n):
            return x, n, made.calls


def stored_in_the_instance(x: Tensor, one: Counted) -> Any:
    made = Counted()
    made.calls = 7
    return x, made.calls, type(made).calls


BY_NAME = operator.attrgetter("calls", "n")
# Ways to read an int of a class, of its base or of its metaclass.
READS: dict[str, Callable[[Tensor, Counted], Any]] = {
    "instance": lambda x, one: (x, one.calls),
    "base": lambda x, one: (x, one.n),
    "class": lambda x, one: (x, type(one).calls, Counted.n),
    "metaclass": lambda x, one: (x, Counted.rate),
    "metaclass by name": lambda x, one: (x, getattr(type(one), "rate", 0)),
    "class of the class": lambda x, one: (x, type(type(one)).rate, Counted.rate),
    "by name": lambda x, one: (x, getattr(one, "calls"), getattr(one, "n", 0)),  # noqa: B009
    "getter": lambda x, one: (x, BY_NAME(one), one.calls),
    "plain look-up": lambda x, one: (x, object.__getattribute__(one, "n"), one.n),
    "dict": lambda x, one: (x, Counted.__dict__["calls"], Base.__dict__["n"]),
    "vars": lambda x, one: (x, vars(Counted)["calls"], one.calls),
    "truth": lambda x, one: x + 1 if one.calls else x,
    "is there": lambda x, one: (x, hasattr(one, "calls"), one.calls),
    "text": lambda x, one: (x, f"{one.calls} {Counted.rate}"),
    "super": lambda x, one: one.through_super(x),
    "own and super": lambda x, one: one.own_and_through_super(x),
    "hidden and super": lambda x, one: HIDES.own_and_through_super(x),
    "hidden by an attribute": lambda x, one: (x, HIDDEN.calls, type(HIDDEN).calls),
    "pattern": by_pattern,
    "place in a pattern": by_place,
    "pattern of a fresh one": of_a_fresh_one,
    "stored": stored_in_the_instance,
}
ONE, HIDES, HIDDEN = Counted(), Hides(), Hidden()


@pytest.fixture
def values() -> Iterator[Callable[[Any], None]]:
    def change(value: Any) -> None:
        Meta.rate = Base.n = Counted.calls = value

    yield change
    change(1)


@pytest.mark.parametrize("first", ["no counter yet", "counters"])
@pytest.mark.parametrize("read", READS)
def test_each_read_of_a_class_sees_the_int_that_is_there(
    read: str, first: str, values: Callable[[Any], None]
) -> None:
    if first == "counters":
        for value in (5, 6, 7):  # each name is seen to change here
            values(value)
            noting(torch.ones(1), ONE)
    plain = READS[read]
    captured = frametap.compile(plain)
    for value in (1, 1, 2, 2, 3, 1, 0, 9, True, 1, 2.5, 3, 3):
        values(value)
        want, got = plain(torch.ones(1), ONE), captured(torch.ones(1), ONE)
        assert str(want) == str(got), value


noting = frametap.compile(lambda x, one: (x, one.calls, one.n, Counted.rate, type(one).calls))


@pytest.mark.skipif(EAGER, reason="there are recordings only where something is captured")
@pytest.mark.parametrize("read", ["instance", "base", "class", "metaclass", "super", "stored"])
def test_a_read_that_is_followed_leaves_the_int_open(
    read: str, values: Callable[[Any], None]
) -> None:
    captured = frametap.compile(READS[read])
    for value in range(20, 40):
        values(value)
        captured(torch.ones(1), ONE)
    assert frametap.explain(captured).recordings <= 5
