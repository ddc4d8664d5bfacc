"""Coroutines, event loops, generators and context variables around and inside of captured functions."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap

ROUNDS = 4
level: contextvars.ContextVar[int] = contextvars.ContextVar("level", default=1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Tensor, n: int) -> Tensor:
        h = self.lin(x) * n
        if h.sum() > 100:
            h = h + 1
        return h.relu()


def test_tasks_call_one_captured_function() -> None:
    net = Net()
    f = frametap.compile(net)

    async def task(n: int) -> list[tuple[Tensor, Tensor]]:
        pairs = []
        for i in range(ROUNDS):
            x = torch.randn(1 + n % 3, 3)
            pairs.append((f(x, i), net(x, i)))
            await asyncio.sleep(0)
        return pairs

    async def main() -> None:
        for pairs in await asyncio.gather(*(task(n) for n in range(6))):
            assert all(torch.equal(got, want) for got, want in pairs)

    asyncio.run(main())


async def awaited(x: Tensor) -> Tensor:
    await asyncio.sleep(0)
    return x * 2


async def async_numbers(x: Tensor, n: int) -> AsyncIterator[Tensor]:
    try:
        for i in range(n):
            await asyncio.sleep(0)
            yield x + i
    finally:
        await asyncio.sleep(0)


class AsyncManager:
    async def __aenter__(self) -> int:
        await asyncio.sleep(0)
        return 3

    async def __aexit__(self, *error: object) -> bool:
        await asyncio.sleep(0)
        return error[0] is KeyError


async def coroutine(x: Tensor, n: int) -> Any:
    y = x + 1
    async with AsyncManager() as three:
        y = y * three
        if n == 2:
            raise KeyError(n)
        async for z in async_numbers(y, n):
            y = y + z
            if n == 3:
                break
    y = y + sum([v.sum() async for v in async_numbers(y, 2)])
    first, second = await asyncio.gather(awaited(y), awaited(x))
    if n == 4:
        raise ValueError(n)
    return first + second


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared
        entries = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
        return (
            type(error),
            error.args,
            [(e.function, e.lineno) for e in entries if e.filename == __file__][2:],
        )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)) and len(one) == len(other):
        return all(same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_coroutine_function(n: int) -> None:
    """A coroutine function may be passed to compile: Python drives it."""
    f = frametap.compile(coroutine)
    assert inspect.iscoroutinefunction(inspect.unwrap(f))
    for i in range(ROUNDS):
        x = torch.ones(2) * i
        want = outcome(lambda x=x: asyncio.run(coroutine(x, n)))
        got = outcome(lambda x=x: asyncio.run(f(x, n)))
        assert same(got, want)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4])
def test_loop_inside_of_a_captured_function(n: int) -> None:
    def runs(x: Tensor) -> Any:
        y = x * 2
        z = asyncio.run(coroutine(y, n))
        return z + 1

    f = frametap.compile(runs)
    for i in range(ROUNDS):
        x = torch.ones(2) * i
        assert same(outcome(lambda x=x: f(x)), outcome(lambda x=x: runs(x)))


def test_coroutine_driven_by_hand_inside() -> None:
    @frametap.compile
    def begins(x: Tensor) -> Any:
        return awaited(x + 1)

    @frametap.compile
    def step(c: Any) -> Any:
        try:
            c.send(None)
        except StopIteration as stop:
            return stop.value + 1
        return None

    async def twice(x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + 1
            await _Pause()
        return x

    for _ in range(ROUNDS):
        c = begins(torch.ones(1))
        assert inspect.iscoroutine(c)
        c.close()
        c = twice(torch.ones(1))
        assert step(c) is None
        assert step(c) is None
        assert torch.equal(step(c), torch.ones(1) * 4)


class _Pause:
    def __await__(self) -> Iterator[None]:
        yield


def test_generator_functions() -> None:
    def numbers(x: Tensor, n: int) -> Iterator[Tensor]:
        try:
            for i in range(n):
                got = yield x + i
                if got is not None:
                    x = x + got
        finally:
            closed.append(n)

    closed: list[int] = []
    f = frametap.compile(numbers)
    assert inspect.isgeneratorfunction(inspect.unwrap(f))
    for _ in range(ROUNDS):
        x = torch.ones(2)
        assert all(map(torch.equal, f(x, 3), numbers(x, 3)))
        g, h = f(x, 3), numbers(x, 3)
        assert torch.equal(next(g), next(h))
        assert torch.equal(g.send(x), h.send(x))
        with pytest.raises(KeyError):
            g.throw(KeyError("in"))
        h.close()
        assert closed[-2:] == [3, 3]


def test_generator_shared_between_captured_functions() -> None:
    def numbers(x: Tensor) -> Iterator[Tensor]:
        for i in range(100):
            yield x + i

    take = frametap.compile(lambda g: next(g) * 2)
    for _ in range(ROUNDS):
        g = numbers(torch.zeros(1))
        assert [take(g).item() for _ in range(3)] == [0, 2, 4]


def test_context_variables() -> None:
    def reads(x: Tensor) -> Tensor:
        return x * level.get()

    def sets(x: Tensor) -> Tensor:
        token = level.set(level.get() + 1)
        y = reads(x)
        level.reset(token)
        return y + level.get()

    def leaves_set(x: Tensor) -> Tensor:
        level.set(7)
        return x + level.get()

    for function in (reads, sets, leaves_set):
        f = frametap.compile(function)

        async def task(n: int, f: Any = f, function: Any = function) -> None:
            level.set(n)
            for _ in range(ROUNDS):
                assert torch.equal(
                    f(torch.ones(2)), contextvars.copy_context().run(function, torch.ones(2))
                )
                await asyncio.sleep(0)

        async def main(task: Any = task) -> None:
            await asyncio.gather(*(task(n) for n in range(4)))

        asyncio.run(main())
        context = contextvars.Context()
        assert torch.equal(
            context.run(f, torch.ones(2)), contextvars.Context().run(function, torch.ones(2))
        )
    assert level.get() == 1


def test_cancelled_and_timed_out() -> None:
    net = Net()
    f = frametap.compile(net)

    async def busy() -> None:
        try:
            while True:
                f(torch.ones(2, 3), 1)
                await asyncio.sleep(0)
        finally:
            f(torch.ones(1, 3), 2)

    async def main() -> None:
        task = asyncio.create_task(busy())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await busy()
        assert torch.equal(
            await asyncio.to_thread(f, torch.ones(2, 3), 1), net(torch.ones(2, 3), 1)
        )

    asyncio.run(main())


@pytest.mark.skipif(EAGER, reason="asks for reasons")
def test_the_reason_is_told() -> None:
    def runs(x: Tensor) -> Tensor:
        return asyncio.run(awaited(x * 2)) + 1

    f = frametap.compile(runs)
    f(torch.ones(1))
    assert any(word in str(frametap.explain(f)) for word in ("break at", "given up at"))
