"""Generators, coroutines, asynchronous iteration."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import sys
import types

import pytest

from opcodes.harness import Program, check, programs


def numbers(n):
    for i in range(n):
        got = yield i
        if got:
            yield got


def drive(coroutine):
    """Runs a coroutine to its end; what it yielded on the way, and its result."""
    seen = []
    try:
        while True:
            seen.append(coroutine.send(None))
    except StopIteration as stop:
        return seen, stop.value


class Yields:
    def __init__(self, *values):
        self.values = values

    def __await__(self):
        for value in self.values:
            yield value
        return sum(self.values)


class Ticker:
    def __init__(self, n):
        self.n = n

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self.n == 0:
            raise StopAsyncIteration
        self.n -= 1
        return await Yields(self.n)


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    async def __aenter__(self):
        self.log.append(await Yields(1))
        return self

    async def __aexit__(self, kind, value, traceback):
        self.log.append((kind and kind.__name__, await Yields(2)))
        return self.swallow


def program_generator():
    g = numbers(3)
    return next(g), g.send("x"), next(g), list(g), list(g)


def program_generator_state():
    g = numbers(2)
    states = [inspect.getgeneratorstate(g)]
    next(g)
    states.append(inspect.getgeneratorstate(g))
    states.append(inspect.getgeneratorlocals(g))
    g.close()
    states.append(inspect.getgeneratorstate(g))
    return states, g.gi_yieldfrom


def program_throw():
    def gen():
        while True:
            try:
                yield "waiting"
            except ValueError as e:
                yield f"caught {e}"

    g = gen()
    return next(g), g.throw(ValueError("v")), next(g), g.throw(ValueError, "w")


def program_throw_uncaught():
    g = numbers(2)
    next(g)
    g.throw(KeyError("thrown"))


def program_return_value():
    def gen():
        yield 1
        return "result"

    g = gen()
    next(g)
    try:
        next(g)
    except StopIteration as e:
        return e.value


def program_stop_iteration_inside():
    def gen():
        yield 1
        raise StopIteration

    return list(gen())


def program_yield_from():
    def inner():
        got = yield 1
        yield got
        return "inner result"

    def outer():
        result = yield from inner()
        yield result
        yield from [7, 8]
        yield from numbers(2)

    g = outer()
    return next(g), g.send("sent"), list(g)


def program_yield_from_throw():
    log = []

    def inner():
        try:
            yield 1
        except KeyError:
            log.append("inner")
            yield 2

    def outer():
        yield from inner()

    g = outer()
    return next(g), g.throw(KeyError), list(g), log


def program_generator_raises():
    def gen():
        yield 1
        yield 1 / 0

    return list(gen())


def program_generator_in_try():
    def gen():
        try:
            for x in numbers(3):
                yield x
        finally:
            log.append("closed")

    log = []
    for x in gen():
        if x == 1:
            break
    gc.collect()
    return log, x


def program_generator_exc_info():
    def gen():
        try:
            raise ValueError("inside")
        except ValueError:
            yield sys.exc_info()[0].__name__
            yield sys.exc_info()[0].__name__

    g = gen()
    log = [next(g), sys.exc_info()[0]]
    try:
        raise KeyError
    except KeyError:
        log += [next(g), sys.exc_info()[0].__name__]
    return log


def program_generator_running():
    def gen():
        yield next(g)

    g = gen()
    return next(g)


def program_generator_expressions():
    n = 3
    return (
        sum(x * n for x in range(5)),
        tuple(y for x in range(3) for y in range(x)),
        dict((k, v) for k, v in ["ab"]),
    )


def program_infinite_generator():
    def count():
        n = 0
        while True:
            yield n
            n += 1

    return list(itertools.islice(count(), 5)), list(zip(count(), "abc"))


def program_coroutine():
    async def inner(x):
        return x + await Yields(x, 2)

    async def outer():
        a = await inner(1)
        b = await inner(a)
        return a, b

    return drive(outer())


def program_async_for():
    async def main():
        out = []
        async for x in Ticker(3):
            out.append(x)
        out.append("else")
        return out, [x async for x in Ticker(2)], {x async for x in Ticker(2)}

    return drive(main())


def program_async_generator():
    async def produce(n):
        for i in range(n):
            got = yield i + await Yields(i)
            if got:
                yield got

    async def main():
        out = [x async for x in produce(3)]
        g = produce(2)
        out.append(await g.__anext__())
        out.append(await g.asend("sent"))
        try:
            await g.athrow(KeyError("thrown"))
        except KeyError as e:
            out.append(str(e))
        await g.aclose()
        return out

    return drive(main())


def program_async_with():
    log = []

    async def main():
        async with Manager(log), Manager(log, swallow=True):
            log.append("body")
            raise ValueError("x")
        return await Yields(5)

    return drive(main()), log


def program_async_with_raises():
    async def main():
        async with Manager([]):
            raise ValueError("x")

    drive(main())


def program_await_not_awaitable():
    async def main():
        await 3

    drive(main())


def program_await_twice():
    async def inner():
        await Yields(1)

    async def main():
        c = inner()
        await c
        await c

    drive(main())


def program_awaited_already():
    async def inner():
        await Yields(1)

    async def wait(c):
        await c

    c = inner()
    first, second = wait(c), wait(c)
    first.send(None)
    try:
        second.send(None)
    except RuntimeError as e:
        return str(e)
    finally:
        first.close()
        c.close()


def program_bad_await_result():
    class Bad:
        def __await__(self):
            return 3

    async def main():
        await Bad()

    drive(main())


def program_await_returns_coroutine():
    async def inner():
        pass

    class Bad:
        def __init__(self):
            self.c = inner()

        def __await__(self):
            return self.c

    bad = Bad()

    async def main():
        await bad

    try:
        drive(main())
    except TypeError as e:
        return str(e)
    finally:
        bad.c.close()


def program_async_for_over_list():
    async def main():
        async for x in [1]:
            return x

    drive(main())


def program_async_for_bad_aiter():
    class Bad:
        def __aiter__(self):
            return 3

    async def main():
        async for x in Bad():
            return x

    drive(main())


def program_async_for_bad_anext():
    class Bad:
        def __aiter__(self):
            return self

        def __anext__(self):
            return 3

    async def main():
        async for x in Bad():
            return x

    drive(main())


def program_async_for_raises():
    class Fails(Ticker):
        async def __anext__(self):
            raise OSError("anext")

    async def main():
        async for x in Fails(3):
            return x

    drive(main())


def program_async_with_sync_manager():
    class Sync:
        def __enter__(self):
            pass

        def __exit__(self, *args):
            pass

    async def main():
        async with Sync():
            pass

    drive(main())


def program_async_with_bad_enter():
    class Bad:
        def __aenter__(self):
            return 3

        async def __aexit__(self, *args):
            pass

    async def main():
        async with Bad():
            pass

    drive(main())


def program_coroutine_in_plain_generator():
    async def c():
        pass

    def gen(coroutine):
        yield from coroutine

    coroutine = c()
    try:
        list(gen(coroutine))
    except TypeError as e:
        return str(e)
    finally:
        coroutine.close()


def program_types_coroutine():
    @types.coroutine
    def old():
        got = yield "from old"
        return got

    async def main():
        return await old()

    c = main()
    first = c.send(None)
    try:
        c.send("answer")
    except StopIteration as e:
        return first, e.value


def program_asyncio():
    async def work(n):
        await asyncio.sleep(0)
        if n == 2:
            raise ValueError(n)
        return n * 2

    async def main():
        results = await asyncio.gather(*(work(n) for n in range(4)), return_exceptions=True)
        return [repr(r) for r in results]

    return asyncio.run(main())


def program_coroutine_close():
    log = []

    async def main():
        try:
            await Yields(1, 2)
        finally:
            log.append("closed")

    c = main()
    c.send(None)
    c.close()
    return log


def program_generator_method_on_object():
    class Tree:
        def __init__(self, value, *children):
            self.value, self.children = value, children

        def __iter__(self):
            yield self.value
            for child in self.children:
                yield from child

    return list(Tree(1, Tree(2, Tree(3)), Tree(4)))


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
