"""Everything that a program can reach is changed, one thing at a time: a captured call does what a plain one does.

Each pair of program and change is one test. Both runs call twice (a recording and a replay), change one thing, call twice,
take the change back, and call once more. The guards may see the change, or the segment may still be right without that.
Only the runs are compared.

`FRAMETAP_MUTATIONS=all` makes every change; otherwise each program has a part of them, always the same.

Laws
  U1  After each call all that can be seen is as in the plain run (harness/H2).
  U2  A program is built again for each change.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.subject import EAGER, frametap, needs_capture
from same.harness import (
    Difference,
    Observation,
    Program,
    Run,
    compare_runs,
    plain,
    read_programs,
)

from .changes import Change, changes
from .world import world

BACKENDS = ("native", "reference")
CHANGES_A_PROGRAM = 10**9 if os.environ.get("FRAMETAP_MUTATIONS") == "all" else 32
PROGRAMS = {p.name: p for p in read_programs(Path(__file__).with_name("programs.txt"))}


class MutatedRun:
    """A run whose world can be changed between two calls."""

    def __init__(self, program: Program, capture: Callable[..., Any]) -> None:
        self._scope: Callable[[], Any] = contextlib.nullcontext
        self.run = Run(program, capture, scope=lambda: self._scope())
        (self._call,) = self.run.statements()

    def call(self, times: int) -> None:
        done = len(self.run.observations)
        for repeat in range(done, done + times):
            self.run.execute(self._call, repeat)

    def changes(self) -> Iterator[Change]:
        code = compile(self.run.program.calls, self.run.program.file, "exec")
        yield from changes(self.run, code)
        yield from world()

    def perform(self, name: str) -> Run:
        """Two calls, two with the change, and one without it."""
        self.call(2)
        change = next(change for change in self.changes() if change.name == name)
        undo = change.make()
        try:
            self._scope = change.scope
            self.call(2)
        finally:
            self._scope = contextlib.nullcontext
            undo()
        self.call(1)
        return self.run


@functools.cache
def changes_of(program: str) -> list[str]:
    run = MutatedRun(PROGRAMS[program], plain)
    run.call(2)
    names = [change.name for change in run.changes()]
    run.run.close()
    assert len(set(names)) == len(names), sorted({n for n in names if names.count(n) > 1})
    return names


def chosen(program: str) -> list[str]:
    """The part of a program's changes that is tested, in the order of the walk."""
    names = changes_of(program)
    ranked = sorted(names, key=lambda name: zlib.crc32(f"{program} {name}".encode()))
    wanted = set(ranked[:CHANGES_A_PROGRAM])
    return [name for name in names if name in wanted]


# The reason why a captured call that differs from the plain one is not mended.
KNOWN: dict[tuple[str, str], str] = {
    ("attributes_by_getattr", "del Lazy.prefix"): "endless recursion ends one frame later",
}
NOT_COMPARED = {
    ("random_numbers", "default device"): "the traceback shows what torch has cached before",
    ("state_of_torch", "default device"): "the traceback shows what torch has cached before",
    (
        "encoder_in_eval",
        "m.self_attn.in_proj_bias = half",
    ): "torch's fused kernel reads past the end of a bias of another dtype",
}


PAIRS = [
    (program, change)
    for program in PROGRAMS
    for change in chosen(program)
    if (program, change) not in NOT_COMPARED
]


def _marked(program: str, change: str) -> Any:
    reason = KNOWN.get((program, change))
    marks = [pytest.mark.xfail(reason=reason, raises=Difference, strict=True)] if reason else []
    return pytest.param(program, change, id=f"{program}-{change}", marks=() if EAGER else marks)


def _backend(change: str) -> str:
    return BACKENDS[zlib.crc32(change.encode()) % len(BACKENDS)]


@pytest.mark.parametrize(("program", "change"), [*itertools.starmap(_marked, PAIRS)])
def test_change(program: str, change: str) -> None:
    capture = plain if EAGER else functools.partial(frametap.compile, backend=_backend(change))
    one = MutatedRun(PROGRAMS[program], plain).perform(change)
    other = MutatedRun(PROGRAMS[program], capture).perform(change)
    compare_runs(one, other)
    one.close()
    other.close()


def test_known_faults_are_tests() -> None:
    assert [pair for pair in [*KNOWN, *NOT_COMPARED] if pair[1] not in changes_of(pair[0])] == []


@needs_capture
def test_changes_matter() -> None:
    """Changes that no program notices would test nothing, and nor would those that no guard has to see."""
    sample = PAIRS[::13]
    seen = missed = 0
    for program, change in sample:
        unchanged = MutatedRun(PROGRAMS[program], plain)
        unchanged.call(3)
        changed = MutatedRun(PROGRAMS[program], plain).perform(change)
        seen += _outcome(changed.observations[2]) != _outcome(unchanged.run.observations[2])
        captured = MutatedRun(PROGRAMS[program], frametap.compile).perform(change)
        missed += frametap.explain(captured.captured[0]).misses > 0
        for run in (unchanged.run, changed, captured):
            run.close()
    assert seen > len(sample) / 3
    assert missed > len(sample) / 3


def _outcome(observation: Observation) -> list[str]:
    return [line for line in observation.lines if line.startswith(("result", "raises", "printed"))]


def test_a_capture_that_does_not_look_is_found_out() -> None:
    program = Program("blind", __file__, "n = 1\ndef f(x):\n    return x + n", 1, "f(n)", 9)

    def blind(_: Callable[..., Any]) -> Callable[..., Any]:
        return lambda _: 2

    runs = [MutatedRun(program, capture).perform("n = +1") for capture in (plain, blind)]
    with pytest.raises(Difference):
        compare_runs(*runs)
