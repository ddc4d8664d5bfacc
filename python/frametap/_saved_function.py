"""The captured function of a program that is saved: its owner, its parameters, and the values that it begins with.

A parameter of the function is a parameter of the program, except the object that a method belongs to. A default that no
file can hold is an object inside of the program, and no call may give that argument.

Not here: the segments of the function (``_save.py``), how a call of the program is bound (``_loaded_signature.py``).
"""

from __future__ import annotations

import inspect
import types
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from frametap import _C
from frametap import _program as prog
from frametap._compiled_module import CompiledModule
from frametap._errors import ArtifactError
from frametap._guards import is_plain
from frametap._records import reasons_text

__all__ = ["SavedFunction", "refuse_unrecorded", "saved_function"]


@dataclass(frozen=True)
class SavedFunction:
    """The function whose segments are saved. ``plain`` is the function itself."""

    owner: Any  # of a method
    plain: types.FunctionType
    parameters: tuple[prog.Parameter, ...]
    environment: dict[str, Any]  # the settled locals at the entry
    owner_in: str  # the ``*args`` whose first item is the owner, or ""
    keywords: str  # the ``**kwargs``, or ""


def saved_function(compiled: _C.CompiledFunction) -> SavedFunction:
    """Returns the function that was compiled, or the ``forward`` of a module that was compiled."""
    owner, function = _entry_function(compiled)
    environment: dict[str, Any] = {}
    parameters: list[prog.Parameter] = []
    owner_in = keywords = ""
    signature = inspect.signature(function, follow_wrapped=False)
    for position, parameter in enumerate(signature.parameters.values()):
        default = parameter.default
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            keywords = parameter.name
        if position == 0 and owner is not None:
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:  # of a decorator's function
                owner_in = parameter.name
                parameters.append(prog.Parameter(parameter.name, parameter.kind.name))
            else:
                environment[parameter.name] = owner
        elif default is inspect.Parameter.empty:
            parameters.append(prog.Parameter(parameter.name, parameter.kind.name))
        elif (constant := _constant(default)) is not None:
            parameters.append(prog.Parameter(parameter.name, parameter.kind.name, constant))
        else:
            # An object: the program has only this one. The parameter keeps its place.
            environment[parameter.name] = default
            parameters.append(prog.Parameter(parameter.name, parameter.kind.name, is_fixed=True))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            environment[name] = cell.cell_contents
        except ValueError:
            continue
    return SavedFunction(owner, function, tuple(parameters), environment, owner_in, keywords)


def _entry_function(compiled: _C.CompiledFunction) -> tuple[Any, types.FunctionType]:
    owner, function = compiled.__self__, compiled._function
    if isinstance(owner, CompiledModule):
        owner = type(owner)._orig_mod
    if isinstance(owner, torch.nn.Module) and function is type(owner).__call__:
        bound = owner.forward
        function = getattr(bound, "__func__", bound)
    if isinstance(function, _C.CompiledFunction):
        function = function._function
    if not isinstance(function, types.FunctionType):
        raise ArtifactError(
            f"save: {function!r:.60} is not a Python function, so nothing of it was captured"
        )
    return owner, function


def refuse_unrecorded(compiled: _C.CompiledFunction, function: types.FunctionType) -> NoReturn:
    """Raises the error of a function that has no segment at its start."""
    reasons = reasons_text(compiled)
    if _C.segments(compiled) and reasons:
        raise ArtifactError(
            f"save: no graph begins at the start of {function.__qualname__}, since plain Python runs before its "
            f"first graph, and a file holds no Python:{reasons}"
        )
    if _C.segments(compiled):
        raise ArtifactError(
            f"save: nothing was captured from the start of {function.__qualname__}; hooks of a module, or a "
            "__call__ of its own, cannot be saved: remove them, call it once, save again"
        )
    raise ArtifactError(
        f"save: nothing of {function.__qualname__} was captured yet; call it at least once before saving{reasons}"
    )


def _constant(
    value: Any, depth: int = 16
) -> prog.Const | prog.Tuple | prog.List | prog.Dict | None:
    """Returns the operand that makes such a default, or None if no file can hold it."""
    if is_plain(value):
        return prog.Const(value)
    if depth == 0 or type(value) not in (tuple, list, dict):
        return None
    parts = list(value.values()) if type(value) is dict else list(value)
    items = [_constant(part, depth - 1) for part in parts]
    if not all(items) or (type(value) is dict and not all(map(is_plain, value))):
        return None
    if type(value) is dict:
        return prog.Dict(tuple(prog.Const(key) for key in value), tuple(items))
    return prog.Tuple(tuple(items)) if type(value) is tuple else prog.List(tuple(items))
