"""The examples of README.md and docs/ run and print the output shown, and their commands exist.

An example is a `python` block; the block after `<!-- output -->` that follows it is its output.
`python tests/python/test_readme.py --accept` writes what the examples print into README.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
# Pages that a reader should be able to read in one sitting.
MOST_LINES = {"README.md": 150, "ARCHITECTURE.md": 400}
EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<between>(?:(?!^```).)*?)"
    r"^<!-- output -->\n```text\n(?P<output>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def output_of(code: str) -> str:
    """Returns the output of a fresh Python for `code`, as a file, because frametap names source lines."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "example.py"
        script.write_text(code)
        done = subprocess.run(
            [sys.executable, str(script)],
            check=False,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n") + "\n"


def test_examples_print_what_the_readme_says() -> None:
    examples = list(EXAMPLE.finditer(README.read_text()))
    assert examples, "README.md has no example with an output block"
    for example in examples:
        assert output_of(example["code"]) == example["output"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_compile(page: Path) -> None:
    for code in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        compile(code, page.name, "exec")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    shown = set(re.findall(r"\btools/dev ([\w-]+)", page.read_text()))
    text = subprocess.run(
        [str(ROOT / "tools" / "dev"), "help"], capture_output=True, text=True, check=True
    ).stdout
    listed = set(re.findall(r"^  ([\w-]+) ", text, re.MULTILINE))
    assert listed and shown <= listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_calls_exist(page: Path) -> None:
    import frametap

    named = set(re.findall(r"\bframetap\.(\w+)\(", page.read_text()))
    assert sorted(name for name in named if not hasattr(frametap, name)) == []


def test_named_benchmarks_exist() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    named = set(re.findall(r"\b(\w+\.py)\b", page))
    assert named and sorted(n for n in named if not (ROOT / "tools" / "bench" / n).exists()) == []


@pytest.mark.parametrize(("page", "most"), MOST_LINES.items())
def test_pages_are_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= most


def accept() -> None:
    def with_output(example: re.Match[str]) -> str:
        start, end = (example.start("output"), example.end("output"))
        text = example.string
        return (
            text[example.start() : start] + output_of(example["code"]) + text[end : example.end()]
        )

    README.write_text(EXAMPLE.sub(with_output, README.read_text()))


if __name__ == "__main__":
    if sys.argv[1:] != ["--accept"]:
        sys.exit("usage: python tests/python/test_readme.py --accept")
    accept()
