"""How many recordings a function needs when its arguments vary: one for each way it goes, and no more."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is recorded")

X = torch.arange(12.0).reshape(4, 3)


def recordings(f: Callable[..., Any], calls: list[tuple[Any, ...]]) -> int:
    """Makes each of `calls` twice and compares it with a plain one."""
    captured = frametap.compile(f)
    for _ in range(2):
        for arguments in calls:
            torch.testing.assert_close(captured(*arguments), f(*arguments), rtol=0, atol=0)
    return len(frametap.segments(captured))


def apply(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    return f(x) + 1


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(3)
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(torch.relu(self.linear(x)))


class Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def apply(self, x: Tensor) -> Tensor:
        return x * self.factor


def scaled_by(factor: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


def test_batch_sizes() -> None:
    assert recordings(lambda x: x * 2 + 1, [(torch.ones(n, 3),) for n in range(1, 21)]) == 1


def test_counters_that_are_compared() -> None:
    assert recordings(lambda x, n: x * 2 if n > 100 else x * 3, [(X, n) for n in range(20)]) == 1


def test_fresh_lambdas() -> None:
    assert recordings(apply, [(X, lambda x: x * 2) for _ in range(20)]) == 1


def test_fresh_closures_with_equal_values() -> None:
    assert recordings(apply, [(X, scaled_by(2.0)) for _ in range(20)]) == 1


def test_fresh_closures_with_three_values() -> None:
    """The number is fixed, until it is seen to change."""
    assert recordings(apply, [(X, scaled_by(float(n % 3))) for n in range(20)]) == 2


def test_fresh_closures_over_tensors() -> None:
    assert recordings(apply, [(X, scaled_by(torch.full((3,), float(n)))) for n in range(20)]) == 1


def test_fresh_partials() -> None:
    assert recordings(apply, [(X, functools.partial(torch.add, other=1)) for _ in range(20)]) == 1


def test_methods_of_fresh_instances() -> None:
    assert recordings(apply, [(X, Scale(2.0).apply) for _ in range(20)]) == 1


def test_local_function_behind_a_break(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: Tensor) -> Tensor:
        factor = 3

        def inner(y: Tensor) -> Tensor:
            return y * factor

        z = inner(x)
        print(end="")
        return inner(z) + 1

    assert recordings(f, [(X,)] * 20) == 2


def test_strings_and_lengths_of_lists() -> None:
    def by_name(x: Tensor, name: str) -> Tensor:
        return x + 1 if name.startswith("a") else x * 2

    def total(items: list[Tensor]) -> Tensor:
        return functools.reduce(torch.add, items)

    assert recordings(by_name, [(X, f"{'ab'[n % 2]}{n}") for n in range(20)]) == 20
    assert recordings(total, [([X] * n,) for n in range(1, 21)]) == 20


def test_blocks_of_one_class() -> None:
    blocks = [Block(n) for n in range(100)]
    assert recordings(Block.forward, [(block, X) for block in blocks]) == 1
    assert recordings(lambda x, block: block(x), [(X, block) for block in blocks]) == 1


def test_blocks_between_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = nn.ModuleList(Block(n) for n in range(20))

    def f(x: Tensor) -> Tensor:
        for block in blocks:
            x = block(x)
            print(end="")
        return x

    # The first round, from the start, a round between two breaks, and the way out of the loop.
    assert recordings(f, [(X,)] * 3) <= 3


def test_by_identity_each_block_has_its_own() -> None:
    captured = frametap.compile(Block.forward, options={"by_identity": True})
    for block in [Block(n) for n in range(5)]:
        torch.testing.assert_close(captured(block, X), block(X), rtol=0, atol=0)
    assert len(frametap.segments(captured)) == 5


def test_many_segments_at_one_entry() -> None:
    """They are found again, whichever fact distinguishes them."""

    class Mode:
        name = ""
        level = 0

    mode = Mode()

    def f(x: Tensor) -> Tensor:
        return x + len(mode.name) if mode.level == 3 else x * sum(range(mode.level + 1))

    captured = frametap.compile(f, options={"segment_limit": 200})
    for _ in range(3):
        for n in range(60):
            mode.name, mode.level = f"name{n}", n % 30
            torch.testing.assert_close(captured(X), f(X), rtol=0, atol=0)
    assert len(frametap.segments(captured)) == 31
