"""Golden tests: a small program, its calls, the segments they must make and the results they must have.

A golden is `tests/golden/<area>/<name>.txt`, in blocks: why, code, call, want segments, want result. Lines are counted
from the first line of the code. `python tests/golden_test.py` shows what differs, `--accept` writes what was seen.

A golden that has the block `want report` shows the breaks and given-up recordings that `frametap.explain` lists, each after
the name of its reason. It shows segments only if it also has `want segments`. A new golden gets the report from an empty block.

Laws
  N1  The result block comes from plain Python; a captured run that differs from the plain one fails whatever the file says.
  N2  The text of every segment parses, and prints as it was (laws T1 and T2 of the text form).
  N3  A golden holds no address, path, version or time, and no more than the behaviour that its `why` names.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from fixtures.subject import EAGER, frametap
from fixtures.switches import switched
from same.backends import cases, compare_under
from same.harness import Program, Run, is_repeated, plain

FOLDER = Path(__file__).resolve().parent / "golden"
_SHOWN = (Tensor, list, tuple, dict, str, int, float)
_MACHINE = re.compile(
    r"0x[0-9a-f]{5}|\.py\b|" + re.escape(str(Path.home())) + "|" + re.escape(torch.__version__)
)
BLOCKS = ["why", "code", "call", "want report", "want segments", "want result"]


@dataclasses.dataclass
class Golden:
    path: Path
    blocks: dict[str, str]

    @property
    def name(self) -> str:
        return str(self.path.relative_to(FOLDER).with_suffix(""))

    @property
    def program(self) -> Program:
        file = f"<{self.name}>"
        code = self.blocks["code"]
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        return Program(self.name, file, code, 1, self.blocks["call"], 1)

    def text(self) -> str:
        known = [name for name in [*BLOCKS, *self.blocks] if name in self.blocks]
        return "".join(f"--- {name} ---\n{self.blocks[name]}" for name in dict.fromkeys(known))


def read(path: Path) -> Golden:
    blocks: dict[str, str] = {}
    name = ""
    for line in path.read_text().splitlines(keepends=True):
        if line.startswith("--- ") and line.rstrip().endswith(" ---"):
            name = line.strip()[4:-4]
            blocks[name] = ""
        elif name:
            blocks[name] += line
        else:
            raise ValueError(f"{path}: a golden begins with '--- why ---'")
    for needed in BLOCKS[:3]:
        if not blocks.get(needed, "").strip():
            raise ValueError(f"{path}: there is no '--- {needed} ---'")
    return Golden(path, blocks)


def goldens() -> list[Golden]:
    return [read(path) for path in sorted(FOLDER.rglob("*.txt"))]


def show(obj: Any) -> str:
    """A result for a reader; the full comparison with the plain run is `same`'s."""
    if isinstance(obj, Tensor):
        values = ", ".join(f"{v:.4g}" for v in obj.detach().flatten()[:6].tolist())
        more = ", …" if obj.numel() > 6 else ""
        dtype = str(obj.dtype).removeprefix("torch.")
        grad = " requires_grad" if obj.requires_grad else ""
        return f"{dtype}{list(obj.shape)}{grad} {{{values}{more}}}"
    if isinstance(obj, tuple) and hasattr(obj, "_fields"):
        inner = ", ".join(f"{k}={show(v)}" for k, v in zip(obj._fields, obj, strict=True))
        return f"{type(obj).__name__}({inner})"
    if isinstance(obj, (list, tuple)):
        return f"{type(obj).__name__}({', '.join(map(show, obj))})"
    if isinstance(obj, dict):
        return "{" + ", ".join(f"{k!r}: {show(v)}" for k, v in obj.items()) + "}"
    if dataclasses.is_dataclass(obj):
        inner = ", ".join(f"{k}={show(v)}" for k, v in vars(obj).items())
        return f"{type(obj).__name__}({inner})"
    return repr(obj) if type(obj) in (int, float, str, bool, type(None)) else type(obj).__name__


def execute(golden: Golden, capture: Any) -> tuple[Run, str]:
    """The run, each call made once, and the text of its results."""
    run = Run(golden.program, capture)
    out = []
    for statement in run.statements():
        observation = run.execute(statement)
        if not isinstance(statement, ast.Expr):
            continue
        out.append(ast.unparse(statement))
        lines = observation.lines
        if lines and lines[0].startswith("raises"):
            end = next(
                (i for i, line in enumerate(lines[1:], 1) if not line.startswith(("raises", "  "))),
                len(lines),
            )
            out += [f"  {line}" for line in lines[:end]]
        elif is_repeated(statement) or isinstance(observation.result, _SHOWN):
            out.append(f"  -> {show(observation.result)}")
        out += [f"  prints {line[8:]}" for line in lines if line.startswith("printed ")]
    return run, "\n".join(out) + "\n"


@contextlib.contextmanager
def hook_numbers_from_zero() -> Iterator[None]:
    """torch numbers hooks through the whole process; the numbers are keys that guards show."""
    before = RemovableHandle.next_id
    RemovableHandle.next_id = 0
    try:
        yield
    finally:
        RemovableHandle.next_id = max(before, RemovableHandle.next_id)


def report(captured: list[Any]) -> str:
    """Lists the breaks and given-up recordings of `explain`, each after the name of its reason."""
    lines = []
    for f in captured:
        explanation = frametap.explain(f)
        lines += [f"{b.reason}: {b}" for b in [*explanation.breaks, *explanation.aborts]]
    return "".join(f"{line}\n" for line in lines)


def seen(golden: Golden) -> dict[str, str]:
    """The blocks that a run gives: the results of the plain run and, where something is captured, what was captured."""
    plain_run, want = execute(golden, plain)
    plain_run.close()
    blocks = {"want result": want}
    if EAGER:
        return blocks
    frametap.reset()
    with hook_numbers_from_zero():
        run, got = execute(golden, frametap.compile)
    if got != want:
        raise AssertionError(
            f"{golden.name}: captured results differ from plain ones\n" + diff(want, got)
        )
    texts = [s.text().rstrip() for f in run.captured for s in frametap.segments(f)]
    segments = "".join(f"{text}\n" for text in texts)
    check_round_trip(segments)
    if "want report" in golden.blocks:
        blocks["want report"] = report(run.captured)
    if "want report" not in golden.blocks or "want segments" in golden.blocks:
        blocks["want segments"] = segments
    run.close()
    return blocks


def diff(want: str, got: str) -> str:
    lines = difflib.unified_diff(want.splitlines(), got.splitlines(), "want", "got", lineterm="")
    return "\n".join(lines)


def segment_texts(text: str) -> list[str]:
    """One text a segment: each begins with a line `segment …`."""
    out: list[str] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("segment "):
            out.append("")
        out[-1] += line
    return out


def check_round_trip(text: str) -> None:
    for one in segment_texts(text):
        again = frametap.ir.roundtrip(one)
        if again != one:
            raise AssertionError(
                "law T1: the printed text is not the parsed one\n" + diff(one, again)
            )


ALL = goldens()


@pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.name)
def test_golden(golden: Golden) -> None:
    for name, got in seen(golden).items():
        want = golden.blocks.get(name, "")
        assert want == got, diff(want, got)


@pytest.mark.skipif(EAGER, reason="nothing is captured")
@pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.name)
def test_golden_without_fast_paths(golden: Golden) -> None:
    """Fast paths show in no segment, guard or report. FRAMETAP_FAST_PATHS=off turns the same switches."""
    with switched(False, frametap._C.cross_module_calls, frametap._C.repeat_module_calls):
        for name, got in seen(golden).items():
            want = golden.blocks.get(name, "")
            assert want == got, diff(want, got)


@cases([golden.name for golden in ALL], ["native"])
def test_same(name: str, backend: str) -> None:
    """The full comparison: arguments, globals, random state, tracebacks, and replays of every call."""
    golden = next(golden for golden in ALL if golden.name == name)
    for run in compare_under(backend, golden.program):
        run.close()


@pytest.mark.parametrize("golden", ALL, ids=lambda golden: golden.name)
def test_form(golden: Golden) -> None:
    assert golden.text() == golden.path.read_text(), (
        "blocks are out of order: --accept rewrites the file"
    )
    assert not _MACHINE.search(golden.text())
    unknown = [b for b in golden.blocks if b not in BLOCKS and not b.startswith("want segments 3.")]
    assert not unknown


def test_no_golden_depends_on_the_python() -> None:
    """A block `want segments 3.13 because …` needs a reason; this number is to fall, never to grow."""
    dependent = [g.name for g in ALL for block in g.blocks if block.startswith("want segments 3.")]
    assert len(dependent) <= 0, dependent


def main(arguments: list[str]) -> int:
    accept = "--accept" in arguments
    names = [a for a in arguments if not a.startswith("-")]
    differing = 0
    for golden in goldens():
        if names and not any(name in golden.name for name in names):
            continue
        try:
            blocks = seen(golden)
        except AssertionError as wrong:
            # Never accepted: these are faults, whatever the file says.
            print(f"{golden.name}: FAULT\n{wrong}")
            differing += 1
            continue
        want = golden.text()
        golden.blocks.update(blocks)
        got = golden.text()
        if got == want and want == golden.path.read_text():
            continue
        print(f"{golden.name}: {'accepted' if accept else 'differs'}\n{diff(want, got)}")
        if accept:
            golden.path.write_text(got)
        else:
            differing += 1
    if differing:
        print(f"{differing} differ; --accept takes over what is not a fault")
    return 1 if differing else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
