"""The common part of generators of random programs. A program is its seed, and a run of many seeds is a report."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.subject import frametap
from same.harness import Difference, Program, Run, compare_runs, is_out_of_memory, perform


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
    """Reports the result of `fault` for each seed and returns the exit status. `program` is the text of one, for --show."""
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


def text_of(name: str, code: str, calls: str) -> str:
    """The program as text for a file of `tests/same`."""
    return f"=== {name}\n{code}\n--- call ---\n{calls}"


def fault(name: str, code: str, calls: str, **options: Any) -> str:
    """Runs a program captured with `options` and plainly; what differs, in words, or nothing."""
    made = Program(name, f"<program {name}>", code, 1, calls, code.count("\n") + 3)

    def plain(f: Any = None, **_: Any) -> Any:
        return f

    def captured(f: Callable[..., Any], **_: Any) -> Any:
        return frametap.compile(f, **options)

    frametap.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain_run = perform(Run(made, plain), 2)
        captured_run = perform(Run(made, captured), 2)
    may_end = os.environ.get("FRAMETAP_STRESS", "").startswith("alloc")
    try:
        compare_runs(plain_run, captured_run, lambda seen: may_end and is_out_of_memory(seen))
    except Difference as difference:
        return f"{text_of(name, code, calls)}\n{difference}"
    finally:
        plain_run.close()
        captured_run.close()
    return ""
