"""What a call makes anew must not make a segment that no other call fits: such a function would be recorded at each call.

Laws
  F1  A look-up by a key of built-in immutable types finds an equal key, whichever object it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import frametap

CALLS = 10


def recordings(f: Callable[..., torch.Tensor], *more: Callable[[], Any]) -> int:
    """Compares `CALLS` calls with plain Python; gives how many were recorded."""
    captured = frametap.compile(f)
    for i in range(CALLS):
        x = torch.arange(4.0) + i
        assert torch.equal(
            captured(x, *(make() for make in more)), f(x, *(make() for make in more))
        )
    return frametap.explain(captured).recordings


def nested(value: object, depth: int) -> object:
    return nested((value,), depth - 1) if depth else value


# Each makes an equal key, another object each time.
KEYS: dict[str, Callable[[], Any]] = {
    "frozenset": lambda: frozenset({0}),
    "mixed frozenset": lambda: frozenset({0, "a", (1, 2), frozenset({3})}),
    "empty frozenset": lambda: frozenset(()),
    "tuple of frozenset": lambda: (frozenset({1}), 2),
    "deep tuple": lambda: nested(1, 6),
    "range": lambda: range(3),
    "device": lambda: torch.device("cpu"),
    "dtype and device": lambda: (torch.float32, torch.device("cpu")),
    "Size": lambda: torch.Size([4]),
}


@pytest.mark.parametrize("name", KEYS)
def test_f1_a_key_in_a_dict_that_another_look_up_gave(name: str) -> None:
    make = KEYS[name]
    table = {make(): {make(): 2.0}}

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + table[make()][make()]

    assert recordings(f) == 1


@pytest.mark.parametrize("name", KEYS)
def test_f1_a_key_in_a_dict_that_is_made_for_each_call(name: str) -> None:
    make = KEYS[name]

    def f(x: torch.Tensor, table: dict[Any, float]) -> torch.Tensor:
        return x + table[make()] + (1 if make() in table else 2) + table.get(make(), 3.0)

    assert recordings(f, lambda: {make(): 2.0}) == 1


def test_f1_an_equal_key_may_be_of_another_type() -> None:
    captured = frametap.compile(lambda x, table: x + table[frozenset({1})])
    x = torch.ones(2)
    for table in ({frozenset({1}): 5}, {frozenset({True}): 6}, {frozenset({1.0}): 7}):
        assert torch.equal(captured(x, table), x + table[frozenset({1})])


def test_f1_other_elements_are_another_key() -> None:
    def f(x: torch.Tensor, table: dict[Any, float]) -> torch.Tensor:
        return x + table.get(frozenset({1, 2}), 9.0)

    captured = frametap.compile(f)
    x = torch.ones(2)
    for keys in ({1, 2}, {1}, {1, 2, 3}, {2, 1}, {"1", 2}, {b"1", "1"}):
        table = {frozenset(keys): 4.0, (1, 2): 3.0}
        assert torch.equal(captured(x, table), f(x, table))
