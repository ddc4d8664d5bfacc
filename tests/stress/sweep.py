"""Fault sweeps: every program of `same/` and every golden, with one fault forced into every recording or replay.

    python tests/stress/sweep.py                    a sample of all kinds
    python tests/stress/sweep.py abort --upto 300   every n of one kind

A fault is `FRAMETAP_STRESS=kind:n` in the environment of a fresh process: `abort:n` gives a trace up after the n-th
recorded instruction, `exit:n` forces the n-th possible exit, `miss:n` makes the n-th guard say no, `alloc:n` fails the
n-th allocation, `raise:n` lets the n-th ATen call throw, `drop` fires every watch after each replay.

Laws
  Z1  Under abort, exit, miss, alloc and drop no program can be told from its plain run.
  Z2  Under raise a program may end with the forced exception; no process dies, and the next program is not affected.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
SAME_RESULTS = ["abort", "exit", "miss", "alloc"]
SAMPLE = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233]


def run_child(fault: str, names: list[str]) -> tuple[int, list[str], str]:
    """(exit code, names of the programs that differed, the rest of the output)."""
    environment = {**os.environ, "FRAMETAP_STRESS": fault, "PYTHONFAULTHANDLER": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
    )
    command = [sys.executable, str(Path(__file__).resolve()), "--child", *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    differing = [line.removeprefix("differs ") for line in lines if line.startswith("differs ")]
    if done.returncode < 0:
        running = [line for line in lines if line.startswith("running ")]
        differing.append(f"{running[-1] if running else 'start'}: signal {-done.returncode}")
    return done.returncode, differing, done.stdout + done.stderr


def child(names: list[str]) -> int:
    """Runs the programs in this process; says which one is running, so that a crash has a name."""
    sys.path.insert(0, str(TESTS))
    import torch

    from fixtures.subject import EAGER, frametap
    from golden_test import goldens
    from same.harness import Difference, all_programs, compare, plain

    torch.set_num_threads(1)
    may_raise = os.environ["FRAMETAP_STRESS"].startswith("raise")
    programs = [*all_programs(), *(golden.program for golden in goldens())]
    differing = 0
    for program in programs:
        if names and program.name not in names:
            continue
        print(f"running {program.name}", flush=True)
        try:
            for run in compare(program, plain if EAGER else frametap.compile):
                run.close()
        except Difference as difference:
            if not may_raise:
                differing += 1
                print(f"differs {program.name}\n{difference}", flush=True)
        frametap.reset()
    return 1 if differing else 0


def faults(kinds: list[str], upto: int | None) -> Iterator[str]:
    for kind in kinds:
        if kind == "drop":
            yield kind
        else:
            for n in range(1, upto + 1) if upto else SAMPLE:
                yield f"{kind}:{n}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Force faults into captures.")
    parser.add_argument("kinds", nargs="*", default=[*SAME_RESULTS, "drop", "raise"])
    parser.add_argument("--upto", type=int, help="every n from 1 on, instead of a sample")
    parser.add_argument("--programs", nargs="*", default=[], help="only these programs")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        return child(arguments.child)
    failed = 0
    for fault in faults(arguments.kinds, arguments.upto):
        code, differing, output = run_child(fault, arguments.programs)
        print(f"{fault:12} {'ok' if code == 0 else ', '.join(differing) or 'failed'}", flush=True)
        if code != 0:
            failed += 1
            if not differing:
                print(output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
