"""Where there is no memory a program may end in any way it can in CPython, but the process lives.

Each allocation of a program in turn fails, alone and with those that follow it. In a process of its own:
a name or table that is made at first use must survive that this use fails.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opcodes.harness import interpreter, programs

ALLOCATIONS = 60
WIDTHS = (1, 30)
# Not those that compile or import while memory is short: CPython 3.11's compiler crashes then.
MODULES = (
    *("attribute", "build", "call", "closure", "exception", "generator", "iterate", "jump"),
    *("operators", "pattern", "subscript"),
)


def starve(program: Callable[[], object], first: int, width: int) -> None:
    import _testcapi

    set_nomemory, remove_hooks = _testcapi.set_nomemory, _testcapi.remove_mem_hooks
    try:
        set_nomemory(first, first + width)
        try:
            interpreter.run(program)
        finally:
            remove_hooks()
    except BaseException:  # noqa: BLE001, S110 (any)
        pass


def starve_all(module: str) -> None:
    for program in programs(importlib.import_module(f"opcodes.test_{module}").__name__):
        for width in WIDTHS:
            for first in range(1, ALLOCATIONS):
                print(program.__name__, width, first, flush=True)
                starve(program, first, width)


@pytest.mark.parametrize("module", MODULES)
def test_lives(module: str) -> None:
    pytest.importorskip("_testcapi", reason="this Python cannot make allocations fail")
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "opcodes.test_memory", module],
        check=False,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
    )
    last = done.stdout.splitlines()[-1:]
    assert done.returncode == 0, f"{last}\n{done.stderr[-2000:]}"


if __name__ == "__main__":
    starve_all(sys.argv[1])
