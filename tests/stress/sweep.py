"""Fault sweeps: every program of `same/` and every golden, with a fault forced at each n-th place.

    python tests/stress/sweep.py                         all kinds, a set of n each: long
    python tests/stress/sweep.py --quick                 every program with a few faults
    python tests/stress/sweep.py abort:3 raise           one fault; one kind with its set of n
    python tests/stress/sweep.py alloc:7 --programs a b  these programs only

A fault is `kind:n`, as FRAMETAP_STRESS takes it (frame_eval/checks/stress.h): it strikes every n-th place. It is armed for the
statements of one program, with its places counted from the program's start, so that a report can be repeated alone.
The programs run in child processes. One that dies is reported, and the next child continues after it.

Laws
  Z1  Under abort, exit, miss and drop a program is equal to its plain run.
  Z2  Under raise the plain run is forced too, at the same op, and both runs are equal.
  Z3  Under alloc a program may end with MemoryError, show it, or lose it in a finaliser; up to there it is as the
      plain one. No process dies.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import itertools
import operator
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
_UNWRITTEN = "without the op that fails, memory is printed that nobody has written"
PLACES = {
    "abort": [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144],
    "exit": [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144],
    "miss": [1, 2, 3],
    "drop": [1, 2, 3, 5],
    "raise": [1, 2, 3, 4, 5, 7, 11, 17],
    "alloc": [*range(1, 30), *range(37, 400, 23)],
}
# The faults that the quick form draws from, two for each program.
QUICK = ["abort:5", "exit:3", "miss:1", "drop:1", "raise:3", "alloc:29"]
PROGRAMS_A_CHILD = 40
_UNCOUNTED = "ops of its __del__ do not count"
_CAUGHT = "it catches what torch raises for want of memory"
_SEGMENT_LINE = "where too much was written to be taken back, the line is that of the segment"
_PRINTED = "CPython takes a set for one being printed if its list of these cannot shrink"
_VIEWS = "how many views of a value an assignment makes follows from sizes"
_ORDER = "a known fault, the order in which objects end: see docs/known_faults.md"
_FINALISER = "a known fault, a finaliser without memory: see docs/known_faults.md"
_WRITTEN = "a known fault, a replay that has written a global: see docs/known_faults.md"
_RECORD = "a known fault, the record of record_function: see docs/known_faults.md"
_REPEATED = "it counts ops, and plain Python repeats those of a replay without memory"
_SHOWN = "it catches the MemoryError, and shows it"
_ATTENTION = "_get_sdp_priority_order of torch crashes"
_PYBIND = "pybind11 crashes where it has no memory for the object that a backend is called with"
_PROFILER = "torch crashes at the end of a process that has left a profiler on"
_COVERS = "a slice that covers a dimension is an op for some sizes only"
# (kind of fault, program): why it is not compared.
NOT_COMPARED = {
    ("alloc", "attention_kernels_by_priority"): _ATTENTION,
    ("alloc", "cached_size_handles_and_cleans_up"): _SHOWN,
    ("alloc", "callback_of_what_a_function_holds"): _ORDER,
    ("alloc", "chunked_module_inplace"): "a known fault: see docs/known_faults.md",
    ("alloc", "counted_by_shape"): _PRINTED,
    ("alloc", "exit_raises_and_replaces"): "its block takes the MemoryError",
    ("alloc", "finaliser_with_a_break_of_its_own_between_an_exit_and_its_frames"): _FINALISER,
    ("alloc", "frame_locals_in_traceback_of_replay"): _CAUGHT,
    ("alloc", "function_writes_and_an_op_raises"): _CAUGHT,
    ("alloc", "grad_mode_and_exception"): _CAUGHT,
    ("alloc", "handler_of_a_with_block"): _SHOWN,
    ("alloc", "kernels_of_others"): _REPEATED,
    ("alloc", "lying_arguments"): _SHOWN,
    ("alloc", "nested_look_ups_by_frozensets"): _PRINTED,
    ("alloc", "one_order_of_attention"): _ATTENTION,
    ("alloc", "parametrization_cached"): _WRITTEN,
    ("alloc", "profiler_that_ends_within_a_block"): _PROFILER,
    ("alloc", "reasons/backend_failed"): _PYBIND,
    ("alloc", "reasons/own_executable"): _PYBIND,
    ("alloc", "threads_share_it"): "a thread that finds no memory ends by itself",
    ("abort", "finaliser_callee_then_caller"): _ORDER,
    ("exit", "finaliser_callee_then_caller"): _ORDER,
    ("exit", "block_that_outlives_the_call"): _RECORD,
    (
        "exit",
        "own_dict_changed_in_a_loop",
    ): "a known fault, a position in a traceback: see docs/known_faults.md",
    ("abort", "much_is_written_before_an_element_is_refused"): _SEGMENT_LINE,
    ("exit", "much_is_written_before_an_element_is_refused"): _SEGMENT_LINE,
    ("raise", "deepcopy_of_captured"): "the compiled object's __deepcopy__ is in the traceback",
    ("raise", "mask_assignment_sizes"): _VIEWS,
    ("raise", "stores_to_parts_with_other_sizes"): _VIEWS,
    ("raise", "repeated_layers_take_from_sets"): "which ops run follows from addresses of modules",
    ("raise", "lazy_modules"): "what the forced error leaves behind cannot be described",
    ("raise", "finaliser_of_constructor_argument"): _UNCOUNTED,
    ("raise", "finaliser_with_a_break_of_its_own_between_an_exit_and_its_frames"): _UNCOUNTED,
    (
        "raise",
        "numbers_a_list_of_a_tensor_far_from_the_call",
    ): "ops below torch.tensor of a list count otherwise in a graph",
    ("raise", "numbers_slices_by_numbers"): _COVERS,
    ("raise", "numbers_writes_to_slices_that_cover"): _COVERS,
    ("raise", "np_asarray"): "the op below a call of NumPy does not count in a replay",
    ("raise", "out_arguments"): _UNWRITTEN,
    ("raise", "out_arguments_replaced"): "what the forced error leaves behind cannot be read",
    ("raise", "resize_of_argument_changes_facts"): _UNWRITTEN,
    ("raise", "out_of_several_results"): _UNWRITTEN,
    ("raise", "profiler_that_ends_within_a_block"): _PROFILER,
    ("raise", "threads_share_it"): "which of the threads meets the forced error is chance",
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
    """Work for children: (fault, program) pairs, and what became of them.

    Pairs of one program stand together, and pairs of one kind in rising order of n: see `child`.
    """

    def __init__(self, work: list[tuple[str, str]]) -> None:
        self.work = work
        self.problems: dict[tuple[str, str], str] = {}
        self.struck: collections.Counter[str] = collections.Counter()  # by fault

    def run(self) -> None:
        todo = self.work
        while todo:
            completed, code, said = self._child(todo)
            if code == 0:
                return
            how = f"signal {-code}" if code < 0 else f"exit status {code}"
            if completed == len(todo):
                self.problems[todo[-1]] = f"the process ended with {how}\n{said}"
                return
            self.problems[todo[completed]] = f"{how}\n{said}"
            todo = todo[completed + 1 :]

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
        blocks = done.stdout.split("\f")[1:]
        for (fault, name), block in zip(todo, blocks, strict=False):
            outcome, _, said = block.partition("\n")
            if outcome == "differs":
                self.problems[fault, name] = said
            if outcome != "not reached":
                self.struck[fault] += 1
        return len(blocks), done.returncode, done.stderr[-3000:]


def pieces(names: Sequence[str], faults_of: Callable[[str], Iterable[str]]) -> list[Sweep]:
    """So many that progress is seen, so few that starting a process does not count."""
    return [
        Sweep(
            [
                (fault, name)
                for name in names[i : i + PROGRAMS_A_CHILD]
                for fault in faults_of(name)
                if (fault.split(":")[0], name) not in NOT_COMPARED
            ]
        )
        for i in range(0, len(names), PROGRAMS_A_CHILD)
    ]


def finished(sweeps: Iterable[Sweep], jobs: int = os.cpu_count() or 1) -> Iterator[Sweep]:
    """Runs them, and gives each when it is through."""
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(sweep.run): sweep for sweep in sweeps}
        for future in as_completed(running):
            future.result()
            yield running[future]


def child() -> int:
    """Takes work from the standard input; gives one block `\\f outcome, text` for each piece that is done.

    A program that ends before a fault struck it need not meet the same kind with a greater n: it is "not reached".
    """
    sys.path.insert(0, str(TESTS))
    import torch

    from fixtures.subject import frametap
    from golden_test import goldens
    from same.harness import (
        Difference,
        Program,
        Run,
        all_programs,
        compare_runs,
        is_out_of_memory,
        perform,
        plain,
    )

    torch.set_num_threads(1)
    programs = {p.name: p for p in [*all_programs(), *(golden.program for golden in goldens())]}

    def forced(program: Program, capture: object, fault: str) -> tuple[Run, int, bool]:
        """The run, how many places of that kind it passed, and whether a finaliser lost an error for want of memory."""
        lost: list[type[BaseException]] = []
        passed = 0

        class Errors:
            """Stands in for sys.stderr, to see also the errors for which the hook finds no memory."""

            def write(self, text: str) -> int:
                if "on building sys.unraisablehook arguments" in text:
                    lost.append(MemoryError)
                return sys.__stderr__.write(text)

            def flush(self) -> None:
                sys.__stderr__.flush()

        @contextlib.contextmanager
        def armed() -> Iterator[None]:
            nonlocal passed
            sys.unraisablehook = lambda unraisable: lost.append(unraisable.exc_type)
            with contextlib.redirect_stderr(Errors()):
                frametap._C.stress(fault, passed)
                try:
                    yield
                finally:
                    passed = frametap._C.stress("")
                    sys.unraisablehook = sys.__unraisablehook__

        run = perform(Run(program, capture, armed))
        no_memory = (MemoryError, torch.OutOfMemoryError)
        return run, passed, any(issubclass(e, no_memory) for e in lost)

    def one(fault: str, program: Program, unforced: Run) -> bool:
        """Compares; whether the fault struck."""
        kind, _, n = fault.partition(":")
        captures = (plain, frametap.compile) if kind == "raise" else (frametap.compile,)
        # On one line: torch.jit prints the stack of Python.
        runs = [forced(program, capture, fault) for capture in captures]
        plain_run = runs[0][0] if kind == "raise" else unforced
        captured_run, passed, lost_memory = runs[-1]
        may_end = kind == "alloc"
        try:
            compare_runs(
                plain_run,
                captured_run,
                lambda seen: may_end and (lost_memory or is_out_of_memory(seen)),
            )
        finally:
            captured_run.close()
            if plain_run is not unforced:
                plain_run.close()
            frametap.reset()
            gc.collect()  # what this run has left in cycles does not end in the next
        return passed >= int(n or 1)

    gc.freeze()  # what was imported is not looked through again at each collection
    work = [line.split("\t") for line in sys.stdin.read().splitlines()]
    for name, group in itertools.groupby(work, key=operator.itemgetter(1)):
        unforced = perform(Run(programs[name], plain))
        beyond: set[str] = set()  # kinds of which the program has no more places
        for fault, _ in group:
            kind = fault.partition(":")[0]
            outcome = "not reached"
            if kind not in beyond:
                try:
                    if one(fault, programs[name], unforced):
                        outcome = "same"
                    else:
                        beyond.add(kind)
                except Difference as difference:
                    outcome = f"differs\n{difference}"
            print(f"\f{outcome}", flush=True)
        unforced.close()
    return 0


# Programs about a refusal or a faulty backend: plain Python has neither, whether or not a fault is forced.
NOT_AS_PLAIN = {"reasons/marked_size", "reasons/replay_failed"}


def program_names() -> list[str]:
    sys.path.insert(0, str(TESTS))
    from golden_test import goldens
    from same.harness import all_programs

    names = [p.name for p in all_programs()] + [golden.name for golden in goldens()]
    return [name for name in names if name not in NOT_AS_PLAIN]


def main() -> int:
    parser = argparse.ArgumentParser(description="Force faults into captures.")
    parser.add_argument("faults", nargs="*", help="kinds, or kind:n")
    parser.add_argument("--quick", action="store_true", help="a few faults for each program")
    parser.add_argument("--programs", nargs="*", default=[], help="only these programs")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child()
    names = arguments.programs or program_names()
    faults = all_faults(arguments.faults)
    sweeps = pieces(names, quick_faults if arguments.quick else lambda _: faults)
    total = sum(len(sweep.work) for sweep in sweeps)
    struck: collections.Counter[str] = collections.Counter()
    differ: collections.Counter[str] = collections.Counter()
    begun = time.monotonic()
    done = 0
    for sweep in finished(sweeps, arguments.jobs):
        done += len(sweep.work)
        struck += sweep.struck
        for (fault, name), problem in sweep.problems.items():
            differ[fault] += 1
            print(f"--- {fault} {name}\n{problem}", flush=True)
        print(f"{done} of {total} in {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    for fault in QUICK if arguments.quick else faults:
        print(f"{fault:10} struck {struck[fault]} programs, {differ[fault]} differ")
    print(f"{sum(differ.values())} differ in all")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
