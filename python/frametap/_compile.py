"""``frametap.compile`` and what reads its results.

The compiled object is a C object (``_C.CompiledFunction``). This file decides its content: a
function, a bound method, or a module. The compiled form of a module shares the module's own state
(``_compiled_module.py``).
"""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from frametap import _C
from frametap._backend_names import resolve_backend
from frametap._compiled_module import CompiledModule, compile_module, follow_class, plain
from frametap._errors import CaptureError, FrametapError
from frametap._guards import Guard, expected_of
from frametap._stack_words import name_of_root

__all__ = [
    "OPTIONS",
    "CompiledModule",
    "checked_options",
    "compile",
    "compile_with",
    "compiled_of",
    "copy_of",
    "deepcopy_of",
    "follow_class",
    "graph",
    "guards",
    "reduced",
    "reset",
    "segments",
]

OPTIONS = {"segment_limit": 64, "by_identity": False, "strict": False}


def compile(  # the name users know from torch.compile
    f: Any = None,
    *,
    backend: Any = "native",
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """Captures `f` when it is called, and replays the captured graphs while their guards hold.

    `f`: a function, a bound method, or a ``torch.nn.Module``; without it, a decorator is returned.

    `backend`: one of

    - ``"native"`` (planned executor, no Python) or ``"reference"`` (one op after the other);
    - a name of torch's registry (``"eager"``, ``"aot_eager"``, ``"inductor"`` …);
    - any function ``(GraphModule, example_inputs) -> callable``.

    `fullgraph`: raise :class:`FullGraphError` where the graph would end, instead of running Python.

    `dynamic`: the numbers that may differ from call to call without a new recording.

    - ``None``: sizes and arguments, and numbers that modules and globals hold once they have been
      seen to change. Backends of torch.compile take sizes as constants: for them, all of these once
      a size has changed.
    - ``True``: all numbers that ops take as they are, except ints of modules.
    - ``False``: none, and every size is guarded.

    A decision on a number is guarded as a relation (``L.x.size(0) > 2``). A number that Python code
    uses up (``range(n)``) is fixed.

    `mode`: accepted as torch.compile's ``"default"``; frametap has no other.

    `options`: a dict of

    - ``segment_limit`` (64): the number of segments that one entry point may have;
    - ``by_identity`` (False): guard modules and functions by identity, instead of by the facts read;
    - ``strict`` (False): raise :class:`BackendError` where a graph raises and the program's own ops
      do not. Without it plain Python runs such a call and a :class:`FrametapWarning` reports it.
      After three of them the graph is given up.

    `disable`: return `f` itself.

    Raises :class:`FrametapError` for an object that cannot be called, and :class:`BackendError` for
    an unknown backend. Calls raise :class:`BackendError` if the backend cannot compile a graph.
    They also do if the results of the compiled form differ from the graph in number, type, dtype or
    shape.
    """
    decorate = functools.partial(
        compile,
        backend=backend,
        fullgraph=fullgraph,
        dynamic=dynamic,
        mode=mode,
        options=options,
        disable=disable,
    )
    if f is None:
        return decorate
    if mode not in (None, "default"):
        raise FrametapError(
            f"compile: mode={mode!r} is not known; frametap has 'default' only "
            "(speed is the backend's business: backend='inductor' has modes of its own)"
        )
    if dynamic not in (None, True, False):
        raise FrametapError(f"compile: dynamic must be True, False or None, got {dynamic!r:.60}")
    checked = checked_options(options)
    if isinstance(f, (staticmethod, classmethod)):
        return type(f)(decorate(f.__func__))
    if not callable(f):
        raise FrametapError(
            f"compile: a function, method or torch.nn.Module expected, got {type(f).__name__} {f!r:.60}"
        )
    make = functools.partial(
        _C.compile_function,
        backend=resolve_backend(backend),
        fullgraph=bool(fullgraph),
        dynamic=dynamic,
        **checked,
    )
    return f if disable else _compiled(f, make)


def compile_with(f: Any, **settings: Any) -> Any:
    """:func:`compile` with all that the extension takes, for other parts of the package."""
    return _compiled(f, functools.partial(_C.compile_function, **settings))


def _compiled(f: Any, make: Callable[..., Any]) -> Any:
    if isinstance(f, CompiledModule):
        f = f._orig_mod
    if isinstance(f, _C.CompiledFunction):
        f = f._original
    if issubclass(type(f), torch.nn.Module):  # a proxy is not one, whatever its __class__ is
        return compile_module(f, make)
    if isinstance(f, types.MethodType):
        return functools.update_wrapper(make(f.__func__, f.__self__, "method"), f, updated=())
    if isinstance(f, types.FunctionType):
        return functools.update_wrapper(make(f, None, "function"), f)
    if isinstance(f, type):
        raise FrametapError(
            f"compile: {f.__name__} is a class; compile its instance, or the method that does the work"
        )
    call = getattr(type(f), "__call__", None)  # noqa: B004  (the function itself is wanted)
    if isinstance(call, types.FunctionType):
        return make(call, f, "object")

    return make(_frame_around(f), f, "callable")


def _frame_around(f: Callable[..., Any]) -> types.FunctionType:
    """Watches a functools.partial, or a function in C, from a frame with the name that the user knows."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return f(*args, **kwargs)

    named = f
    while isinstance(named, functools.partial):
        named = named.func
    name = getattr(named, "__name__", None)
    if not isinstance(name, str):
        name = type(named).__name__
    call.__code__ = call.__code__.replace(co_name=name, co_qualname=name)
    return call


def copy_of(compiled: _C.CompiledFunction) -> Any:
    """``copy.copy`` of a compiled object or partial."""
    return _same_of(compiled, copy.copy(compiled._original))


def deepcopy_of(compiled: _C.CompiledFunction, memo: dict[int, Any]) -> Any:
    """``copy.deepcopy`` of a compiled function or method: what has no copy of its own is its own copy."""
    return _same_of(compiled, copy.deepcopy(compiled._original, memo))


def _same_of(compiled: _C.CompiledFunction, f: Any) -> Any:
    if f is compiled._original:
        return compiled
    return _compiled(f, functools.partial(_C.compile_function, **_C.settings(compiled)))


def reduced(compiled: _C.CompiledFunction) -> Any:
    """For pickle: the name that leads to it, or else its original, because captures belong to this
    process.
    """
    try:
        found: Any = sys.modules[compiled.__module__]
        for name in compiled.__qualname__.split("."):
            found = getattr(found, name)
    except (KeyError, AttributeError):
        found = None
    return compiled.__qualname__ if found is compiled else (plain, (compiled._original,))


def checked_options(
    options: dict[str, Any] | None, known: dict[str, Any] = OPTIONS
) -> dict[str, Any]:
    """Returns the options with their defaults. `known`: the names that there are, and their defaults."""
    if not isinstance(options, dict | None):
        raise FrametapError(f"compile: options must be a dict, got {type(options).__name__}")
    given = options or {}
    unknown = [name for name in given if name not in known]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), known, n=2, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        raise FrametapError(
            f"compile: unknown option {unknown[0]!r}; {hint}there is {', '.join(sorted(known))}"
        )
    checked = {**known, **given}
    limit = checked["segment_limit"]
    if type(limit) is not int or limit < 1:
        raise FrametapError(f"compile: segment_limit must be a positive int, got {limit!r:.60}")
    for name in ("by_identity", "strict"):
        value = checked[name]
        if type(value) is not bool:
            raise FrametapError(f"compile: {name} must be True or False, got {value!r:.60}")
    return checked


def compiled_of(f: Any, caller: str) -> Any:
    """Returns the ``_C.CompiledFunction`` of an object that :func:`compile` returned."""
    if isinstance(f, CompiledModule):
        return type(f)._frametap
    if isinstance(f, types.MethodType) and isinstance(f.__func__, _C.CompiledFunction):
        return f.__func__
    if isinstance(f, _C.CompiledFunction):
        return f
    inner = getattr(f, "_frametap", None)
    if isinstance(inner, _C.CompiledFunction):
        return inner
    hint = ""
    if hasattr(f, "_torchdynamo_orig_callable") or hasattr(f, "_orig_mod"):
        hint = "; torch.compile's front end makes its graphs, which TORCH_LOGS=graph_code shows"
    raise FrametapError(
        f"{caller}: {getattr(f, '__qualname__', type(f).__name__)} was not captured; pass what "
        f"frametap.compile returned{hint}"
    )


def segments(f: Any) -> list[_C.Segment]:
    """The segments captured so far, in the order of their recording; print one to read it."""
    return _C.segments(compiled_of(f, "segments"))


def graph(f: Any) -> _C.Graph:
    """The graph of a function that was captured whole.

    Raises :class:`CaptureError` if nothing was captured yet, or if there are several segments.
    """
    found = _C.segments(compiled_of(f, "graph"))
    if len(found) == 1:
        return found[0].graph
    if not found:
        raise CaptureError("graph: nothing was captured yet", advice="call the function once")
    raise CaptureError(
        f"graph: there are {len(found)} segments ({', '.join(s.name for s in found)})",
        advice="take one from frametap.segments(f), or read frametap.explain(f) for the reasons",
    )


def guards(f: Any) -> list[Guard]:
    """Returns the conditions of the captured segments, in the order of reading; see :class:`Guard`."""
    found = []
    for segment in _C.segments(compiled_of(f, "guards")):
        found += [guard_of(segment, row) for row in segment.guard_rows if row["predicate"]]
        state = " ".join(f"{field}({value})" for field, value in segment.state.items())
        found.append(Guard(segment.name, "state", state, "state", segment.state))
    return found


def guard_of(segment: _C.Segment, row: _C.GuardRow) -> Guard:
    at = row["position"]
    return Guard(
        segment.name,
        segment.guard_source(row["number"]),
        row["predicate"],
        row["kind"],
        expected_of(row),
        at["text"],
        at["file"],
        at["line"],
        root_name_of(segment, row),
    )


def root_name_of(segment: _C.Segment, row: _C.GuardRow) -> str:
    """Returns the expression that made the value at which the source begins, if that has no name."""
    frames = [(segment.code, segment.entry_offset), *segment.callers]
    return name_of_root(row["root"], frames)


def reset(f: Any = None) -> None:
    """Forgets what was captured for `f`; without `f`, for everything that :func:`compile` has made."""
    if f is not None:
        _C.reset(compiled_of(f, "reset"))
        return
    _C.reset_all()


def signature_of(f: Any) -> inspect.Signature:
    """Returns the signature of the original."""
    return inspect.signature(compiled_of(f, "signature")._function)
