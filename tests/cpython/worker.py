"""One module of CPython's `test` package in this process, plainly or with our interpreter on every frame.

    worker.py WAY INTERPRETER MODULE OUTCOMES

WAY is "plain" or "hooked". After it, "children" makes Python processes that the tests start alike, unless they ignore the
environment. Options such as "leave_every=7" run under a tracer that checks tracer.h's laws.
WAY may also be "captured": each test method is compiled by frametap. Its counterpart is "plain copies". Both run copies of
the module, because the standard library's folder is left to Python, and both run it twice: once to record, once to replay.
INTERPRETER is the file of the extension `_frametap_interpreter`; both ways load it, one switches it on. For captured
tests it is the file of the package's extension `_C`.
OUTCOMES gets a JSON object a line, written as it happens, so that the last line shows where a process died. Its key
is "begin", "test" (with "outcome" and "detail"), "module" ("ran" or "skipped") or "frames" (how many the interpreter ran).
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import traceback
import types
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any

ErrorFacts = tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None]


def identity(test: Any) -> str:
    try:
        return str(test.id())
    except TypeError:  # a test case may keep something else under this name
        return str(test)


class WritingResult(unittest.TestResult):
    """Writes one line for each outcome; a test with subtests has one for each that does not pass."""

    def __init__(self, out: IO[str]) -> None:
        super().__init__()
        self.out = out

    def write(self, **line: Any) -> None:
        self.out.write(json.dumps(line) + "\n")
        self.out.flush()

    def end(self, test: Any, outcome: str, detail: str = "") -> None:
        self.write(test=identity(test), outcome=outcome, detail=detail)

    def raised(self, test: Any, outcome: str, error: ErrorFacts) -> None:
        self.end(test, outcome, "".join(traceback.format_exception(*error))[-4000:])

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self.write(begin=identity(test))

    def addSuccess(self, test: Any) -> None:
        self.end(test, "passed")

    def addError(self, test: Any, err: Any) -> None:
        self.raised(test, "error", err)

    def addFailure(self, test: Any, err: Any) -> None:
        self.raised(test, "failed", err)

    def addSkip(self, test: Any, reason: str) -> None:
        self.end(test, "skipped", reason)

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.end(test, "expected failure")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.end(test, "unexpected success")

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self.raised(subtest, "failed" if failed else "error", err)


def load_extension(file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_frametap_interpreter", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copy_module(name: str, place: Path) -> None:
    """Puts a copy of the module, or of its package, before the library's own in the path of `test`."""
    import test

    package = name.partition(".")[0]
    for folder in list(test.__path__):
        found = Path(folder) / package
        if found.is_dir():
            shutil.copytree(found, place / package, ignore=shutil.ignore_patterns("__pycache__"))
        elif found.with_suffix(".py").exists():
            shutil.copy(found.with_suffix(".py"), place)
    test.__path__.insert(0, str(place))


def all_tests(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from all_tests(test)
        elif test is not None:
            yield test


def load_frametap(extension: str) -> ModuleType:
    """Imports the package that `extension` is in: the environment may lead to another one."""
    folder = str(Path(extension).parents[1])
    sys.path.insert(0, folder)
    frametap = importlib.import_module("frametap")
    sys.path.remove(folder)
    assert frametap._C.__file__ == extension, (frametap._C.__file__, extension)
    return frametap


def capture_tests(suite: unittest.TestSuite, frametap: Any) -> int:
    """Compiles each test method in the class that defines it; returns how many there are."""
    captured = 0
    for test in all_tests(suite):
        name = getattr(test, "_testMethodName", "")
        for cls in type(test).__mro__:
            function = vars(cls).get(name)
            if function is None:
                continue
            if isinstance(function, types.FunctionType):
                setattr(cls, name, frametap.compile(function))
                captured += 1
            break
    return captured


def run(name: str, out: IO[str], rounds: int = 1, captured_by: str = "") -> int:
    from test import support

    support.use_resources = ()  # nothing that needs a network, a display, much time or memory
    support.verbose = 0
    support.record_original_stdout(sys.stdout)
    result = WritingResult(out)
    try:
        module = importlib.import_module(f"test.{name}")
        suite = unittest.TestLoader().loadTestsFromModule(module)
    except unittest.SkipTest as skip:
        result.write(module="skipped", detail=str(skip))
        return 0
    count = capture_tests(suite, load_frametap(captured_by)) if captured_by else 0
    suite.run(result)
    for _ in range(rounds - 1):
        unittest.TestLoader().loadTestsFromModule(module).run(result)
    result.write(module="ran")
    return count


def main() -> None:
    way, extension, name, outcomes = sys.argv[1:]
    del sys.argv[1:], sys.path[0]
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    os.umask(0o022)
    if way in ("captured", "plain copies"):
        place = Path.cwd().parent / "copies"
        place.mkdir()
        copy_module(name, place)
        with open(outcomes, "w") as out:
            count = run(name, out, rounds=2, captured_by=extension if way == "captured" else "")
            out.write(json.dumps({"frames": count}) + "\n")
        os.chdir("/")
        return
    interpreter = load_extension(extension)
    switch, *options = way.split()
    if "children" in options:
        options.remove("children")
        place = str(Path(__file__).parent / "children")
        os.environ |= {"PYTHONPATH": place, "FRAMETAP_INTERPRETER": extension}
        os.environ["FRAMETAP_SWITCH"] = switch
    if switch == "hooked":
        observed = {key: int(value) for key, _, value in (o.partition("=") for o in options)}
        interpreter.run_everything(observed or None)
    with open(outcomes, "w") as out:
        run(name, out)
        out.write(json.dumps(interpreter.seen_of_everything()) + "\n")
    os.chdir("/")  # the runner removes the folder


if __name__ == "__main__":
    main()
