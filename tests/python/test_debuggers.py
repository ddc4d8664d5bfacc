"""Debuggers, profilers, coverage and the like see a captured function as they see a plain one, on every call."""

from __future__ import annotations

import contextlib
import cProfile
import faulthandler
import gc
import io
import pdb  # noqa: T100
import pstats
import sys
import tempfile
import threading
import tracemalloc
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import frametap


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x)
        return h.relu()


net = Net()


def scaled(x: Tensor, factor: int) -> Tensor:
    if factor > 1:
        return x * factor
    return x


def program(x: Tensor, factor: int) -> Tensor:
    y = net(x)
    for _ in range(2):
        y = scaled(y, factor)
    if y.sum() > 1e6:
        y = y + 1
    print("in the middle", file=io.StringIO())
    try:
        y.view(-1, 7, 11)
    except RuntimeError:
        y = y - 1
    return sum((v for v in [y, y]), start=torch.zeros(()))


Event = tuple[str, str, int]


class Events:
    """Collects the events of sys.settrace or sys.setprofile in functions of this file and of torch."""

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def trace(self, frame: types.FrameType, event: str, arg: object) -> Any:
        self.note(frame, event)
        return self.trace

    def profile(self, frame: types.FrameType, event: str, arg: object) -> None:
        if not event.startswith("c_"):
            self.note(frame, event)

    def note(self, frame: types.FrameType, event: str) -> None:
        code = frame.f_code
        if code.co_filename == __file__ or "/torch/nn/modules" in code.co_filename:
            self.seen.append((event, code.co_qualname, frame.f_lineno))


@contextlib.contextmanager
def settrace(events: Events) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(events.trace)
    try:
        yield
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def setprofile(events: Events) -> Iterator[None]:
    sys.setprofile(events.profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def inside(events: Events) -> list[Event]:
    """Without the test's own frames."""
    return [
        e for e in events.seen if e[1].split(".")[0] in ("program", "scaled", "Net") or "." in e[1]
    ]


def events_of(watch: Callable[[Events], Any], f: Callable[..., Any]) -> list[Event]:
    events = Events()
    x = torch.ones(2, 3)
    with watch(events):
        f(x, 3)
    return [e for e in inside(events) if not e[1].startswith(("Events", "events_of", "set"))]


@pytest.mark.parametrize("watch", [settrace, setprofile])
def test_events_are_the_same_on_every_call(watch: Callable[[Events], Any]) -> None:
    want = events_of(watch, program)
    f = frametap.compile(program)
    x = torch.ones(2, 3)
    assert events_of(watch, f) == want  # nothing was captured yet
    for _ in range(3):
        f(x, 3)
        assert events_of(watch, f) == want


def test_trace_that_begins_or_ends_inside() -> None:
    events = Events()

    def begins(x: Tensor) -> Tensor:
        y = x + 1
        sys.settrace(events.trace)
        y = scaled(y, 2)
        sys.settrace(None)
        return y * 2

    before = sys.gettrace()
    try:
        plain = begins(torch.ones(2))
        want, events.seen = events.seen, []
        f = frametap.compile(begins)
        for _ in range(3):
            assert torch.equal(f(torch.ones(2)), plain)
            assert events.seen == want
            events.seen = []
    finally:
        sys.settrace(before)


def test_coverage_is_the_same_on_every_call() -> None:
    coverage = pytest.importorskip("coverage")

    def lines(f: Callable[..., Any], calls: int) -> Any:
        cov = coverage.Coverage(data_file=None, include=[__file__], branch=True)
        cov.start()
        try:
            for _ in range(calls):
                f(torch.ones(2, 3), 3)
        finally:
            cov.stop()
        data = cov.get_data()
        first = program.__code__.co_firstlineno
        inner = range(first - 30, first + 16)
        return sorted(
            a for a in data.arcs(__file__) or [] if abs(a[0]) in inner and abs(a[1]) in inner
        )

    want = lines(program, 1)
    assert len(want) > 10
    f = frametap.compile(program)
    assert lines(f, 1) == want
    for _ in range(3):
        f(torch.ones(2, 3), 3)
    assert lines(f, 1) == want
    assert lines(f, 2) == want


def debugged(
    f: Callable[..., Any], commands: list[str], stop: Callable[..., Any], line: int
) -> str:
    out = io.StringIO()
    debugger = pdb.Pdb(
        stdin=io.StringIO("\n".join(commands) + "\n"), stdout=out, nosigint=True, readrc=False
    )
    debugger.use_rawinput = False
    before = sys.gettrace()
    debugger.set_break(__file__, stop.__code__.co_firstlineno + line)
    try:
        debugger.runcall(f, torch.ones(2, 3), 3)
    finally:
        debugger.clear_all_breaks()
        sys.settrace(before)
    return out.getvalue()


def test_pdb_stops_at_breakpoints() -> None:
    commands = [
        "continue",
        "p factor, x.shape",
        "up",
        "p y.shape",
        "down",
        "return",
        "next",
        "continue",
        "continue",
    ]
    f = frametap.compile(program)
    texts = []
    for g in (program, f, f):
        f(torch.ones(2, 3), 3)
        text = debugged(g, commands, scaled, 2)
        texts.append(
            [line for line in text.splitlines() if "runcall" not in line and "bdb.py" not in line]
        )
    assert "return x * factor" in "\n".join(texts[0])
    assert texts[1] == texts[0]
    assert texts[2] == texts[0]


def test_breakpoint_in_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """breakpoint() begins to trace in the middle of a captured frame."""
    out = io.StringIO()

    def hook() -> None:
        debugger = pdb.Pdb(
            stdin=io.StringIO("p a\nnext\np b\nstep\np b\ncontinue\n"),
            stdout=out,
            nosigint=True,
            readrc=False,
        )
        debugger.use_rawinput = False
        debugger.set_trace(sys._getframe(1))

    def stops(x: Tensor) -> Tensor:
        a = x.shape[0] + 1
        breakpoint()  # noqa: T100
        b = a + 1
        b = b + 1
        return x * b

    monkeypatch.setattr(sys, "breakpointhook", hook)
    texts = []
    before = sys.gettrace()
    f = frametap.compile(stops)
    for g in (stops, f, f, f):
        out.seek(0)
        out.truncate()
        try:
            assert torch.equal(g(torch.ones(2)), torch.ones(2) * 5)
        finally:
            sys.settrace(before)
        texts.append(out.getvalue())
    assert "b = a + 1" in texts[0]
    assert texts[1:] == [texts[0]] * 3


def test_cprofile_counts_calls() -> None:
    f = frametap.compile(program)

    def counts(g: Callable[..., Any]) -> dict[str, int]:
        profile = cProfile.Profile()
        profile.enable()
        g(torch.ones(2, 3), 3)
        profile.disable()
        stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]
        return {
            name: row[0]
            for (file, _, name), row in stats.items()
            if file == __file__ or "/torch/nn/" in file or "torch" in name
        }

    want = counts(program)
    assert want["scaled"] == 2
    for _ in range(3):
        assert counts(f) == want
        f(torch.ones(2, 3), 3)


def test_threading_settrace() -> None:
    f = frametap.compile(program)

    def events_in_thread(g: Callable[..., Any]) -> list[Event]:
        events = Events()
        threading.settrace(events.trace)
        try:
            thread = threading.Thread(target=g, args=(torch.ones(2, 3), 3))
            thread.start()
            thread.join()
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
        return events.seen

    want = events_in_thread(program)
    assert want
    for _ in range(3):
        assert events_in_thread(f) == want
        f(torch.ones(2, 3), 3)


def test_tracemalloc_and_faulthandler() -> None:
    f = frametap.compile(program)
    x = torch.ones(2, 3)
    want = program(x, 3)
    tracemalloc.start(10)
    try:
        for _ in range(3):
            assert torch.equal(f(x, 3), want)
    finally:
        tracemalloc.stop()

    texts = []

    def dumps(x: Tensor) -> Tensor:
        y = x + 1
        with tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=False)
            file.seek(0)
            texts.append(
                [line for line in file.read().decode().splitlines() if " in dumps" in line]
            )
        return y * 2

    g = frametap.compile(dumps)
    for h in (dumps, g, g, g):
        h(x)
    assert texts[0] and texts[1:] == [texts[0]] * 3


def test_collector_callbacks_and_switch() -> None:
    """A callback of the collector runs as in plain Python; whether the collector is on is the program's business."""
    seen: list[str] = []

    def callback(phase: str, info: dict[str, int]) -> None:
        seen.append(phase)

    def collects(x: Tensor) -> tuple[Tensor, bool]:
        y = x + 1
        gc.collect(0)
        on = gc.isenabled()
        gc.disable()
        y = y * 2
        off = gc.isenabled()
        gc.enable()
        return y, on and not off and gc.isenabled()

    f = frametap.compile(collects)
    gc.callbacks.append(callback)
    try:
        for _ in range(3):
            seen.clear()
            assert f(torch.ones(1))[1]
            assert seen[:2] == ["start", "stop"]
    finally:
        gc.callbacks.remove(callback)
    assert gc.isenabled()
