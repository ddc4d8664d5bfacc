"""The cost of recording one more round of a loop: loops of 10^2 to 10^5 rounds of thirteen sorts
of body.

Each row is a sort; each column is a number of rounds. A cell is the time of the first captured
call, divided by the rounds. The cells of a row should be equal: the time of a recording is linear
in the work of the program. The column "growth" is the cost of a round in the longest loop, divided
by the cost in the loop of 1,000 rounds. A row ends early where a loop takes too long. A loop whose
body runs ops of torch stops at 10^4 rounds. Memory is measured in a second table, for the loop of
1,000 rounds and for the longest one.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import timing
import torch
from torch import Tensor

from fixtures.subject import EAGER, frametap

Loop = Callable[[int, Tensor, Any], Any]

FEWEST, MOST, MOST_WITH_OPS = 100, 100_000, 10_000
LONGEST_CALL = 1.0  # seconds: the next loop of the row has ten times as many rounds


class Holder:
    """An object from outside: what is stored here is an effect."""

    def __init__(self, rounds: int) -> None:
        self.value: Any = None
        self.keys = [("a long key " * 20, i) for i in range(rounds)]
        self.alike = {key: key[1] for key in self.keys}
        self.count = 0
        self.items: list[int] = []
        self.table: dict[int, int] = {}
        self.linear = torch.nn.Linear(2, 2)

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        before, self.value = self.value, Part(self)
        try:
            yield
        finally:
            self.value = before


class Part:
    def __init__(self, owner: Holder) -> None:
        self.owner = owner


def with_blocks(n: int, x: Tensor, holder: Holder) -> Tensor:
    for _ in range(n):
        with holder.block():
            pass
    return x + 1


def stores(n: int, x: Tensor, holder: Holder) -> Tensor:
    for i in range(n):
        holder.value = Part(holder)
        holder.count = i
    return x + 1


def lists(n: int, x: Tensor, holder: Holder) -> Tensor:
    kept = []
    for i in range(n):
        kept.append([i])
        holder.items.append(i)
    return x + len(kept)


def dicts(n: int, x: Tensor, holder: Holder) -> Tensor:
    kept = {}
    for i in range(n):
        kept[i] = (i,)
        holder.table[i] = i
    return x + len(kept)


def keys_alike(n: int, x: Tensor, holder: Holder) -> Tensor:
    """Reads a dict from outside whose keys print alike."""
    total = 0
    for i in range(n):
        total += holder.alike[holder.keys[i]]
    return x + total


def generators(n: int, x: Tensor, holder: Holder) -> Tensor:
    total = 0
    for i in range(n):
        total += sum(j for j in (i, 1))
    return x + total


def closures(n: int, x: Tensor, holder: Holder) -> Tensor:
    total = 0
    for i in range(n):

        def add(j: int) -> int:
            return i + j  # noqa: B023

        total = add(1)
    return x + total


def exceptions(n: int, x: Tensor, holder: Holder) -> Tensor:
    caught = 0
    for _ in range(n):
        try:
            raise KeyError("key")
        except KeyError:
            caught += 1
    return x + caught


def modules(n: int, x: Tensor, holder: Holder) -> Tensor:
    for _ in range(n):
        x = holder.linear(x)
    return x


def numbers(n: int, x: Tensor, holder: Holder) -> Tensor:
    size = x.shape[0]
    total = 0
    for i in range(n):
        total = (total + size * i) % 7
    return x + total


def numbers_fixed_late(n: int, x: Tensor, holder: Holder) -> Tensor:
    """Uses each number several times for the next one, and fixes all of them after the loop."""
    size = total = x.shape[0]
    for _ in range(n):
        total = (total + total * 2 + total * 3) % 1000
    for _ in range(size):
        pass
    return x + total


def strings(n: int, x: Tensor, holder: Holder) -> Tensor:
    text = ""
    for i in range(n):
        text = f"{i} {text[:8]}".strip()
    return x + len(text)


def decisions(n: int, x: Tensor, holder: Holder) -> Tensor:
    counts = torch.zeros(2, dtype=torch.long)
    for _ in range(n):
        counts += 1
    return x + counts if torch.arange(2).any() else x


SORTS: dict[str, tuple[Loop, int]] = {
    "with blocks": (with_blocks, MOST),
    "stores": (stores, MOST),
    "lists": (lists, MOST),
    "dicts": (dicts, MOST),
    "keys alike": (keys_alike, MOST),
    "generators": (generators, MOST),
    "closures": (closures, MOST),
    "exceptions": (exceptions, MOST),
    "modules": (modules, MOST_WITH_OPS),
    "numbers": (numbers, MOST),
    "numbers fixed late": (numbers_fixed_late, MOST),
    "strings": (strings, MOST),
    "decisions": (decisions, MOST_WITH_OPS),
}


def first_call(loop: Loop, rounds: int) -> float:
    """Seconds of a first captured call."""
    captured = loop if EAGER else frametap.compile(loop)
    x, holder = torch.ones(2, 2), Holder(rounds)
    with timing.quiet_collector():
        start = time.perf_counter()
        captured(rounds, x, holder)
        return time.perf_counter() - start


def resident() -> int:
    """Bytes of memory that the process has now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def kept_by_first_call(loop: Loop, rounds: int) -> int:
    """Bytes that the process has more after a first captured call, while the segment is alive."""
    captured = loop if EAGER else frametap.compile(loop)
    x, holder = torch.ones(2, 2), Holder(rounds)
    before = resident()
    captured(rounds, x, holder)
    return resident() - before


def lengths(most: int) -> list[int]:
    rounds = [FEWEST]
    while rounds[-1] * 10 <= most:
        rounds.append(rounds[-1] * 10)
    return rounds


def main() -> int:
    arguments = timing.arguments("The cost of one more round of a recorded loop.", rounds=1)
    names = [f"{rounds:,} rounds" for rounds in lengths(MOST)]
    cost = timing.Numbers(
        "A first captured call, divided by the rounds of its loop",
        {**dict.fromkeys(names, timing.human), "growth": "{:.2f}".format},
    )
    memory = timing.Numbers(
        "Memory that the process has more after a first captured call, divided by the rounds",
        {"1,000 rounds": "{:.0f} bytes".format, "longest loop": "{:.0f} bytes".format},
    )
    with torch.no_grad():
        for sort, (loop, most) in SORTS.items():
            if not timing.wanted(arguments, sort):
                continue
            first_call(loop, FEWEST)  # imports, and what is made once in a process
            times: list[float] = []
            for rounds in lengths(most):
                took = min(first_call(loop, rounds) for _ in range(arguments.rounds))
                times.append(took / rounds)
                if took > LONGEST_CALL:
                    break
            growth = times[-1] / times[1] if len(times) > 2 else None
            cost.add(sort, *times, *[None] * (len(names) - len(times)), growth)
            longest = lengths(most)[len(times) - 1]
            memory.add(
                sort,
                kept_by_first_call(loop, 1000) / 1000,
                kept_by_first_call(loop, longest) / longest,
            )
    return timing.report([cost, memory], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
