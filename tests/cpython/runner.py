"""CPython's own tests, plainly and with our interpreter on every frame: does any test end otherwise?

  C1  Each module runs in processes of its own, set up alike except for the switch (worker.py).
  C2  The outcomes of tests are compared by their ids, not counted.
  C3  A test differs if it ends otherwise each time: what differs is run again, both ways.
  C4  A known difference has a reason, and must differ: known_differences.toml can only shrink.

Plain outcomes are kept for the interpreter they were seen with, hooked ones for the extension as well, so that a run
that was stopped continues where it was.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORKER = HERE / "worker.py"
KNOWN = HERE / "known_differences.toml"
KNOWN_CAPTURED = HERE / "known_differences_captured.toml"
QUICK = HERE / "quick.txt"
Way = str  # "plain" or "hooked", and options: see worker.py

# Packages whose modules are run one by one, as CPython's own runner does.
SPLIT = (
    *("test_asyncio", "test_concurrent_futures", "test_future_stmt", "test_gdb"),
    *("test_multiprocessing_fork", "test_multiprocessing_forkserver"),
    "test_multiprocessing_spawn",
)
ATTEMPTS = 3  # C3
ADDRESS = re.compile(r"0x[0-9a-f]+")  # parameters of subtests are identified by their repr


@dataclass
class Outcome:
    """The outcomes of one module in one process."""

    state: str  # "ran", "skipped", "crashed: …", "timed out", "not imported"
    seconds: float
    tests: dict[str, str] = field(default_factory=dict)  # id: outcome
    details: dict[str, str] = field(default_factory=dict)  # id: traceback or reason
    frames: int = 0
    violations: list[str] = field(default_factory=list)  # of tracer.h's laws
    last: str = ""  # the test that was begun last

    @property
    def passes(self) -> bool:
        return self.state == "ran" and not any(
            outcome in ("failed", "error", "unexpected success") for outcome in self.tests.values()
        )


@dataclass
class Verdict:
    """The result of running one module in two ways."""

    module: str
    kind: str  # "same", "different", "known", "skipped"
    note: str = ""
    passes_plainly: bool = False
    differences: dict[str, list[str]] = field(default_factory=dict)  # id: [plain, hooked]
    details: dict[str, str] = field(default_factory=dict)
    unsteady: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)  # C4
    tests: int = 0
    seconds: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Known:
    module: str
    tests: tuple[str, ...]  # ids; empty: the module as a whole
    reason: str


def read_known(path: Path = KNOWN) -> dict[str, list[Known]]:
    rows: dict[str, list[Known]] = {}
    for row in tomllib.loads(path.read_text()).get("difference", []):
        known = Known(row["module"], tuple(row.get("tests", ())), row["reason"])
        rows.setdefault(known.module, []).append(known)
    return rows


def read_quick() -> list[str]:
    return [
        name for line in QUICK.read_text().splitlines() for name in line.partition("#")[0].split()
    ]


def all_modules(folder: Path, prefix: str = "") -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        name = prefix + path.stem
        if not path.name.startswith("test_"):
            continue
        if path.is_dir() and name in SPLIT:
            yield from all_modules(path, name + ".")
        elif path.suffix == ".py" or (path / "__init__.py").exists():
            yield name


def package_folder() -> Path:
    import test

    return Path(test.__path__[0])


def find_extension() -> Path:
    folder = Path(os.environ.get("FRAMETAP_BUILD_DIR", ROOT / "build" / "release")) / "tests"
    found = sorted(folder.glob("_frametap_interpreter*.so"))
    if not found:
        sys.exit(
            f"no _frametap_interpreter in {folder}: build the tests first (tools/dev build all)"
        )
    return found[0]


def captured_extension() -> Path:
    import frametap._C

    return Path(frametap._C.__file__)


def read_outcomes(path: Path, code: int | None, seconds: float) -> Outcome:
    """`code` is the exit status, and None if the time was over."""
    outcome = Outcome("", seconds)
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # killed while it wrote
        if "begin" in entry:
            outcome.last = entry["begin"]
        elif "test" in entry:
            name = ADDRESS.sub("0x…", entry["test"])
            while name in outcome.tests:
                name += " (again)"
            outcome.tests[name] = entry["outcome"]
            if entry["detail"]:
                outcome.details[name] = entry["detail"]
        elif "module" in entry:
            outcome.state = entry["module"]
        elif "frames" in entry:
            outcome.frames = entry["frames"]
            outcome.violations = entry.get("violations", [])
    if code is None:
        outcome.state = "timed out"
    elif code < 0:
        outcome.state = f"crashed: {signal.Signals(-code).name}"
    elif not outcome.state:
        outcome.state = "not imported" if not outcome.last else f"crashed: exit {code}"
    elif code > 0:
        outcome.state = f"crashed at exit: {code}"
    return outcome


class Runner:
    def __init__(
        self,
        folder: Path,
        extension: Path,
        timeout: float,
        plain: Way = "plain",
        hooked: Way = "hooked",
        keep: bool = True,
    ) -> None:
        self.folder = folder
        self.extension = extension
        self.timeout = timeout
        self.plain = plain
        self.hooked = hooked
        self.keep = keep
        self.stopped = False
        self.running: set[subprocess.Popen[bytes]] = set()
        shared = f"{sys.version} {sys.executable} {WORKER.read_text()}"
        self.keys: dict[Way, str] = {
            plain: hashlib.sha256(shared.encode()).hexdigest(),
            hooked: hashlib.sha256(shared.encode() + extension.read_bytes()).hexdigest(),
        }

    def kept(self, way: Way) -> Path:
        return self.folder / way.replace(" ", "-")

    def run(self, module: str, way: Way, timeout: float) -> Outcome:
        """One process."""
        logs = self.kept(way)
        logs.mkdir(parents=True, exist_ok=True)
        place = Path(tempfile.mkdtemp(prefix="frametap-"))
        outcomes = place / "outcomes.jsonl"
        work = place / "work"
        work.mkdir()
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))
        }
        environment |= {"TMPDIR": str(work), "PYTHONHASHSEED": "0"}
        command = [sys.executable, str(WORKER), way, str(self.extension), module, str(outcomes)]
        start = time.monotonic()
        code: int | None = None
        with open(logs / f"{module}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                cwd=work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.running.add(process)
            try:
                code = process.wait(timeout)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # faulthandler, where a test switched it on
                wait_or_kill(process, 5)
            finally:
                end_group(process)
                self.running.discard(process)
        outcome = read_outcomes(outcomes, code, time.monotonic() - start)
        shutil.rmtree(place, ignore_errors=True)
        # A module whose tests are no plain functions has none to capture.
        assert way in (self.plain, "captured") or outcome.state != "ran" or outcome.frames > 0, (
            "the switch was off"
        )
        return outcome

    def outcome(self, module: str, way: Way, timeout: float, fresh: bool = False) -> Outcome:
        """The kept outcome, or the outcome of a new process."""
        path = self.kept(way) / f"{module}.json"
        if self.keep and not fresh and path.exists():
            kept = json.loads(path.read_text())
            if kept.pop("key") == self.keys[way]:
                return Outcome(**kept)
        outcome = self.run(module, way, timeout)
        if self.stopped:
            raise KeyboardInterrupt
        path.write_text(json.dumps({"key": self.keys[way]} | asdict(outcome), indent=1))
        return outcome

    def stop(self) -> None:
        """Ends what runs, from another thread; what waits for it raises."""
        self.stopped = True
        for process in list(self.running):
            end_group(process)

    def verdict(self, module: str, known: Collection[Known]) -> Verdict:
        plain = self.outcome(module, self.plain, self.timeout)
        if plain.state != "ran":
            return Verdict(module, "skipped", f"plainly: {plain.state}")
        if not plain.tests:
            return Verdict(module, "skipped", "no tests")
        limit = max(60.0, 15 * plain.seconds, self.timeout)
        hooked = self.outcome(module, self.hooked, limit)
        differences = compare(plain, hooked)
        seen = set(differences)
        listed = {name for row in known for name in row.tests}
        for _ in range(ATTEMPTS - 1):
            if differences.keys() <= listed:
                break
            again = compare(
                self.outcome(module, self.plain, self.timeout, fresh=True),
                hooked := self.outcome(module, self.hooked, limit, fresh=True),
            )
            differences = {name: pair for name, pair in again.items() if name in differences}
        verdict = Verdict(
            module,
            "different" if differences else "same",
            hooked.state if hooked.state != "ran" else "",
            plain.passes,
            differences,
            {name: hooked.details.get(name, plain.details.get(name, "")) for name in differences},
            sorted(seen - set(differences)),
            tests=len(plain.tests),
            seconds=(plain.seconds, hooked.seconds),
        )
        verdict = with_known(verdict, known)
        if self.hooked not in ("hooked", "captured"):
            verdict.stale = []  # the list speaks of the way without options
        return verdict


def wait_or_kill(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_group(process: subprocess.Popen[bytes]) -> None:
    """The process, and what its tests started and left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def compare(plain: Outcome, hooked: Outcome) -> dict[str, list[str]]:
    names = dict.fromkeys([*plain.tests, *hooked.tests])
    pairs = {
        name: [plain.tests.get(name, "not run"), hooked.tests.get(name, "not run")]
        for name in names
        if plain.tests.get(name) != hooked.tests.get(name)
    }
    if plain.state != hooked.state:
        where = f" in {hooked.last}" if hooked.last and hooked.state != "ran" else ""
        pairs = {"(the module)": [plain.state, hooked.state + where]} | pairs
    return pairs | {f"(the tracer) {v}": ["", "violation"] for v in hooked.violations}


def with_known(verdict: Verdict, known: Collection[Known]) -> Verdict:
    left = set(verdict.differences)
    for row in known:
        explained = left & set(row.tests) if row.tests else set(left)
        verdict.stale += [name for name in row.tests if name not in explained]
        if not row.tests and not explained:
            verdict.stale.append("(the module)")
        left -= explained
    if verdict.kind == "different" and not left:
        verdict.kind = "known"
    return verdict


def report(verdicts: list[Verdict]) -> dict[str, Any]:
    kinds = {
        kind: [v for v in verdicts if v.kind == kind]
        for kind in ("same", "different", "known", "skipped")
    }
    passing = [v for v in verdicts if v.passes_plainly]
    same = [v for v in passing if v.kind == "same"]
    return {
        "counts": {kind: len(group) for kind, group in kinds.items()},
        "modules that pass plainly": len(passing),
        "of these the same": len(same),
        "percent": round(100 * len(same) / len(passing), 2) if passing else None,
        "tests": sum(v.tests for v in verdicts),
        "modules": [asdict(v) for v in verdicts],
    }


def print_table(verdicts: list[Verdict], summary: dict[str, Any], details: bool) -> None:
    for kind, title in (
        ("skipped", "Skipped"),
        ("known", "Known differences"),
        ("different", "Different outcome"),
    ):
        group = [v for v in verdicts if v.kind == kind]
        if group:
            print(f"\n{title}:")
        for verdict in group:
            print(f"  {verdict.module:40} {verdict.note}")
            for name, (plain, hooked) in verdict.differences.items():
                print(f"    {name}: plain {plain}, hooked {hooked}")
                if details and kind == "different" and verdict.details.get(name):
                    print("      " + verdict.details[name].rstrip().replace("\n", "\n      "))
    unsteady = {name: v.module for v in verdicts for name in v.unsteady}
    if unsteady:
        print("\nDiffered once, and not again:")
        for name in unsteady:
            print(f"  {name}")
    stale = [(v.module, name) for v in verdicts for name in v.stale]
    if stale:
        print("\nListed as known and the same now: take them out of known_differences.toml")
        for module, name in stale:
            print(f"  {module}: {name}")
    print(f"\n{'outcome':12}modules")
    for kind, count in summary["counts"].items():
        print(f"{kind:12}{count:7}")
    if summary["percent"] is not None:
        print(
            f"\n{summary['of these the same']} of {summary['modules that pass plainly']} modules that pass "
            f"plainly have the same outcome: {summary['percent']} %"
        )


def run_all(
    runner: Runner, modules: list[str], known: dict[str, list[Known]], jobs: int
) -> list[Verdict]:
    verdicts = []
    start = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(runner.verdict, m, known.get(m, ())): m for m in modules}
        try:
            for number, done in enumerate(as_completed(running), 1):
                verdict = done.result()
                verdicts.append(verdict)
                print(
                    f"[{number}/{len(modules)} {time.monotonic() - start:.0f}s] {verdict.module}: "
                    f"{verdict.kind} ({verdict.tests} tests, plain {verdict.seconds[0]:.1f}s, "
                    f"hooked {verdict.seconds[1]:.1f}s) {verdict.note}",
                    flush=True,
                )
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            runner.stop()
            raise
    return verdicts


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools/dev cpython-tests", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("modules", nargs="*", help="test_dict … (default: all)")
    parser.add_argument("--quick", action="store_true", help="the modules of quick.txt")
    parser.add_argument("--exclude", action="append", default=[], metavar="MODULE")
    parser.add_argument("-j", "--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a plain module")
    parser.add_argument("--fresh", action="store_true", help="use no outcome that was kept")
    parser.add_argument("--details", action="store_true", help="print tracebacks of differences")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "cpython-tests")
    parser.add_argument(
        "--children", action="store_true", help="in Python processes that tests start as well"
    )
    parser.add_argument(
        "--captured",
        action="store_true",
        help="compile each test method with frametap, in copies of the modules, and run each twice",
    )
    parser.add_argument(
        "--observed",
        metavar="OPTION=N",
        default="",
        help="under a tracer that checks the laws of tracer.h: reload_every=1, leave_every=7 …",
    )
    parser.add_argument("--json", type=Path, help="default: FOLDER/report.json")
    options = parser.parse_args()

    modules = options.modules or (
        read_quick() if options.quick else list(all_modules(package_folder()))
    )
    modules = [m.removeprefix("test.") for m in modules if m not in options.exclude]
    known = read_known(KNOWN_CAPTURED if options.captured else KNOWN)
    children = " children" * options.children
    runner = Runner(
        options.folder,
        captured_extension() if options.captured else find_extension(),
        options.timeout,
        plain="plain copies" if options.captured else f"plain{children}",
        hooked="captured" if options.captured else f"hooked{children} {options.observed}".rstrip(),
        keep=not options.fresh,
    )
    verdicts = run_all(runner, modules, known, options.jobs)
    verdicts.sort(key=lambda v: v.module)
    summary = report(verdicts)
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.json or options.folder / "report.json"
    path.write_text(json.dumps(summary, indent=1))
    print_table(verdicts, summary, options.details)
    print(f"\n{path}")
    return 1 if summary["counts"]["different"] or any(v.stale for v in verdicts) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
