"""Runs a program in plain CPython and in our interpreter, and compares all that a program can observe.

A program is a function without arguments. It is run plainly, in the interpreter, and under a tracer that checks
the laws of tracer.h. Other runs read every instruction again (reload), hand the frame over to CPython at the n-th
instruction, or have a tracer that throws at its n-th callback. Each time result, exception, traceback (function,
line, columns), causes and contexts must be the same.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SWEEP_POINTS = 40  # a sweep tries at most so many places of one program


def load_interpreter() -> ModuleType:
    folder = Path(os.environ.get("FRAMETAP_BUILD_DIR", ROOT / "build" / "release")) / "tests"
    found = sorted(folder.glob("_frametap_interpreter*.so"))
    if not found:
        raise ImportError(
            f"no _frametap_interpreter in {folder}: build the tests first (tools/dev build)"
        )
    spec = importlib.util.spec_from_file_location("_frametap_interpreter", found[0])
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


interpreter = load_interpreter()
Program = Callable[[], Any]


def programs(module: str) -> list[Program]:
    """The functions `program_…` of a test module, for pytest.mark.parametrize."""
    return [f for name, f in vars(sys.modules[module]).items() if name.startswith("program_")]


def positions(code: CodeType, offset: int) -> tuple[int | None, ...]:
    return list(code.co_positions())[offset // 2]


def describe_error(error: BaseException | None, depth: int = 0) -> Any:
    if error is None or depth > 6:
        return None
    entries = []
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename != __file__:
            entries.append(
                (code.co_qualname, traceback.tb_lineno, positions(code, traceback.tb_lasti))
            )
        traceback = traceback.tb_next
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return (
        type(error).__name__,
        str(error),
        getattr(error, "name", None),
        getattr(error, "__notes__", None),
        entries,
        describe_error(error.__cause__, depth + 1),
        describe_error(error.__context__, depth + 1),
        error.__suppress_context__,
        [describe_error(member, depth + 1) for member in members],
    )


def outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001 (SystemExit and the like are compared too)
        return "raised", describe_error(error)
    assert sys.exc_info() == (None, None, None)
    return "returned", result


def observe(program: Program, **options: Any) -> tuple[tuple[str, Any], dict[str, Any]]:
    got = outcome(lambda: interpreter.run_observed(options, program))
    return got, options


def sweep(count: int) -> range:
    return range(1, count + 1, max(1, count // SWEEP_POINTS))


def check(program: Program) -> dict[str, Any]:
    """Asserts that the program behaves the same in every way of running it; what an observed run saw."""
    want = outcome(program)
    assert outcome(lambda: interpreter.run(program)) == want
    got, seen = observe(program)
    assert got == want
    assert seen["violations"] == []
    assert seen["frames"] >= 1
    assert seen["instructions"] > 0
    got, again = observe(program, reload_every=1)
    assert got == want
    assert again["violations"] == []
    for n in sweep(seen["instructions"]):
        got, left = observe(program, leave_at=n)
        assert got == want, f"handed over at instruction {n}"
        assert left["violations"] == [], f"handed over at instruction {n}"
    callbacks = (
        seen["instructions"] + seen["befores"] + seen["afters"] + seen["raised"] + seen["frames"]
    )
    for n in sweep(callbacks):
        got, _ = observe(program, throw_at=n)
        assert got == want, f"the tracer threw at callback {n}"
    assert not interpreter.hook_installed()
    return seen
