"""Into how many graphs n breaks cut a function: by frametap, and by torch.compile(backend="eager").

A break costs one more graph, wherever it is (law 4 of ARCHITECTURE.md): n + 1 is the number of graphs that a call runs. Fewer
may be kept: rounds of a loop share theirs. Each program makes the same ops around n calls of `print`, which neither
tracer can look into. A graph counts if ops are in it; it is counted when the calls have been repeated, so that graphs
that come late are seen.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timing
import torch

from fixtures.subject import frametap

MOST_BREAKS = 3
ROUNDS = 4  # of a loop: more than there are breaks
CALLS = 3

SHAPES = {
    "nested call, three deep": """
def third(x):
    x = torch.sin(x)
    {straight}
    return x * 2
def second(x):
    y = third(x + 1)
    return y - x
def first(x):
    y = second(x * 3)
    return y + x
def program(x):
    return first(torch.exp(x)) * x
""",
    "for": """
def program(x):
    for i in range({rounds}):
        x = torch.sin(x)
        if i < {n}:
            print(end="")
        x = torch.cos(x)
    return x + 1
""",
    "while": """
def program(x):
    i = 0
    while i < {rounds}:
        x = torch.sin(x)
        if i < {n}:
            print(end="")
        x = torch.cos(x)
        i += 1
    return x + 1
""",
    "try": """
def program(x):
    x = torch.exp(x)
    try:
        x = torch.sin(x)
        {straight}
        x = x * 2
    except ValueError:
        x = x - 1
    finally:
        x = x + 1
    return torch.exp(x)
""",
    "with": """
class Scale:
    def __init__(self, x):
        self.factor = x * 2
    def __enter__(self):
        return self.factor + 1
    def __exit__(self, *exception):
        self.factor = None
def program(x):
    with Scale(x) as y:
        x = torch.sin(y)
        {straight}
        x = x * 2
    return x + 1
""",
    "generator": """
def layers(x):
    for i in range({rounds}):
        x = torch.sin(x)
        if i < {n}:
            print(end="")
        yield torch.cos(x)
def program(x):
    total = x + 1
    for y in layers(x):
        total = total + y
    return total * 2
""",
}


def program(shape: str, n: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A fresh function, so that nothing captured for another one can count."""
    straight = "\n    ".join(["print(end='')", "x = torch.cos(x)"] * n) or "pass"
    if shape in ("try", "with"):
        straight = straight.replace("\n", "\n    ")
    text = SHAPES[shape].format(straight=straight, rounds=ROUNDS, n=n)
    file = f"<{shape}, {n} breaks>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"torch": torch}
    exec(compile(text, file, "exec"), names)  # noqa: S102
    return names["program"]


def check(captured: Any, plain: Any) -> None:
    x = torch.linspace(0.1, 0.9, 8)
    for _ in range(CALLS):
        with contextlib.redirect_stdout(io.StringIO()):
            if not torch.equal(captured(x.clone()), plain(x.clone())):
                raise AssertionError("the captured call gave another result")


def our_graphs(shape: str, n: int) -> tuple[int, int]:
    """How many a call runs, and how many are kept."""
    plain = program(shape, n)
    captured = frametap.compile(plain)
    check(captured, plain)
    kept = [segment for segment in frametap.segments(captured) if segment.graph.nodes]
    hits = sum(segment.hits for segment in kept)
    check(captured, plain)
    return (sum(segment.hits for segment in kept) - hits) // CALLS, len(kept)


def dynamo_graphs(shape: str, n: int) -> int:
    testing = importlib.import_module("torch._dynamo.testing")
    torch._dynamo.reset()
    counter = testing.CompileCounter()
    plain = program(shape, n)
    check(torch.compile(plain, backend=counter), plain)
    return int(counter.frame_count)


def table(count: Callable[[str, int], Any]) -> dict[str, list[Any]]:
    return {shape: [count(shape, n) for n in range(MOST_BREAKS + 1)] for shape in SHAPES}


def main() -> int:
    parser = argparse.ArgumentParser(description="Graphs for n breaks.")
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    parser.add_argument("--no-dynamo", action="store_true", help="leave torch.compile out")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ours = table(our_graphs)
    columns = {
        "frametap runs": {shape: [run for run, _ in row] for shape, row in ours.items()},
        "frametap keeps": {shape: [kept for _, kept in row] for shape, row in ours.items()},
    }
    if not arguments.no_dynamo:
        columns['torch.compile("eager")'] = table(dynamo_graphs)
    numbers = range(MOST_BREAKS + 1)
    where = timing.conditions()
    print(", ".join(f"{key} {value}" for key, value in where.items()) + "\n")
    print(
        f"| graphs for n breaks, n = {', '.join(map(str, numbers))} | wanted | {' | '.join(columns)} |"
    )
    print("| --- " * (len(columns) + 2) + "|")
    wanted = ", ".join(str(n + 1) for n in numbers)
    for shape in SHAPES:
        cells = [", ".join(map(str, column[shape])) for column in columns.values()]
        print(f"| {shape} | {wanted} | {' | '.join(cells)} |")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(
            json.dumps({"conditions": where, "tables": columns}, indent=2) + "\n"
        )
    return int(any(row != [n + 1 for n in numbers] for row in columns["frametap runs"].values()))


if __name__ == "__main__":
    sys.exit(main())
