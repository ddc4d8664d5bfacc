"""``python -m frametap``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about the command line")]


def run(*arguments: str, code: int = 0, folder: Path | None = None) -> subprocess.CompletedProcess:
    package = str(Path(frametap.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "frametap", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": package},
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_version() -> None:
    out = run("version").stdout
    assert f"frametap {frametap.__version__}" in out
    assert f"torch {torch.__version__}" in out
    assert "Python 3.11" in out


def test_help_lists_the_commands() -> None:
    out = run("--help").stdout
    for command in ("demo", "explain", "bench", "version"):
        assert command in out
    assert "usage" in run(code=2).stderr
    assert "nonsense" in run("nonsense", code=2).stderr


SOURCE = """
import torch

SIZE = 3


class Net(torch.nn.Module):
    pass


def step(x, scale=2.0):
    if x.sum() > 0:
        x = x * scale
    return x.relu()
"""


def test_explain_a_function_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SOURCE)
    calls = ["--example", "torch.ones(SIZE)", "--example", "-torch.ones(2), scale=3.0"]
    out = run("explain", "program.py:step", *calls, folder=tmp_path).stdout
    assert "tensor([2., 2., 2.])" in out
    assert "step:12" in out
    assert "if x.sum() > 0:" in out
    assert "torch.where" in out
    assert "segment step#0 {" not in out
    again = run("explain", "program:step", *calls, "--segments", folder=tmp_path).stdout
    assert "segment step#0 {" in again


@pytest.mark.parametrize(
    ("target", "example", "words"),
    [
        ("program.py", "torch.ones(2)", "FILE.py:function or module:function expected"),
        ("absent.py:f", "torch.ones(2)", "there is no file absent.py"),
        ("program.py:absent", "torch.ones(2)", "program.py has no 'absent'"),
        ("nowhere:f", "torch.ones(2)", "nowhere.py:f"),
        ("program.py:step", "torch.ones(", "is not Python"),
        ("program.py:step", None, "give at least one call"),
        (
            "program.py:step",
            "",
            "the call raised TypeError: step() missing 1 required positional argument",
        ),
        (
            "program.py:Net",
            "torch.ones(2)",
            "program.py:Net is a class; name a function, or a module object",
        ),
        ("program.py:SIZE", "torch.ones(2)", "program.py:SIZE is int; name a function"),
    ],
)
def test_explain_of_nothing(tmp_path: Path, target: str, example: str | None, words: str) -> None:
    (tmp_path / "program.py").write_text(SOURCE)
    options = ["--example", example] if example is not None else []
    assert words in run("explain", target, *options, code=2, folder=tmp_path).stderr


def test_bench_names_what_there_is() -> None:
    text = run("bench", "nonsense", code=2).stderr
    assert "there is no 'nonsense'" in text or "in a checkout" in text


@pytest.mark.slow
def test_the_demo_agrees_with_itself() -> None:
    pytest.importorskip("sklearn")
    outputs = []
    for _ in range(2):
        lines = run("demo").stdout.splitlines()
        # The time of a recording differs at each run.
        lines = [re.sub(r"recorded in [\d.]+ \w+", "recorded", line) for line in lines]
        outputs.append([line for line in lines if not line.startswith("time")])
    assert outputs[0] == outputs[1]
    text = "\n".join(outputs[0])
    assert "0 failed" in text
    assert "NOT EQUAL" not in text
    for heading in ("1. Captured", "2. Called", "3. Quantized", "4. Saved"):
        assert heading in text
    assert " at 0x" not in text
