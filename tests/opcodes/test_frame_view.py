"""The facts of code objects in frame_view.h: instructions, positions, liveness, and the start of a frame."""

# ruff: noqa: S102

from __future__ import annotations

import dis
import inspect
import json
import types
from collections.abc import Callable
from typing import Any

from opcodes.harness import interpreter


def sample(a: int, b: int, *rest: int, **more: int) -> Any:
    total = 0
    for i in range(a):
        try:
            total += len(rest) // b
        except ZeroDivisionError as error:
            total = str(error)
        if total is None:
            continue
        while i:
            i -= 1
    return lambda: (total, more.get("x", default=b) if False else sorted(rest, key=abs))


def codes() -> list[types.CodeType]:
    found = []

    def add(code: types.CodeType) -> None:
        found.append(code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                add(constant)

    for module in (inspect, json.decoder, json.encoder, dis):
        add(compile(inspect.getsource(module), module.__name__, "exec"))
    add(sample.__code__)
    return found


def groups(code: types.CodeType) -> list[tuple[dis.Instruction, dis.Instruction]]:
    """First and acting instruction of each: prefixes and the call group belong together."""
    result = []
    first = None
    for instruction in dis.get_instructions(code):
        first = first or instruction
        if instruction.opname in ("EXTENDED_ARG", "KW_NAMES", "PRECALL"):
            continue
        result.append((first, instruction))
        first = None
    return result


def test_instructions_of_whole_modules() -> None:
    for code in codes():
        offset = 0
        for first, acting in groups(code):
            assert offset == first.offset
            name, after, branch, back, returns = interpreter.instruction_at(code, offset)
            assert name == acting.opname
            assert bool(branch) == ("JUMP" in name and "IF" in name)
            assert bool(back) == ("BACKWARD" in name)
            assert bool(returns) == (name == "RETURN_VALUE")
            offset = after
        assert offset == len(code.co_code)


def test_specialised_code_reads_the_same() -> None:
    def hot(n: int) -> int:
        total = 0
        for i in range(n):
            total += i
            str(total).strip()
        return total

    def read() -> list[str]:
        names, offset = [], 0
        while offset < len(hot.__code__.co_code):
            name, offset, *_ = interpreter.instruction_at(hot.__code__, offset)
            names.append(name)
        return names

    before = read()
    for _ in range(100):
        hot(100)
    assert read() == before
    assert interpreter.run(hot, 100) == hot(100)


def test_positions() -> None:
    for code in codes():
        places = list(code.co_positions())
        for first, acting in groups(code):
            function, line, column, file = interpreter.position_at(code, first.offset)
            # An instruction without a line, such as the end of a handler, has the line of the instruction before it.
            known = [place for place in places[: acting.offset // 2 + 1] if place[0]]
            want_line, _, want_column, _ = known[-1] if known else (0, None, None, None)
            assert line == want_line
            if want_line:
                assert column == (-1 if want_column is None else want_column)
            assert file == code.co_filename
            assert function == code.co_qualname.rpartition("<locals>.")[2]


def test_start_is_after_resume() -> None:
    for code in codes():
        start = interpreter.start_offset(code)
        names = [i.opname for i in dis.get_instructions(code) if i.offset < start]
        assert names[-1] == "RESUME"
        assert names.count("RESUME") == 1


def offset_of(function: Callable[..., Any], opname: str, nth: int = 0, argval: Any = None) -> int:
    found = [
        i
        for i in dis.get_instructions(function)
        if i.opname == opname and (argval is None or i.argval == argval)
    ]
    return found[nth].offset


def live(function: Callable[..., Any], offset: int) -> set[str]:
    return set(interpreter.live_locals(function.__code__, offset))


def test_live_straight_line() -> None:
    def f(a, b, unused):
        c = a + b
        d = c * 2
        return d

    start = interpreter.start_offset(f.__code__)
    assert live(f, start) == {"a", "b"}
    assert live(f, offset_of(f, "STORE_FAST", argval="c")) == set()
    assert live(f, offset_of(f, "LOAD_FAST", argval="c")) == {"c"}
    assert live(f, offset_of(f, "RETURN_VALUE")) == set()


def test_live_in_loop() -> None:
    def f(n, step):
        total = 0
        for i in range(n):
            total += step
        return total

    assert live(f, offset_of(f, "FOR_ITER")) == {"step", "total"}
    assert live(f, offset_of(f, "STORE_FAST", argval="i")) == {"step", "total"}


def test_live_through_handler() -> None:
    def f(a, fallback):
        value = 1
        try:
            value = a.x
        except AttributeError:
            return fallback, value
        return value

    assert live(f, offset_of(f, "LOAD_FAST", argval="a")) == {"a", "fallback", "value"}
    # The store itself is inside the `try`: until it is done the old value can be asked for.
    assert live(f, offset_of(f, "STORE_FAST", 1, "value")) >= {"fallback", "value"}


def test_live_at_branch() -> None:
    def f(a, b, c):
        if a:
            return b
        return c

    assert live(f, interpreter.start_offset(f.__code__)) == {"a", "b", "c"}
    assert live(f, offset_of(f, "LOAD_FAST", argval="c")) == {"c"}


def test_delete_reads() -> None:
    def f(a):
        del a
        a = 1
        return a

    assert live(f, interpreter.start_offset(f.__code__)) == {"a"}


def test_cells_are_live() -> None:
    def f(a, b):
        def g():
            return a

        g()
        return 1

    assert "a" in live(f, offset_of(f, "RETURN_VALUE"))
    assert "b" not in live(f, offset_of(f, "RETURN_VALUE"))


def test_all_live_where_locals_can_be_seen() -> None:
    def f(a, b):
        c = 1
        return locals()

    assert live(f, offset_of(f, "RETURN_VALUE")) == {"a", "b", "c"}


def test_super_reads_the_first_argument() -> None:
    class A(list):
        def f(self, other):
            other = super().copy()
            return other

    assert live(A.f, interpreter.start_offset(A.f.__code__)) >= {"self"}


def test_more_than_64_locals() -> None:
    lines = "\n".join(f"    v{i} = x" for i in range(200))
    space: dict[str, Any] = {}
    exec(f"def f(x):\n{lines}\n    return v3, v199\n", space)
    assert live(space["f"], offset_of(space["f"], "BUILD_TUPLE")) == set()
    assert live(space["f"], offset_of(space["f"], "LOAD_FAST", argval="v3")) == {"v3", "v199"}


def test_version() -> None:
    assert interpreter.version_problem() == ""


def test_table_is_freed_with_its_code() -> None:
    for i in range(1000):
        space: dict[str, Any] = {}
        exec(f"def f(x):\n    y = x + {i}\n    return y\n", space)
        interpreter.live_locals(space["f"].__code__, 0)
