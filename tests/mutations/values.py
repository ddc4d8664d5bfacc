"""Other values than a given one: each differs from it in one thing that a program could see, or in its identity only."""

from __future__ import annotations

import collections
import copy
import enum
import math
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

_add, _multiply = torch.add, torch.mul  # what is changed may be these


def different(value: Any) -> Any:
    """The value, changed as a replaced function would change its result."""
    if isinstance(value, Tensor):
        if value.dtype == torch.bool:
            return torch.logical_not(value)
        return _add(_multiply(value, 2), 1)
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if type(value) is str:
        return value + "!"
    if type(value) in (tuple, list):
        return type(value)([different(item) for item in value])
    return value


def replacing(function: Callable[..., Any]) -> Callable[..., Any]:
    def replaced(*args: Any, **kwargs: Any) -> Any:
        return different(function(*args, **kwargs))

    return replaced


class _SameTensor(Tensor):
    """A subclass that changes nothing but the type."""


class _OtherTensor(Tensor):
    """A subclass that changes what torch functions do."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        return different(result.as_subclass(Tensor)) if type(result) is _OtherTensor else result


class _OwnList(list):
    pass


class _OwnDict(dict):
    pass


class _OwnInt(int):
    pass


class _OwnStr(str):
    __slots__ = ()


def _tensors(t: Tensor) -> Iterator[tuple[str, Callable[[], Any]]]:
    data = t.detach()
    yield "content", lambda: different(data).requires_grad_(t.requires_grad)
    yield "copy", lambda: data.clone().requires_grad_(t.requires_grad)
    yield "dtype", lambda: data.double() if t.is_floating_point() else data.int()
    yield "rank", lambda: data[None].clone()
    yield "list", data.tolist
    yield "subclass", lambda: data.clone().as_subclass(_SameTensor)
    yield "other subclass", lambda: data.clone().as_subclass(_OtherTensor)
    yield "inference tensor", lambda: _inference_copy(data)
    yield "tagged", lambda: _tagged(data.clone())
    if t.dim():
        yield "size", lambda: torch.cat([data, data])
        yield "fewer", lambda: data[:1].clone()
        yield "none left", lambda: data[:0].clone()
        yield "view of another", lambda: torch.cat([data, data])[data.size(0) :]
        yield "spread", lambda: torch.stack([data, data], -1)[..., 0]
        yield "expanded", lambda: data[:1].clone().expand_as(data)
    if t.dim() > 1:
        yield "strides", lambda: data.transpose(0, 1).contiguous().transpose(0, 1)
        yield "transposed", lambda: data.transpose(0, 1)
    if t.is_floating_point():
        yield "requires_grad", lambda: data.clone().requires_grad_(not t.requires_grad)
        yield "not a leaf", lambda: _multiply(data.clone().requires_grad_(), 1)
        yield "parameter", lambda: nn.Parameter(data.clone())
        yield "half", data.bfloat16
        yield "integers", data.long


def _inference_copy(data: Tensor) -> Tensor:
    with torch.inference_mode():
        return data.clone()


def _tagged(t: Any) -> Any:
    t.tag = 4
    return t


def _numbers(value: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    if isinstance(value, bool):
        yield "not", lambda: not value
        yield "int", lambda: int(value)
    elif isinstance(value, int):
        yield "+1", lambda: value + 1
        yield "negative", lambda: -value - 1
        yield "float", lambda: float(value)
        yield "own int", lambda: _OwnInt(value)
        if value in (0, 1):
            yield "bool", lambda: bool(value)
    else:
        yield "+1", lambda: value + 1.0
        yield "nan", lambda: math.nan
        if value.is_integer():
            yield "int", lambda: int(value)
        if value == 0:
            yield "sign", lambda: -value
    yield "tensor", lambda: torch.tensor(value)


def _sequences(value: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    kind = type(value)
    yield "copy", lambda: kind([*value]) if kind in (list, tuple) else copy.copy(value)
    if kind not in (list, tuple):
        return
    yield "other kind", lambda: tuple(value) if kind is list else [*value]
    if kind is list:
        yield "own list", lambda: _OwnList(value)
    if value:
        yield "longer", lambda: value + value[-1:]
        yield "shorter", lambda: value[:-1]
    if len(value) > 1:
        yield "reversed", lambda: value[::-1]
    if kind is tuple:
        for i, item in enumerate(value):
            for what, make in replacements(item):
                yield f"[{i}] {what}", lambda i=i, make=make: (*value[:i], make(), *value[i + 1 :])


def _dicts(value: dict[Any, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "copy", value.copy
    yield "own dict", lambda: _OwnDict(value)
    if len(value) > 1:
        yield (
            "reversed",
            lambda: (
                type(value)(reversed(dict.items(value))) if type(value) is dict else value.copy()
            ),
        )


def _modules(module: nn.Module) -> Iterator[tuple[str, Callable[[], Any]]]:
    yield "copy", lambda: copy.deepcopy(module)
    yield "identity", nn.Identity
    yield "double", lambda: copy.deepcopy(module).double()
    yield "other mode", lambda: copy.deepcopy(module).train(not module.training)


def changed_code(function: types.FunctionType) -> types.CodeType:
    """Another code object: with a number changed where there is one, and else one that does the same."""
    code = function.__code__
    consts = [c + 1 if type(c) in (int, float) else c for c in code.co_consts]
    return code.replace(co_consts=tuple(consts))


def replacements(value: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Other values for a place that holds `value`: what they are, and what makes them."""
    if isinstance(value, Tensor):
        yield from _tensors(value)
    elif type(value) in (bool, int, float):
        yield from _numbers(value)
    elif type(value) is str:
        yield "other", lambda: value + "!"
        yield "equal", lambda: "".join([*value])
        yield "own str", lambda: _OwnStr(value)
    elif isinstance(value, (list, tuple, collections.deque)):
        yield from _sequences(value)
    elif isinstance(value, dict):
        yield from _dicts(value)
    elif isinstance(value, (set, frozenset)):
        yield "copy", value.copy
        yield "empty", type(value)
    elif isinstance(value, nn.Module):
        yield from _modules(value)
    elif isinstance(value, property):
        yield "other", lambda: property(replacing(value.fget), value.fset)
    elif isinstance(value, (staticmethod, classmethod)):
        yield "other", lambda: type(value)(replacing(value.__func__))
    elif isinstance(value, type):
        if not isinstance(value, enum.EnumMeta):
            yield "subclass", lambda: subclass_of(value, {})
    elif callable(value) and not hasattr(type(value), "__dict__"):
        yield "other", lambda: replacing(value)
    elif isinstance(value, types.FunctionType):
        yield "other", lambda: replacing(value)
        yield "method of an object", lambda: _isolated(value).run
    elif type(value).__module__ == "program" and hasattr(value, "__dict__"):
        yield "copy", lambda: _copied(value)
    if value is not None:
        yield "None", lambda: None
    else:
        yield "0", lambda: 0
        yield "tensor", lambda: torch.ones(2)


def _isolated(function: Callable[..., Any]) -> Any:
    class Holder:
        def run(self, *args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

    return Holder()


def subclass_of(cls: type, attributes: dict[str, Any]) -> Any:
    """A class that differs by the given attributes; its instances have the layout of instances of `cls`."""
    content = {"__slots__": (), **attributes}
    return types.new_class(cls.__name__, (cls,), exec_body=lambda names: names.update(content))


def _copied(value: Any) -> Any:
    made = object.__new__(type(value))
    vars(made).update(vars(value))
    return made
