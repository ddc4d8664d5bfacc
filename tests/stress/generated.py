"""What generators of random programs have in common: a program is its seed, and a run of many seeds is a report."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def lines(text: str) -> list[str]:
    """The lines of a table of templates."""
    return [line for line in text.splitlines() if line]


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", default="0:1000", help="FROM:TO (0:1000)")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--show", action="store_true", help="print the programs")
    return parser


def run(
    options: argparse.Namespace, program: Callable[[int], str], fault: Callable[[int], str]
) -> int:
    """What `fault` says of each seed; the exit status. `program` is the text of one, for --show."""
    first, _, last = options.seeds.partition(":")
    faults = 0
    for seed in range(int(first), int(last)):
        if options.show:
            print(program(seed))
        text = fault(seed)
        if text:
            faults += 1
            print(text, flush=True)
    print(f"{int(last) - int(first)} programs, {faults} differ")
    return int(faults > 0)
