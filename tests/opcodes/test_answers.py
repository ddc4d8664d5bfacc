"""The tracer's answers to AtInstruction are obeyed exactly; interrupts, threads, tracing and depth."""

# ruff: noqa: C408, PLC3002 (calls of these shapes are what is tested)

from __future__ import annotations

import _thread
import ctypes
import dis
import gc
import signal
import sys
import threading
import time
from typing import Any

import pytest

from opcodes.harness import check, describe_error, interpreter, observe, outcome


def add(a: int, b: int) -> int:
    c = a + b
    d = c * 2
    return d


def instruction_count(function: Any, *args: Any) -> int:
    options: dict[str, Any] = {}
    interpreter.run_observed(options, function, *args)
    return options["instructions"]


def test_return_ends_the_frame_with_the_value_given() -> None:
    value = ["given"]
    for n in range(1, instruction_count(add, 1, 2) + 1):
        options = {"return_at": n, "value": value}
        assert interpreter.run_observed(options, add, 1, 2) is value
        assert options["violations"] == []
        assert options["instructions"] == n
    assert sys.getrefcount(value) == 3  # ours, the options', the argument


def test_return_from_the_middle_of_a_call_chain() -> None:
    def inner(x: int) -> int:
        return x + 1

    def outer() -> Any:
        return [inner(1), inner(2)]

    seen = set()
    for n in range(1, instruction_count(outer) + 1):
        seen.add(str(interpreter.run_observed({"return_at": n, "value": 7}, outer)))
    assert seen == {"7", "[7, 3]", "[2, 7]"}


def test_raise_is_as_if_the_instruction_had_raised() -> None:
    def f(a: Any) -> Any:
        try:
            b = a + 1
            return b
        except ValueError:
            return "caught"
        finally:
            a = None

    answers = []
    for n in range(1, instruction_count(f, 1) + 1):
        try:
            answers.append(
                interpreter.run_observed({"raise_at": n, "value": ValueError("given")}, f, 1)
            )
        except ValueError as error:
            assert str(error) == "given"
            answers.append("out")
    assert set(answers) == {"caught", "out"}
    assert answers[0] == "out"  # RESUME is before the try


def test_raise_has_the_position_of_the_instruction() -> None:
    places = []
    for n in range(1, instruction_count(add, 1, 2) + 1):
        with pytest.raises(KeyError) as raised:
            interpreter.run_observed({"raise_at": n, "value": KeyError("given")}, add, 1, 2)
        traceback = raised.value.__traceback__
        while traceback.tb_frame.f_code is not add.__code__:
            traceback = traceback.tb_next
        places.append(traceback.tb_lasti)
    acting = [
        i.offset
        for i in dis.get_instructions(add)
        if i.opname not in ("EXTENDED_ARG", "KW_NAMES", "PRECALL")
    ]
    assert places == acting


def test_reload_goes_on_elsewhere() -> None:
    offsets = {i.argval: i.offset for i in dis.get_instructions(add) if i.opname == "STORE_FAST"}
    load_d = next(
        i.offset for i in dis.get_instructions(add) if i.opname == "LOAD_FAST" and i.argval == "d"
    )
    store_d = offsets["d"]
    # After `c` has been stored, the store of `d` is left out: the frame continues at the load, which finds no `d`.
    options = {"jumps": {("add", store_d): load_d}}
    with pytest.raises(UnboundLocalError):
        interpreter.run_observed(options, add, 1, 2)


def test_leave_hands_over_for_good() -> None:
    options: dict[str, Any] = {"leave_at": 3, "log": 1}
    assert interpreter.run_observed(options, add, 1, 2) == 6
    assert options["handed_over"] == 1
    assert options["instructions"] == 3
    assert len(options["events"]) == 3


def test_a_throwing_tracer_costs_nothing_but_the_frame() -> None:
    got, seen = observe(lambda: [add(1, 2), add(3, 4)], throw_at=20)
    assert got == ("returned", [6, 14])
    assert seen["handed_over"] >= 1


def test_generators_are_told() -> None:
    def gen() -> Any:
        yield 1
        yield 2

    got, seen = observe(lambda: list(gen()))
    assert got == ("returned", [1, 2])
    assert (seen["generators"], seen["yielded"], seen["resumed"]) == (1, 2, 2)


def test_call_group_is_one_instruction() -> None:
    def f() -> Any:
        return dict(a=1, b=2)

    options: dict[str, Any] = {"log": 1}
    interpreter.run_observed(options, f)
    assert options["events"] == [
        "RESUME",
        "LOAD_GLOBAL",
        "LOAD_CONST",
        "LOAD_CONST",
        "CALL",
        "RETURN_VALUE",
    ]


def test_signal_in_a_loop() -> None:
    class Stop(Exception):
        pass

    def handler(number: int, frame: Any) -> None:
        raise Stop

    def spin() -> None:
        while True:
            pass

    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Stop) as raised:
            interpreter.run(spin)
        assert "spin" in str(describe_error(raised.value))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_keyboard_interrupt_is_caught_in_the_frame() -> None:
    def spin() -> str:
        try:
            _thread.interrupt_main()
            while True:
                pass
        except KeyboardInterrupt:
            return "interrupted"

    # A shell script's background jobs ignore SIGINT, and so would this one: the loop would never end.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert interpreter.run(spin) == "interrupted"
    finally:
        signal.signal(signal.SIGINT, old)


def test_exception_from_another_thread() -> None:
    out = []

    def spin() -> None:
        try:
            while True:
                pass
        except KeyError:
            out.append("caught")

    thread = threading.Thread(target=lambda: interpreter.run(spin))
    thread.start()
    time.sleep(0.05)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(KeyError)
    )
    thread.join(10)
    assert out == ["caught"]


def test_other_threads_run_and_are_not_hooked() -> None:
    done = []

    def work() -> int:
        total = 0
        for i in range(20000):
            total += i
        done.append(total)
        return total

    threads = [threading.Thread(target=work) for _ in range(3)]

    def main() -> int:
        for thread in threads:
            thread.start()
        total = work()
        for thread in threads:
            thread.join()
        return total

    options: dict[str, Any] = {}
    assert interpreter.run_observed(options, main) == sum(range(20000))
    assert len(done) == 4
    assert options["violations"] == []


def test_every_thread_has_its_own_scope() -> None:
    results = []

    def work(n: int) -> int:
        return sum(i * n for i in range(500))

    def start(n: int) -> None:
        for _ in range(30):
            results.append(interpreter.run(work, n) == work(n))

    threads = [threading.Thread(target=start, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 120
    assert not interpreter.hook_installed()


def test_hook_steps_aside_for_a_tracer() -> None:
    events = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is add.__code__:
            events.append((event, frame.f_lineno - add.__code__.co_firstlineno))
        return trace

    options: dict[str, Any] = {}
    sys.settrace(trace)
    try:
        interpreter.run_observed(options, add, 1, 2)
    finally:
        sys.settrace(None)
    assert events == [("call", 0), ("line", 1), ("line", 2), ("line", 3), ("return", 3)]
    assert options["frames"] == 0


def test_tracing_switched_on_in_mid_frame() -> None:
    def program() -> Any:
        events = []

        def trace(frame: Any, event: str, arg: Any) -> Any:
            events.append((frame.f_code.co_name, event))
            return trace

        def f() -> int:
            sys.settrace(trace)
            sys._getframe().f_trace = trace
            x = add(1, 2)
            sys.settrace(None)
            return x

        return f(), events

    want = outcome(program)
    assert outcome(lambda: interpreter.run(program)) == want
    assert len(want[1][1]) > 5


def test_profile_switched_on_in_mid_frame() -> None:
    def program() -> Any:
        events = []

        def f() -> int:
            sys.setprofile(lambda frame, event, arg: events.append((frame.f_code.co_name, event)))
            x = add(1, 2)
            sys.setprofile(None)
            return x

        return f(), events

    assert outcome(lambda: interpreter.run(program)) == outcome(program)


def test_deep_recursion_with_a_raised_limit() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + down(n - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        assert interpreter.run(down, 50_000) == 50_000
    finally:
        sys.setrecursionlimit(limit)
    assert not interpreter.hook_installed()


def test_recursion_limit_is_at_the_same_depth() -> None:
    def depth() -> int:
        n = 0

        def down() -> None:
            nonlocal n
            n += 1
            down()

        try:
            down()
        except RecursionError:
            return n
        return -1

    plain = (lambda f: f())(depth)
    assert abs(interpreter.run(depth) - plain) <= 2


def test_with_a_collection_at_every_allocation() -> None:
    def program() -> Any:
        out = []
        for i in range(20):
            items = [[i], {i: [i]}, (i, [i])]
            try:
                out.append(items[i % 4][0])
            except (IndexError, KeyError, TypeError) as error:
                out.append(type(error).__name__)
            out.append([x for x in (lambda y: (yield y))(i)])
        return str(out)

    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        check(program)
    finally:
        gc.set_threshold(*thresholds)


def test_frame_object_outlives_its_frame() -> None:
    def f(x: int) -> Any:
        y = x + 1
        return sys._getframe(), y

    frame, y = interpreter.run(f, 1)
    assert (frame.f_locals["x"], frame.f_locals["y"], y) == (1, 2, 2)
    frame.clear()
    assert frame.f_locals == {}
