"""The differential harness: a program runs plainly and captured, and the two runs are compared.

A program is text: code, then calls. Each statement that calls something by its bare name, as `f(x)`, is made `REPEATS`
times, so that a recording, a replay and a second replay are all compared. Every other statement (`m.eval()`,
`n = 3`) is made once: a change of the world between two calls. `f` is captured after the code
has run, unless the code marks the captured functions itself, with `@captured`.

Laws
  H1  Both runs execute the same statements in fresh namespaces, from the same random state, and share no object.
  H2  After each statement everything is compared: the result, or the exception with its traceback, output, warnings,
      arguments, every global of the program, random states, and the switches of torch.
  H3  The first difference is the report; nothing after it is meaningful.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import dataclasses
import difflib
import functools
import gc
import hashlib
import io
import itertools
import math
import operator
import os
import random
import sys
import traceback
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .describe import Describer, normalized

REPEATS = 3
_HERE = str(Path(__file__).resolve().parent)
_TORCH = str(Path(torch.__file__).resolve().parent)


@dataclasses.dataclass(frozen=True)
class Program:
    """Code and calls, with the lines at which they stand in `file` (so that tracebacks point there)."""

    name: str
    file: str
    code: str
    code_line: int
    calls: str
    calls_line: int


def read_programs(path: Path) -> list[Program]:
    """Programs of one file: `=== name`, code, `--- call ---`, calls. Text before the first name is a comment."""
    programs = []
    name, start, split = "", 0, 0
    lines = path.read_text().splitlines()
    for number, line in enumerate([*lines, "=== "], start=1):
        if line.startswith("=== "):
            if name:
                if not split:
                    raise ValueError(f"{path}:{start}: {name} has no '--- call ---'")
                programs.append(
                    Program(
                        name=name,
                        file=str(path),
                        code="\n".join(lines[start : split - 1]),
                        code_line=start + 1,
                        calls="\n".join(lines[split : number - 1]),
                        calls_line=split + 1,
                    )
                )
            name, start, split = line[4:].strip(), number, 0
        elif line == "--- call ---":
            split = number
    return programs


# The kinds of attention, of which each can be switched off, and their order.
ATTENTION = ("flash", "math", "mem_efficient", "cudnn", "overrideable")
ORDER_OF_ATTENTION = torch._C._get_sdp_priority_order()


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape)


def _seq(*shape: int) -> torch.Tensor:
    """Returns 0, 1, 2, … in that shape. Unlike ones, it shows a wrong order of elements."""
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


def _noise(*shape: int) -> torch.Tensor:
    """Normal values that depend on the shape only, not on the random state."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(11))


PRELUDE: dict[str, Any] = {
    "torch": torch,
    "nn": nn,
    "F": F,
    "Tensor": torch.Tensor,
    "np": np,
    "math": math,
    "random": random,
    "functools": functools,
    "itertools": itertools,
    "operator": operator,
    "collections": collections,
    "contextlib": contextlib,
    "dataclasses": dataclasses,
    "types": types,
    "ones": _ones,
    "seq": _seq,
    "noise": _noise,
}


@dataclasses.dataclass
class Observation:
    """All that can be seen after one statement."""

    statement: str
    result: Any
    lines: list[str]


class Run:
    """One execution of a program. `capture` is frametap.compile, or what leaves a callable as it is.

    `scope` is entered around each statement, and around nothing that the harness does itself.
    """

    def __init__(
        self,
        program: Program,
        capture: Callable[..., Any],
        scope: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
        unseen: Collection[str] = (),
    ) -> None:
        self.program = program
        self._unseen = unseen
        self._capture = capture
        self._scope = scope
        self._originals: dict[int, Any] = {}
        self.captured: list[Any] = []
        self._module = types.ModuleType("program")
        self.names = self._module.__dict__
        self.observations: list[Observation] = []
        _reset_world()
        self.names.update(PRELUDE)
        self.names["captured"] = self._decorate
        self._fixed = set(self.names)
        previous = sys.modules.get("program")
        sys.modules["program"] = self._module  # dataclasses and pickling look their module up
        try:
            self._execute_code()
        finally:
            if previous is None:
                del sys.modules["program"]

    def _decorate(self, f: Any = None, **options: Any) -> Any:
        if f is None:
            return functools.partial(self._decorate, **options)
        made = self._capture(f, **options)
        self._originals[id(made)] = f
        self.captured.append(made)
        return made

    def _execute_code(self) -> None:
        tree = ast.parse(self.program.code)
        ast.increment_lineno(tree, self.program.code_line - 1)
        exec(compile(tree, self.program.file, "exec", dont_inherit=True), self.names)  # noqa: S102 - a test program
        if not self.captured:
            self.names["f"] = self._decorate(self.names["f"])

    def statements(self) -> Iterable[ast.stmt]:
        tree = ast.parse(self.program.calls)
        ast.increment_lineno(tree, self.program.calls_line - 1)
        return tree.body

    def execute(self, statement: ast.stmt, repeat: int = 0) -> Observation:
        """Runs one statement. A call at the top of an expression is made through `_call`, to keep its arguments."""
        arguments: list[Any] = []
        is_call = isinstance(statement, ast.Expr)

        def _call(f: Any, *args: Any, **kwargs: Any) -> Any:
            arguments.extend([args, kwargs])
            return f(*args, **kwargs)

        self.names["_call"] = _call
        if isinstance(statement, ast.Expr):
            code = compile(_expression(statement), self.program.file, "eval", dont_inherit=True)
        else:
            code = compile(ast.Module([statement], []), self.program.file, "exec")
        printed = io.StringIO()
        result: Any = None
        error: BaseException | None = None
        with (
            contextlib.redirect_stdout(printed),
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            try:
                with self._scope():
                    result = eval(code, self.names)
            except Exception as e:  # noqa: BLE001 - the program's exception is a result
                error = e
        del self.names["_call"]
        expected = self._expected_error(statement)
        raised = None if error is None else type(error).__name__
        is_forced = self._scope is not contextlib.nullcontext
        if raised != expected and self._capture is plain and not is_forced:
            place = f"{self.program.file}:{statement.lineno}"
            raise ValueError(f"{place}: {ast.unparse(statement)}: expected {expected}: {error!r}")
        describer = Describer(self.original, self._unseen)
        if error is not None:
            describer.lines += self._exception("raises", error, describer)
        elif is_call:
            describer.add("result", result)
        if arguments:
            describer.add("args", arguments[0])
            describer.add("kwargs", arguments[1])
        describer.lines += [
            f"printed {line}" for line in normalized(printed.getvalue()).splitlines()
        ]
        describer.lines += [
            f"warned {w.category.__name__} {normalized(str(w.message))}"
            for w in warned
            if w.filename == self.program.file
        ]
        own = self.own_names()
        for name, value in self.names.items():
            if name in own:
                describer.add(name, value)
        describer.lines += _world()
        text = ast.unparse(statement) + (f"  # call {repeat + 1}" if is_call else "")
        if error is not None:
            _forget_frames(error)
        observation = Observation(text, result, describer.lines)
        self.observations.append(observation)
        return observation

    def _expected_error(self, statement: ast.stmt) -> str | None:
        """Returns the text after `# raises` on the statement's line. A program that fails by mistake proves nothing."""
        line = self.program.calls.splitlines()[statement.lineno - self.program.calls_line]
        return line.partition("# raises ")[2].strip() or None

    def original(self, obj: Any) -> Any:
        """Returns the original of a captured callable, and other objects as they are."""
        return self._originals.get(id(obj), obj)

    def own_names(self) -> set[str]:
        """The names that the program has defined."""
        return set(self.names) - self._fixed - {"__builtins__", "__warningregistry__"}

    def _exception(self, head: str, error: BaseException, describer: Describer) -> list[str]:
        lines = [f"{head} {type(error).__qualname__}: {normalized(str(error))}"]
        lines += [f"  at {frame}" for frame in self.user_frames(error)]
        lines += [f"  note {note}" for note in getattr(error, "__notes__", [])]
        if error.__suppress_context__:
            lines.append(f"{head}: the context is not shown")
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                lines += self._exception(f"{head} of", member, describer)
        if error.__cause__ is not None:
            lines += self._exception(f"{head} from", error.__cause__, describer)
        if error.__context__ not in (None, error.__cause__):
            lines += self._exception(f"{head} during", error.__context__, describer)
        return lines

    def user_frames(self, error: BaseException) -> list[str]:
        """function:line:column-end of each frame from the program's first one on, except frametap's own Python files."""
        frames = []
        for frame in traceback.extract_tb(error.__traceback__):
            if frame.filename == self.program.file:
                if frame.name != "<module>":
                    end = f"{frame.end_lineno}:{frame.end_colno}"
                    frames.append(f"{frame.name}:{frame.lineno}:{frame.colno}-{end}")
            elif (
                frames
                and not frame.filename.startswith(_HERE)
                and "/frametap/" not in frame.filename
            ):
                where = "torch" if frame.filename.startswith(_TORCH) else "library"
                frames.append(f"{where} {frame.name}:{frame.lineno}")
        return frames

    def close(self) -> None:
        """Drops everything the program made."""
        self.names.clear()
        self._originals.clear()
        self.captured.clear()
        self.observations.clear()


def is_repeated(statement: ast.stmt) -> bool:
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name)


def _expression(statement: ast.Expr) -> ast.Expression:
    value = statement.value
    if isinstance(value, ast.Call):
        head = ast.copy_location(ast.Name("_call", ast.Load()), value)
        value = ast.copy_location(ast.Call(head, [value.func, *value.args], value.keywords), value)
    return ast.fix_missing_locations(ast.Expression(value))


def _forget_frames(error: BaseException | None) -> None:
    """A traceback holds frames, and so the arguments of the call."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


def _reset_world() -> None:
    gc.enable()
    torch.default_generator.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.use_deterministic_algorithms(False)
    torch.autograd.set_detect_anomaly(False)
    for kind in ATTENTION:
        getattr(torch._C, f"_set_sdp_use_{kind}")(True)
    torch._C._set_sdp_priority_order(ORDER_OF_ATTENTION)


def _world() -> list[str]:
    """Random states and switches."""
    device = torch.get_default_device()
    with torch._C.DisableTorchFunction():  # a default device is a mode
        state = torch.get_rng_state().numpy().tobytes()
    name, keys, *position = np.random.get_state()
    numpy_state = keys.tobytes() + repr((name, position)).encode()
    return [
        f"torch random {hashlib.sha1(state).hexdigest()[:8]}",
        f"random {hashlib.sha1(repr(random.getstate()).encode()).hexdigest()[:8]}",
        f"numpy random {hashlib.sha1(numpy_state).hexdigest()[:8]}",
        (
            f"grad {torch.is_grad_enabled()} inference {torch.is_inference_mode_enabled()} "
            f"autocast {torch.is_autocast_enabled('cpu')} {torch.get_autocast_dtype('cpu')} "
            f"dtype {torch.get_default_dtype()} device {device} "
            f"deterministic {torch.are_deterministic_algorithms_enabled()} "
            f"anomaly {torch.is_anomaly_enabled()} threads {torch.get_num_threads()}"
        ),
        f"handling {sys.exc_info()[0]}",
        (
            f"attention {[getattr(torch._C, f'_get_{kind}_sdp_enabled')() for kind in ATTENTION]} "
            f"{torch._C._get_sdp_priority_order()}"
        ),
        (
            f"dispatch keys included {torch._C._dispatch_tls_local_include_set()} "
            f"excluded {torch._C._dispatch_tls_local_exclude_set()}"
        ),
    ]


def plain(f: Any = None, **options: Any) -> Any:
    """Stands in for `captured` in the plain run."""
    del options
    return f


class Difference(AssertionError):
    """The two runs differ."""


def perform(run: Run, repeats: int = REPEATS) -> Run:
    """Executes all statements."""
    for statement in run.statements():
        for repeat in range(repeats if is_repeated(statement) else 1):
            run.execute(statement, repeat)
    return run


def compare_runs(
    plain_run: Run, captured_run: Run, ends: Callable[[Observation], bool] = lambda _: False
) -> None:
    """Raises Difference at the first statement after which two runs of a program differ.

    `ends`: what the captured run may have seen instead, and after which nothing is to be compared.
    """
    want, got = plain_run.observations, captured_run.observations
    assert len(want) == len(got)
    for one, other in zip(want, got, strict=True):
        if one.lines != other.lines:
            if ends(other):
                return
            raise Difference(_difference(plain_run.program, one, other))


def is_out_of_memory(observation: Observation) -> bool:
    """Where allocations are made to fail (frame_eval/checks/stress.h), a captured run may end so."""
    # The others are what torch says of a Python object that it cannot allocate, and what it is when it is caught.
    signs = ("raises MemoryError", "raises OutOfMemoryError", "Failed to allocate a Tensor")
    return any(sign in line for line in observation.lines for sign in signs)


def compare(
    program: Program,
    capture: Callable[..., Any],
    repeats: int = REPEATS,
    unseen: Collection[str] = (),
) -> tuple[Run, Run]:
    """Runs a program both ways, and raises Difference if they differ."""
    plain_run = perform(Run(program, plain, unseen=unseen), repeats)
    captured_run = perform(Run(program, capture, unseen=unseen), repeats)
    compare_runs(plain_run, captured_run)
    return plain_run, captured_run


def _difference(program: Program, want: Observation, got: Observation) -> str:
    diff = difflib.unified_diff(want.lines, got.lines, "plain", "captured", lineterm="", n=1)
    place = f"{os.path.relpath(program.file)}:{program.code_line - 1}"
    return "\n".join([f"{program.name} ({place}) differs after: {want.statement}", *diff])


def all_programs(folder: Path | None = None) -> Sequence[Program]:
    folder = folder or Path(__file__).resolve().parent
    programs = [p for path in sorted(folder.glob("*.txt")) for p in read_programs(path)]
    names = [p.name for p in programs]
    repeated = {name for name in names if names.count(name) > 1}
    if repeated:
        raise ValueError(f"two programs have the same name: {sorted(repeated)}")
    return programs
