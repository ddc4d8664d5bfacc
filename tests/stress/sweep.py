"""Fault sweeps: every program of `same/` and every golden, with a fault forced at each n-th place.

    python tests/stress/sweep.py                         all kinds, a set of n each: long
    python tests/stress/sweep.py --quick                 every program with a few faults
    python tests/stress/sweep.py abort:3 raise           one fault; one kind with its set of n
    python tests/stress/sweep.py alloc:7 --programs a b  these programs only

A fault is `kind:n`, as FRAMETAP_STRESS takes it (frame_eval/stress.h); it is armed for the statements of one program,
with its places counted from the program's start, so that a report can be repeated alone. The programs run in child
processes: one that dies is reported, and the next child goes on behind it.

Laws
  Z1  Under abort, exit, miss and drop nobody can tell a program from its plain run.
  Z2  Under raise the plain run is forced too, at the same op: again nobody can tell which was which.
  Z3  Under alloc a program may end with MemoryError, show it, or lose it in a finaliser; up to there it is as the
      plain one. No process dies.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
_UNWRITTEN = "without the op that fails, memory is printed that nobody has written"
PLACES = {
    "abort": [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144],
    "exit": [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144],
    "miss": [1, 2, 3],
    "drop": [1, 2, 3, 5],
    "raise": [1, 2, 3, 4, 5, 7, 11, 17],
    "alloc": [*range(1, 30, 2), *range(37, 400, 23)],
}
# What the quick form draws from, two for each program.
QUICK = ["abort:5", "exit:3", "miss:1", "drop:1", "raise:3", "alloc:29"]
# (kind of fault, program): why it is not compared.
NOT_COMPARED = {
    ("raise", "lazy_modules"): "what the forced error leaves behind cannot be described",
    ("raise", "finaliser_of_constructor_argument"): "ops of its __del__ do not count",
    ("raise", "out_arguments"): _UNWRITTEN,
    ("raise", "resize_of_argument_changes_facts"): _UNWRITTEN,
    ("raise", "out_of_several_results"): _UNWRITTEN,
}


def all_faults(wanted: list[str]) -> list[str]:
    return [
        fault
        for one in wanted or PLACES
        for fault in ([one] if ":" in one else [f"{one}:{n}" for n in PLACES[one]])
    ]


def quick_faults(name: str) -> list[str]:
    """Two of the quick faults, others for each program, and always the same."""
    first = zlib.crc32(name.encode()) % len(QUICK)
    return [QUICK[first], QUICK[(first + 1) % len(QUICK)]]


class Sweep:
    """Work for children: (fault, program) pairs, and what became of them."""

    def __init__(self, work: list[tuple[str, str]]) -> None:
        self._work = [
            (fault, name) for fault, name in work if (fault.split(":")[0], name) not in NOT_COMPARED
        ]
        self.problems: dict[tuple[str, str], str] = {}

    def run(self) -> None:
        todo = self._work
        while todo:
            done, code, output = self._child(todo)
            if code == 0:
                return
            if done == len(todo):
                self.problems[todo[-1]] = f"the process ended with {code}\n{output}"
                return
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            self.problems[todo[done]] = f"{how}\n{output}"
            todo = todo[done + 1 :]

    def _child(self, todo: list[tuple[str, str]]) -> tuple[int, int, str]:
        """(how many were completed, exit code, what was said last)."""
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(TESTS), os.environ.get("PYTHONPATH")])
        )
        command = [sys.executable, str(Path(__file__).resolve()), "--child"]
        text = "".join(f"{fault}\t{program}\n" for fault, program in todo)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, input=text, check=False
        )
        completed = 0
        for block in done.stdout.split("\f")[1:]:
            outcome, _, said = block.partition("\n")
            if outcome == "differs":
                self.problems[todo[completed]] = said
            completed += 1
        return completed, done.returncode, done.stderr[-3000:]


def child() -> int:
    """Takes work from the standard input; gives one block `\\f outcome, text` for each piece that is done."""
    sys.path.insert(0, str(TESTS))
    import torch

    from fixtures.subject import frametap
    from golden_test import goldens
    from same.harness import (
        Difference,
        Observation,
        Program,
        Run,
        all_programs,
        compare_runs,
        perform,
        plain,
    )

    torch.set_num_threads(1)
    programs = {p.name: p for p in [*all_programs(), *(golden.program for golden in goldens())]}

    def is_out_of_memory(observation: Observation) -> bool:
        # The others are what torch says of a Python object that it cannot allocate, and what it is when it is caught.
        signs = ("raises MemoryError", "raises OutOfMemoryError", "Failed to allocate a Tensor")
        return any(sign in line for line in observation.lines for sign in signs)

    def one(fault: str, program: Program) -> None:
        lost: list[type[BaseException]] = []  # exceptions that left a finaliser

        def run(capture: object) -> Run:
            passed = 0

            @contextlib.contextmanager
            def armed() -> Iterator[None]:
                nonlocal passed
                sys.unraisablehook = lambda unraisable: lost.append(unraisable.exc_type)
                frametap._C.stress(fault, passed)
                try:
                    yield
                finally:
                    passed = frametap._C.stress("")
                    sys.unraisablehook = sys.__unraisablehook__

            is_plain = capture is plain and not fault.startswith("raise")
            scope = contextlib.nullcontext if is_plain else armed
            return perform(Run(program, capture, scope))

        plain_run, captured_run = run(plain), run(frametap.compile)
        may_end = fault.startswith("alloc")
        lost_memory = any(issubclass(e, (MemoryError, torch.OutOfMemoryError)) for e in lost)
        compare_runs(
            plain_run,
            captured_run,
            lambda seen: may_end and (lost_memory or is_out_of_memory(seen)),
        )
        plain_run.close()
        captured_run.close()

    for line in sys.stdin.read().splitlines():
        fault, name = line.split("\t")
        try:
            one(fault, programs[name])
            print("\fok", flush=True)
        except Difference as difference:
            print(f"\fdiffers\n{difference}", flush=True)
        frametap.reset()
    return 0


def program_names() -> list[str]:
    sys.path.insert(0, str(TESTS))
    from golden_test import goldens
    from same.harness import all_programs

    return [p.name for p in all_programs()] + [golden.name for golden in goldens()]


def main() -> int:
    parser = argparse.ArgumentParser(description="Force faults into captures.")
    parser.add_argument("faults", nargs="*", help="kinds, or kind:n")
    parser.add_argument("--quick", action="store_true", help="a few faults for each program")
    parser.add_argument("--programs", nargs="*", default=[], help="only these programs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child()
    names = arguments.programs or program_names()
    if arguments.quick:
        groups = {"quick": [(fault, name) for name in names for fault in quick_faults(name)]}
    else:
        groups = {
            fault: [(fault, name) for name in names] for fault in all_faults(arguments.faults)
        }
    failed: collections.Counter[str] = collections.Counter()
    for label, work in groups.items():
        sweep = Sweep(work)
        sweep.run()
        print(f"{label:10} {len(work)} runs, {len(sweep.problems)} differ", flush=True)
        for (fault, name), problem in sweep.problems.items():
            failed[label] += 1
            print(f"--- {fault} {name}\n{problem}", flush=True)
    print(f"{sum(failed.values())} differ in all")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
