"""Reference counts and memory stay as they are over many calls; the bulk of CPython's own tests behaves the same."""

from __future__ import annotations

import gc
import io
import sys
import unittest
from typing import Any

import pytest

from opcodes.harness import interpreter


class Thing:
    def __init__(self, value: object) -> None:
        self.value = value

    def get(self, *, default: object = None) -> object:
        return self.value or default


def busy(marker: object) -> object:
    """Loops, calls of all shapes, exceptions caught and thrown on, generators, containers, closures."""
    things = [Thing(marker), Thing(None)]
    table = {"a": marker, "b": [marker, *things]}
    first, *rest = table["b"]

    def pick(n: int, *args: object, key: object = marker) -> object:
        return (args or (key,))[n]

    def numbers() -> Any:
        try:
            yield marker
            yield pick(0)
        finally:
            table["c"] = marker

    for item in numbers():
        first = pick(0, item, key=None)
        break
    try:
        try:
            pick(5)
        except IndexError as error:
            raise KeyError(marker) from error
        finally:
            del rest
    except KeyError:
        pass
    with io.StringIO() as stream:
        stream.write(f"{things[0].get()!s:>5}")
    match table:
        case {"a": value, **others}:
            first = value, others
    text = ""
    for i in range(3):
        text += str(i)
    return things[1].get(default=first), text


def fails(marker: object) -> None:
    local = [marker]
    local[0], local[3]


def settled() -> int:
    gc.collect()
    return sys.getallocatedblocks()


@pytest.mark.parametrize("mode", ["run", "observed", "handed over"])
def test_nothing_is_left_behind(mode: str) -> None:
    marker = object()

    def call(function: Any) -> None:
        if mode == "run":
            interpreter.run(function, marker)
        elif mode == "observed":
            interpreter.run_observed({}, function, marker)
        else:
            interpreter.run_observed({"leave_every": 7}, function, marker)

    def round_of(n: int) -> None:
        for _ in range(n):
            call(busy)
            try:
                call(fails)
            except IndexError:
                pass

    round_of(200)
    references, blocks = sys.getrefcount(marker), settled()
    round_of(5_000)
    assert sys.getrefcount(marker) == references
    assert abs(settled() - blocks) < 100


def test_hundred_thousand_calls() -> None:
    marker = object()

    def small(x: object) -> object:
        try:
            if x is marker:
                raise ValueError
        except ValueError:
            return [x, (x, x)]

    def many(n: int) -> None:
        for _ in range(n):
            small(marker)

    interpreter.run(many, 1000)
    references, blocks = sys.getrefcount(marker), settled()
    interpreter.run(many, 100_000)
    assert sys.getrefcount(marker) == references
    assert abs(settled() - blocks) < 100


class Outcomes(unittest.TextTestResult):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.of: dict[str, str] = {}

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.of.setdefault(test.id(), "passed")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        super().addError(test, err)
        self.of[test.id()] = "error"

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        super().addFailure(test, err)
        self.of[test.id()] = "failed"

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        super().addSkip(test, reason)
        self.of[test.id()] = "skipped"

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.of[subtest.id()] = "failed"


def run_module(name: str) -> dict[str, str]:
    suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{name}")
    runner = unittest.TextTestRunner(stream=io.StringIO(), resultclass=Outcomes, verbosity=0)
    result = runner.run(suite)
    assert isinstance(result, Outcomes)
    return result.of


@pytest.mark.parametrize(
    "name",
    [
        "test_grammar",
        "test_generators",
        "test_exceptions",
        "test_with",
        "test_contextlib",
        "test_dataclasses",
        "test_collections",
        "test_functools",
        "test_scope",
        "test_unpack_ex",
        "test_patma",
        "test_except_star",
        "test_coroutines",
        "test_asyncgen",
        "test_raise",
        "test_extcall",
        "test_class",
        "test_iter",
        "test_descr",
        "test_sys_settrace",
        "test_frame",
    ],
)
def test_cpython_module(name: str) -> None:
    pytest.importorskip(f"test.{name}")
    plain = run_module(name)
    assert interpreter.run(run_module, name) == plain
    assert plain
