"""How every benchmark here measures.

Laws
  B1  The contestants run in one process, in turn, round by round: a slow moment of the machine
  affects all of them.
  B2  The minimum is the result, with the median in parentheses beside it; ratios of the same run likewise. (A processor
      that has fast moments shorter than a contestant's run gives the shorter one the better minimum.)
  B3  One thread, and the conditions are printed with the numbers.
  B4  A contestant that fails gives no number, and its error is printed.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

TORCH_COMPILE = 'torch.compile("eager")'
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

EAGER_ONLY = os.environ.get("FRAMETAP_TEST_EAGER") == "1"


@dataclass
class Contestant:
    """`run()` is what is timed. `prepare()` comes before each round, untimed: its value is handed to `run`."""

    name: str
    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None
    repeats: int = 1  # calls of `run` in one timing
    own_clock: bool = False  # `run` gives the seconds itself: another process has taken them
    seconds: list[float] = field(default_factory=list)
    error: str | None = None

    @property
    def best(self) -> float | None:
        return min(self.seconds) if self.seconds else None

    @property
    def median(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    def forget(self) -> None:
        """Drops what was timed, and keeps its numbers. Models of earlier rows would take memory from later ones."""
        self.run = self.prepare = lambda *_: None


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection inside a timing, nor between its preparation and itself (it would cool the caches)."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def race(contestants: list[Contestant], rounds: int) -> None:
    """Interleaved rounds; the order turns by one each time."""
    gc.collect()
    gc.freeze()  # what is there already (torch) is not gone through before each timing
    try:
        for number in range(rounds):
            shift = number % len(contestants)
            for contestant in contestants[shift:] + contestants[:shift]:
                if contestant.error is None:
                    _one(contestant)
    finally:
        gc.unfreeze()


def from_cold_caches(contestant: Contestant) -> Contestant:
    """The same, but what it needs is in no cache of the processor when the clock starts."""

    def prepare() -> Any:
        prepared = contestant.prepare()
        _memory_beyond_caches().add_(1)
        return prepared

    return Contestant(contestant.name, contestant.run, prepare)


@functools.cache
def _memory_beyond_caches() -> torch.Tensor:
    """Twice the largest cache, or 64 MiB if the kernel does not report it."""
    caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    largest = max((int(size.read_text().strip().rstrip("K")) << 10 for size in caches), default=0)
    return torch.zeros(2 * largest or 64 << 20, dtype=torch.uint8)


def race_for(contestants: list[Contestant], seconds: float, most: int) -> None:
    """As many rounds as take about `seconds`, preparations included; at most so many."""
    start = time.perf_counter()
    race(contestants, 1)
    race(contestants, min(most, int(seconds / (time.perf_counter() - start))) - 1)


def _one(contestant: Contestant) -> None:
    try:
        with quiet_collector():
            prepared = contestant.prepare()
            start = time.perf_counter()
            for _ in range(contestant.repeats):
                result = contestant.run(prepared)
            seconds = (time.perf_counter() - start) / contestant.repeats
            contestant.seconds.append(result if contestant.own_clock else seconds)
    except Exception as error:  # noqa: BLE001 - one contestant must not end the race
        contestant.error = f"{type(error).__name__}: {error}"


def warmed(calls: dict[str, Callable[[], Any]], repeats: int) -> list[Contestant]:
    """Contestants that have been called three times: what is timed is a later call."""
    row = []
    for name, call in calls.items():
        contestant = Contestant(name, lambda _, call=call: call(), repeats=repeats)
        try:
            for _ in range(3):
                call()
        except Exception as error:  # noqa: BLE001 - one contestant must not end the race
            contestant.error = f"{type(error).__name__}: {error}"
        row.append(contestant)
    return row


def repeats_for(run: Callable[[], Any], seconds: float = 0.004) -> int:
    """How many calls make a timing of about `seconds`."""
    run()
    start = time.perf_counter()
    run()
    return max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))


def conditions() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "frametap": None if EAGER_ONLY else __import__("frametap").__version__,
        "self_check": os.environ.get("FRAMETAP_SELF_CHECK") == "1",
    }


def human(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def mebibytes(number: float) -> str:
    return f"{number / 2**20:.1f} MiB"


class Table:
    """Rows of contestants, as Markdown and as JSON; the first contestant of a row is the measure of the others."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.rows: list[tuple[str, list[Contestant]]] = []

    def add(self, name: str, contestants: list[Contestant]) -> None:
        for contestant in contestants:
            contestant.forget()
        self.rows.append((name, contestants))

    def markdown(self) -> str:
        names = [c.name for c in self.rows[0][1]]
        head = ["", names[0], *(part for n in names[1:] for part in (n, f"{n} / {names[0]}"))]
        lines = [f"## {self.title}", "", _row(head), _row(["---"] * len(head))]
        for name, contestants in self.rows:
            base = contestants[0]
            cells = [name, _cell(base)]
            for contestant in contestants[1:]:
                cells += [_cell(contestant), _ratio(contestant, base)]
            lines.append(_row(cells))
        errors = [f"- {error}" for error in self.errors()]
        return "\n".join([*lines, *([""] if errors else []), *errors])

    def errors(self) -> list[str]:
        return [f"{name}, {c.name}: {c.error}" for name, row in self.rows for c in row if c.error]

    def data(self) -> list[dict[str, Any]]:
        return [
            {
                "name": name,
                "contestants": {
                    c.name: {
                        "best_s": c.best,
                        "median_s": c.median,
                        "rounds": len(c.seconds),
                        "repeats": c.repeats,
                        "ratio": _over(c.best, row[0].best),
                        "ratio_of_medians": _over(c.median, row[0].median),
                        "error": c.error,
                    }
                    for c in row
                },
            }
            for name, row in self.rows
        ]


class Numbers:
    """Rows of plain numbers; each column says how its numbers are written."""

    def __init__(self, title: str, columns: dict[str, Callable[[Any], str]]) -> None:
        self.title = title
        self.columns = columns
        self.rows: list[tuple[str, list[Any]]] = []

    def add(self, name: str, *numbers: Any) -> None:
        """``None`` is a number that there is not."""
        self.rows.append((name, list(numbers)))

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", _row(["", *self.columns])]
        lines.append(_row(["---"] * (len(self.columns) + 1)))
        for name, numbers in self.rows:
            cells = zip(self.columns.values(), numbers, strict=True)
            lines.append(_row([name, *("–" if n is None else form(n) for form, n in cells)]))
        return "\n".join(lines)

    def data(self) -> list[dict[str, Any]]:
        return [
            {"name": name, "numbers": dict(zip(self.columns, numbers, strict=True))}
            for name, numbers in self.rows
        ]

    def errors(self) -> list[str]:
        return []


def _cell(contestant: Contestant) -> str:
    if contestant.best is None:
        return "failed" if contestant.error else "–"
    return f"{human(contestant.best)} ({human(contestant.median)})"


def _over(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _ratio(contestant: Contestant, base: Contestant) -> str:
    best, median = _over(contestant.best, base.best), _over(contestant.median, base.median)
    return "–" if best is None or median is None else f"{best:.2f} ({median:.2f})"


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def parser(description: str, rounds: int) -> argparse.ArgumentParser:
    """The options that all benchmarks have; one thread from here on."""
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument(
        "--rows", "--models", nargs="*", default=[], help="only rows that have one of these words"
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file, too")
    parser.add_argument("--no-dynamo", action="store_true", help="leave torch.compile out")
    return parser


def arguments(description: str, rounds: int) -> argparse.Namespace:
    return parser(description, rounds).parse_args()


def wanted(arguments: argparse.Namespace, row: str) -> bool:
    return not arguments.rows or any(word in row for word in arguments.rows)


def report(tables: Sequence[Table | Numbers], json_file: Path | None) -> int:
    """Prints everything; 1 if a contestant failed."""
    where = conditions()
    print(", ".join(f"{key} {value}" for key, value in where.items()))
    print(
        "Minimum (median) over interleaved rounds of one process; ratios of minima (of medians).\n"
    )
    for table in tables:
        if table.rows:
            print(table.markdown() + "\n")
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        data = {"conditions": where, "tables": {t.title: t.data() for t in tables}}
        json_file.write_text(json.dumps(data, indent=2) + "\n")
    return int(any(table.errors() for table in tables))
