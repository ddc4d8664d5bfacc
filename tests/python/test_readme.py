"""README.md tells the truth: its examples run and print what it says, its commands exist.

An example is a `python` block; the block after `<!-- output -->` that follows it is what it prints.
`python tests/python/test_readme.py --accept` writes what the examples print into README.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
EXAMPLE = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?P<between>(?:(?!^```).)*?)"
    r"^<!-- output -->\n```text\n(?P<output>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def output_of(code: str) -> str:
    """What a fresh Python prints for `code`; a file, because frametap names source lines."""
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


def test_python_blocks_compile() -> None:
    for code in re.findall(r"^```python\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL):
        compile(code, "README.md", "exec")


def test_commands_exist() -> None:
    shown = set(re.findall(r"\btools/dev (\w+)", README.read_text()))
    text = subprocess.run(
        [str(ROOT / "tools" / "dev"), "help"], capture_output=True, text=True, check=True
    ).stdout
    listed = set(re.findall(r"^  (\w+) ", text, re.MULTILINE))
    assert shown and shown <= listed


def test_named_calls_exist() -> None:
    import frametap

    named = set(re.findall(r"\bframetap\.(\w+)", README.read_text()))
    assert sorted(name for name in named if not hasattr(frametap, name)) == []


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
