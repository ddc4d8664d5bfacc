"""The programs of tests/same/one_graph_*.txt: each is one graph, and later calls hit it.

Their results are compared with plain Python by tests/same. Here only the number of graphs and hits counts. A call is made
until it hits; a number may have to be seen to change once before it is left open.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.subject import EAGER, frametap
from same.harness import Program, Run, is_repeated, read_programs

REPEATS = 6
MOST_RECORDINGS = 2
FOLDER = Path(__file__).resolve().parent.parent / "same"
PROGRAMS = [p for path in sorted(FOLDER.glob("one_graph_*.txt")) for p in read_programs(path)]


def fault_of(program: Program) -> str:
    """Says in one line why the program is not one graph with hits, or returns ""."""
    run = Run(program, frametap.compile)
    try:
        calls = 0
        for statement in run.statements():
            for repeat in range(REPEATS if is_repeated(statement) else 1):
                calls += is_repeated(statement)
                run.execute(statement, repeat)
        for captured in run.captured:
            seen = frametap.explain(captured)
            for end in seen.breaks:
                return f"break at {end.position}: {end.text}"
            if seen.recordings > MOST_RECORDINGS:
                return f"{seen.recordings} recordings: {seen.miss_texts[-1]}"
            if seen.hits < calls - MOST_RECORDINGS:
                return f"{seen.hits} hits of {calls} calls"
        return ""
    finally:
        run.close()


@pytest.mark.skipif(EAGER, reason="there are graphs only where something is captured")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_one_graph(program: Program) -> None:
    assert fault_of(program) == ""


def test_a_break_is_seen() -> None:
    program = Program(
        "breaks", "one.txt", "def f(x):\n    print(x)\n    return x + 1", 1, "f(ones(2))", 5
    )
    assert EAGER or "break" in fault_of(program)
