"""Greenlets: each has a C stack of its own on one thread, and a captured call lives on the C stack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.subject import frametap

greenlet = pytest.importorskip("greenlet").greenlet


def body(x: Tensor, steps: int, turn: Any) -> list[float]:
    seen = []
    for i in range(steps):
        x = x * 2 + i
        seen.append(turn(float(x.sum())))
        x = x - 1
    return [*seen, float(x.sum())]


def interleaved(f: Any, count: int, steps: int) -> list[list[float]]:
    """`count` calls of `f`, each on a greenlet of its own, in turns."""
    results: list[list[float]] = []

    def run(number: int) -> None:
        parent = greenlets[number].parent
        results.append(f(torch.full((2,), float(number)), steps + number % 2, parent.switch))

    greenlets = [greenlet(lambda number=number: run(number)) for number in range(count)]
    alive = [(one, None) for one in greenlets]
    while alive:
        alive = [
            (one, answer)
            for one, value in alive
            for answer in [one.switch() if value is None else one.switch(value / 2)]
            if not one.dead
        ]
    return results


def test_calls_that_take_turns() -> None:
    want = interleaved(body, 3, 4)
    f = frametap.compile(body)
    for _ in range(3):
        assert interleaved(f, 3, 4) == want


def test_greenlets_that_begin_with_a_captured_call() -> None:
    """They have no Python frame below the call, and take turns inside of it."""
    main = greenlet.getcurrent()

    def twice(x: Tensor) -> Tensor:
        y = x * 2
        main.switch()
        return y + 1

    f = frametap.compile(twice)
    for _ in range(3):
        one, other = greenlet(f), greenlet(f)
        one.switch(torch.ones(2))
        other.switch(torch.zeros(2))
        assert one.switch().tolist() == [3.0, 3.0]
        assert other.switch().tolist() == [1.0, 1.0]
    assert frametap.segments(f)


def test_other_code_runs_while_a_call_waits() -> None:
    def outer(x: Tensor, turn: Any) -> Tensor:
        y = x + 1
        turn()
        return y * 2

    f = frametap.compile(outer)
    g = frametap.compile(lambda x: (x - 1).relu())
    main = greenlet.getcurrent()
    for _ in range(3):
        one = greenlet(lambda: f(torch.ones(2), main.switch))
        one.switch()
        assert torch.equal(g(torch.full((2,), 3.0)), torch.full((2,), 2.0))
        assert sorted([3, 1, 2], key=lambda n: -n) == [3, 2, 1]
        assert torch.equal(one.switch(), torch.full((2,), 4.0))


def test_a_call_that_is_never_gone_on_with() -> None:
    def outer(x: Tensor, turn: Any) -> Tensor:
        y = x + 1
        turn()
        return y * 2

    f = frametap.compile(outer)
    main = greenlet.getcurrent()
    for _ in range(3):
        one = greenlet(lambda: f(torch.ones(2), main.switch))
        one.switch()
        del one  # GreenletExit is raised inside of it
        assert torch.equal(f(torch.ones(2), lambda: None), torch.full((2,), 4.0))
