"""The parameters and buffers that a function reaches through its globals, its cells and its defaults.

Not here: which of them a call reads, which its recording says.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["weights_reached_by"]


def weights_reached_by(function: Any) -> list[torch.Tensor]:
    """Each weight of the modules that code of the function names, and each parameter, once."""
    found: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    work = [function]
    while work:
        value = work.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module):
            found |= {id(t): t for t in (*value.parameters(), *value.buffers())}
        elif isinstance(value, torch.nn.Parameter):
            found[id(value)] = value
        else:
            work += _parts(value)
    return list(found.values())


def _parts(value: Any) -> list[Any]:
    if isinstance(value, types.FunctionType):
        cells = [c.cell_contents for c in value.__closure__ or () if not _is_empty(c)]
        names = [value.__globals__[n] for n in _names(value.__code__) if n in value.__globals__]
        return [*cells, *names, value.__defaults__, value.__kwdefaults__]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if type(value) in (list, tuple):
        return list(value)
    if type(value) is dict:
        return list(value.values())
    return []


def _names(code: types.CodeType) -> Iterator[str]:
    """The names in the code and in the functions that it defines."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False
