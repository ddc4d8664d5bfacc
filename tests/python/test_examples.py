"""Each program of examples/ prints the lines that its docstring shows after "Prints:".

`python tests/python/test_examples.py --accept` writes the lines into the docstrings.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fixtures.subject import needs_capture

FOLDER = Path(__file__).resolve().parents[2] / "examples"
PROGRAMS = sorted(FOLDER.glob("*.py"))
SHOWN = re.compile(r'(?<=^Prints:\n)(?P<lines>.*?)(?=^""")', re.MULTILINE | re.DOTALL)


def output_of(program: Path) -> str:
    """Runs a program in a fresh process, as a user would."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FRAMETAP_STRESS")}
    done = subprocess.run(
        [sys.executable, str(program)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_capture
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_example_prints_what_it_shows(program: Path) -> None:
    shown = SHOWN.search(program.read_text())
    assert shown and shown["lines"].strip()
    assert output_of(program) == textwrap.dedent(shown["lines"])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.stem)
def test_example_is_short_and_listed(program: Path) -> None:
    text = program.read_text()
    assert ast.get_docstring(ast.parse(text))
    assert 30 <= len(text.splitlines()) <= 80
    assert f"({program.name})" in (FOLDER / "README.md").read_text()


def test_there_are_six() -> None:
    assert len(PROGRAMS) >= 6


def accept() -> None:
    for program in PROGRAMS:
        lines = textwrap.indent(output_of(program), "    ")
        program.write_text(SHOWN.sub(lambda _, new=lines: new, program.read_text(), count=1))


if __name__ == "__main__":
    if sys.argv[1:] != ["--accept"]:
        sys.exit("usage: python tests/python/test_examples.py --accept")
    accept()
