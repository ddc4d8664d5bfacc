"""The cost of a call in int8: eager in float, `frametap.quantize` (static and dynamic), `frametap.freeze` in float32 and
bfloat16, and torch.compile in float (inductor, where there is a C++ compiler). `--peers` adds other frameworks, installed
into an environment of their own. Two more tables have the signal-to-noise ratio (SQNR) of each beside eager, and the time
from the float model to the first result. The input is not part of the calibration.
"""

from __future__ import annotations

import argparse
import gc
import logging
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import int8_peers
import timing
import torch
from int8_peers import Call, Task
from int8_rows import ROWS, Row
from torch import Tensor

from fixtures.subject import EAGER, frametap

OWN: dict[str, Callable[[Task], Call]] = {
    "int8": lambda task: frametap.quantize(task.model, task.batches, progress=False),
    "dynamic int8": lambda task: frametap.quantize(
        task.model, [task.x], scheme="dynamic", progress=False
    ),
    "float32": lambda task: frametap.freeze(task.model, [task.x]),
    "bfloat16": lambda task: frametap.freeze(task.model, [task.x], dtype=torch.bfloat16),
}


def sqnr(want: Tensor, got: Tensor) -> float:
    noise = (want - got.float()).square().mean()
    return (10 * torch.log10(want.square().mean() / noise)).item()


def contestants_of(arguments: argparse.Namespace) -> dict[str, Callable[[Task], Call]]:
    found = {"eager": lambda task: task.model}
    if not EAGER:
        found.update(OWN)
    if not arguments.no_dynamo and any(map(shutil.which, ("c++", "g++", "clang++"))):
        found['torch.compile("inductor")'] = int8_peers.inductor
    if arguments.peers:
        for peers in int8_peers.PEERS.values():
            found.update(peers)
    if arguments.only:
        found = {
            n: m for n, m in found.items() if n == "eager" or any(w in n for w in arguments.only)
        }
    return found


class BesidePeers(timing.Numbers):
    """How each kind compares with its quickest peer: the ratio of minima, and how many dB we are above."""

    def __init__(self) -> None:
        columns: dict[str, Callable[[Any], str]] = {}
        for kind in int8_peers.PEERS:
            columns[f"quickest in {kind}"] = str
            columns[f"{kind} / quickest"] = "{:.2f}".format
            columns[f"{kind}: SQNR above"] = "{:+.1f} dB".format
        super().__init__("Beside the quickest peer", columns)

    def compare(self, row: str, seconds: dict[str, float | None], noise: dict[str, float]) -> None:
        cells: list[Any] = []
        for kind, peers in int8_peers.PEERS.items():
            ran = {name: seconds[name] for name in peers if seconds.get(name)}
            quickest = min(ran, key=ran.__getitem__, default=None)
            if quickest is None or not seconds.get(kind):
                cells += [quickest, None, None]
            else:
                ratio = seconds[kind] / ran[quickest]
                cells += [quickest, ratio, noise[kind] - noise[quickest]]
        self.add(row, *cells)


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.makers = contestants_of(arguments)
        self.times = timing.Table("Later call, int8 and frozen beside float (no_grad)")
        names = [name for name in self.makers if name != "eager"]
        self.errors = timing.Numbers("SQNR", dict.fromkeys(names, "{:.1f} dB".format))
        self.first = timing.Numbers(
            "From the model to its first result", dict.fromkeys(names, timing.human)
        )
        self.beside = BesidePeers()

    def run(self, row: Row) -> None:
        torch.manual_seed(0)
        task = Task(
            row.model(),
            [row.input(self.arguments.batch) for _ in range(8)],
            row.input(self.arguments.batch),
            row.transformer,
            self.arguments.threads,
        )
        want = task.model(task.x)
        repeats = timing.repeats_for(lambda: task.model(task.x))
        contestants = []
        noise: dict[str, float] = {}
        first: dict[str, float] = {}
        for name, make in self.makers.items():
            start = time.perf_counter()
            try:
                call = make(task)
                got = call(task.x).clone()
            except Exception as error:  # noqa: BLE001 - one contestant must not end the race
                text = str(error).strip().partition("\n")[0]
                failed = timing.Contestant(
                    name, lambda _: None, error=f"{type(error).__name__}: {text}"
                )
                contestants.append(failed)
            else:
                if name != "eager":
                    first[name] = time.perf_counter() - start
                    noise[name] = sqnr(want, got)
                contestants += timing.warmed({name: lambda call=call: call(task.x)}, repeats)
        timing.race(contestants, self.arguments.rounds)
        self.times.add(row.name, contestants)
        self.errors.add(row.name, *map(noise.get, self.errors.columns))
        self.first.add(row.name, *map(first.get, self.first.columns))
        self.beside.compare(row.name, {c.name: c.best for c in contestants}, noise)
        found = [f"{c.name} {timing.human(c.best)}" for c in contestants]
        print(f"{row.name}: {', '.join(found)}", file=sys.stderr, flush=True)


def main() -> int:
    parser = timing.parser("Calls in int8 and of frozen models.", rounds=60)
    parser.add_argument("--batch", type=int, help="samples of each call")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--only", nargs="*", default=[], help="only contestants that have one of these words"
    )
    parser.add_argument(
        "--peers",
        nargs="?",
        type=Path,
        const=timing.ROOT / "build" / "peers",
        metavar="FOLDER",
        help="other frameworks too, installed into an environment there (default: build/peers)",
    )
    arguments = parser.parse_args()
    if arguments.peers:
        int8_peers.run_among_peers(arguments.peers)
    torch.set_num_threads(arguments.threads)
    bench = Bench(arguments)
    for row in ROWS:
        if timing.wanted(arguments, row.name):
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the peers, about the processor
                logging.disable(logging.WARNING)
                bench.run(row)
            gc.collect()
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: there is no int8\n")
    tables = [bench.times, bench.errors, bench.first]
    return timing.report([*tables, bench.beside] if arguments.peers else tables, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
