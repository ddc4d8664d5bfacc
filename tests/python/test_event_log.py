"""FRAMETAP_LOG: one line an event on stderr."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about recordings")]

PACKAGE = Path(__file__).resolve().parents[2] / "python"


def step(x: Tensor, scale: float = 2.0) -> Tensor:
    h = x * scale
    if h.sum() > 0:
        return h + 1
    return h - 1


@pytest.fixture
def ask() -> Iterator[object]:
    yield frametap._C.log_events
    frametap._C.log_events("")


def lines(capfd: pytest.CaptureFixture[str]) -> list[str]:
    err = capfd.readouterr().err
    assert err == "" or err.endswith("\n")
    return err.splitlines()


def calls() -> None:
    f = frametap.compile(step)
    for x in (torch.ones(2), torch.ones(3), torch.ones(2, dtype=torch.float64)):
        f(x)


def test_a_line_each(ask: object, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask("all") == ""
    calls()
    seen = lines(capfd)
    line = step.__code__.co_firstlineno + 2
    want = [
        rf"recorded step#0 from step:start, 3 ops, \d+ guards, resumes at step:{line}:\d+, [\d.]+ ms",
        rf"break step#0 at step:{line}:\d+, branch_on_tensor, .+",
        r"recorded step#1 from step:\d+:\d+, 1 op, \d+ guards?, returns, [\d.]+ ms",
        rf"hit step#0 from step:start, 3 ops, \d+ guards, resumes at step:{line}:\d+",
        r"hit step#1 from step:\d+:\d+, 1 op, \d+ guards?, returns",
        r"miss step#0 at L.x, want tensor f32.*, got tensor f64.*, why .*dtype.*, read step:\d+:\d+",
    ]
    for text, form in zip(seen, want, strict=False):
        assert re.fullmatch("frametap: " + form, text), text
    assert len(seen) > len(want)
    assert all(text.startswith("frametap: ") for text in seen)


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ("recordings", {"recorded"}),
        ("misses", {"miss"}),
        ("breaks", {"break"}),
        ("hits", {"hit"}),
        ("hits, misses", {"hit", "miss"}),
        ("", set()),
    ],
)
def test_only_what_was_asked_for(
    ask: object, capfd: pytest.CaptureFixture[str], kinds: str, words: set[str]
) -> None:
    assert ask(kinds) == ""
    calls()
    assert {line.split()[1] for line in lines(capfd)} == words


def test_what_is_given_up(ask: object, capfd: pytest.CaptureFixture[str]) -> None:
    ask("aborts")
    f = frametap.compile(step)
    with torch.device("cpu"):
        f(torch.ones(2))
    (line,) = lines(capfd)
    assert re.match(r"frametap: abort step at step:\d+:\d+, modes_active, .+", line)


def test_an_event_is_one_line(ask: object, capfd: pytest.CaptureFixture[str]) -> None:
    def named(x: Tensor, name: str) -> Tensor:
        return x + 1 if name == "a\nb" else x

    ask("misses")
    f = frametap.compile(named)
    f(torch.ones(2), "a\nb")
    f(torch.ones(2), "c\nd")
    assert len(lines(capfd)) == 1


def run(kinds: str) -> subprocess.CompletedProcess[str]:
    program = "import torch, frametap\nf = frametap.compile(lambda x: x + 1)\nf(torch.ones(1))\n"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FRAMETAP_LOG": kinds, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_environment_variable() -> None:
    done = run("recordings,hits")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("frametap: recorded <lambda>#0 from <lambda>:start, 1 op, ")


def test_a_word_that_is_not_known() -> None:
    done = run("hits,nonsense")
    assert done.returncode != 0
    assert "ImportError: frametap: FRAMETAP_LOG has 'nonsense'" in done.stderr
    assert "recordings" in done.stderr
