"""From `import torch` done to the first captured `x + 1` answered, in fresh processes; and what plain Python pays after that.

The import of frametap, or of torch.compile's front end, is part of the first answer: seconds and
resident memory. Then a function of plain Python that is not captured is timed, in processes that
have captured another function and in one that has not.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import timing
from processes import MEMORY, numbers_of

PROGRAM = (
    MEMORY
    + """
import json, sys, time
import torch
torch.set_num_threads(1)
which = sys.argv[1]
def add(x):
    return x + 1
x = torch.ones(4)
add(x)
before, start = resident(), time.perf_counter()
if which == "frametap":
    import frametap
    f = frametap.compile(add)
elif which == "torch.compile":
    f = torch.compile(add, backend="eager")
else:
    f = add
f(x)
seconds, after = time.perf_counter() - start, resident()

def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps
def plain():
    return sum(collatz(n) for n in range(1, 3000))
best = 1e9
for _ in range(5):
    start = time.perf_counter()
    plain()
    best = min(best, time.perf_counter() - start)
print(json.dumps({"seconds": seconds, "bytes": after - before, "plain": best}))
"""
)


def main() -> int:
    arguments = timing.arguments("First answers of fresh processes.", rounds=5)
    names = {"eager": "eager", timing.TORCH_COMPILE: "torch.compile", "frametap": "frametap"}
    if arguments.no_dynamo:
        del names[timing.TORCH_COMPILE]
    seen: dict[str, list[dict[str, Any]]] = {name: [] for name in names}

    def contestant(name: str) -> timing.Contestant:
        def run(_: Any) -> float:
            seen[name].append(numbers_of(PROGRAM, names[name]))
            return float(seen[name][-1]["seconds"])

        return timing.Contestant(name, run, own_clock=True)

    row = [contestant(name) for name in names]
    timing.race(row, arguments.rounds)
    first = timing.Table("From `import torch` done to the first `x + 1` answered")
    first.add("import and first call", row[1:])
    plain = timing.Table("Plain Python after that, while nothing is captured")
    later = [timing.Contestant(name, lambda _: None) for name in names]
    for contestant_ in later:
        contestant_.seconds = [one["plain"] for one in seen[contestant_.name]]
    plain.add("a loop of integers", later)
    tracers = [c.name for c in row[1:]]
    memory = timing.Numbers(
        "Resident memory that it takes", dict.fromkeys(tracers, timing.mebibytes)
    )
    memory.add(
        "median",
        *(statistics.median(n["bytes"] for n in seen[t]) if seen[t] else None for t in tracers),
    )
    return timing.report([first, memory, plain], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
