"""The compiled form of a module: an object beside it that has the same state, and another way of being called.

It has its own class, a subclass of the class of the module, so that isinstance, attributes and
methods are as before. The program must not notice that class: reads and changes of it reach the
class of the module (see `_Kind`).
"""

from __future__ import annotations

import copy
import copyreg
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from frametap import _C
from frametap._errors import FrametapError

__all__ = ["CompiledModule", "compile_module", "follow_class", "plain"]

_BASES = type.__dict__["__bases__"]


class _Kind(type):
    """The class of the compiled modules' classes. Their instances, attributes and subclasses are the original class's."""

    _orig_mod: Any

    def __new__(
        mcs, name: str, bases: tuple[Any, ...], namespace: dict[str, Any], **keywords: Any
    ) -> Any:
        originals = tuple(_class_of_program(base) for base in bases)
        return types.new_class(name, originals, keywords, lambda names: names.update(namespace))

    @property
    def __dict__(cls) -> Any:
        return type(cls._orig_mod).__dict__

    @property
    def __bases__(cls) -> Any:
        return type(cls._orig_mod).__bases__

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return type(cls._orig_mod)(*args, **kwargs)

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(type(cls._orig_mod), name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(type(cls._orig_mod), name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, type(cls._orig_mod))

    def __subclasscheck__(cls, subclass: type) -> bool:
        # By the bases alone: an abstract class asks all its subclasses, and so this one.
        return type.__subclasscheck__(type(cls._orig_mod), subclass)


def _class_of_program(kind: Any) -> Any:
    """The original class, where a class made here is given."""
    return type(kind._orig_mod) if isinstance(kind, _Kind) else kind


@functools.cache
def _kind_below(metaclass: type) -> type:
    made = _Kind if metaclass is type else type.__new__(type, "_Kind", (_Kind, metaclass), {})
    copyreg.pickle(made, lambda kind: (plain, (type(kind._orig_mod),)))
    return made


class CompiledModule(torch.nn.Module):
    """A module that was compiled: it shares the original's attributes, parameters, hooks and mode.

    Its class is a subclass of the original's, so that isinstance, attributes and methods are as before.
    """

    _orig_mod: torch.nn.Module
    _frametap: Any
    _recompile: Any

    @property
    def __class__(self) -> Any:
        _follow(type(self))
        return type(type(self)._orig_mod)

    @__class__.setter
    def __class__(self, value: Any) -> None:
        type(self)._orig_mod.__class__ = _class_of_program(value)
        _follow(type(self))

    def __init_subclass__(cls, **keywords: Any) -> None:
        """The original's bases do not list a class that is not part of the program."""

    @staticmethod
    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        # `type(self).__new__(type(self))` of a copying method.
        original = type(cls._orig_mod)
        return original.__new__(original, *args, **kwargs)

    def __eq__(self, other: object) -> Any:
        # Code inside gets the original: as a key, and in a list or set, the two are one.
        original = type(self)._orig_mod
        return original == (type(other)._orig_mod if isinstance(other, CompiledModule) else other)

    def __hash__(self) -> int:
        return hash(type(self)._orig_mod)

    def __copy__(self) -> Any:
        kind = type(self)
        return kind._recompile(copy.copy(kind._orig_mod))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        kind = type(self)
        return kind._recompile(copy.deepcopy(kind._orig_mod, memo))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Captures belong to this process: the module itself is kept.
        return (plain, (type(self)._orig_mod,))

    def __repr__(self) -> str:
        return f"Compiled({type(self)._orig_mod!r})"


CompiledModule.__call__ = _C.module_call(CompiledModule)  # type: ignore[method-assign]


def plain(f: Any) -> Any:
    """Makes the object of a pickle of a compiled object: the original."""
    return f


def compile_module(module: torch.nn.Module, make: Callable[..., Any]) -> CompiledModule:
    original = type(module)
    call = original.__call__
    compiled = make(
        call if isinstance(call, types.FunctionType) else torch.nn.Module.__call__, module, "module"
    )
    namespace = {
        **_of_class(original),
        **{name: _of_original(name) for name in _slots(original)},
        "_orig_mod": _Constant(module),
        "_frametap": compiled,
        "_recompile": staticmethod(lambda other: compile_module(other, make)),
    }
    if hasattr(original, "__del__"):
        namespace["__del__"] = lambda _: None  # the original has its own end
    # A metaclass that keeps account of classes does not learn of this one either.
    kind = type.__new__(
        _kind_below(type(original)), original.__name__, (CompiledModule, original), namespace
    )
    compiled._kind = kind
    try:
        twin = object.__new__(kind)
    except TypeError as error:
        raise FrametapError(
            f"compile: instances of {original.__name__} have state that is not in their __dict__; "
            "compile the function or module that does the work"
        ) from error
    # One state for both: parameters, buffers, submodules, hooks, mode.
    object.__setattr__(twin, "__dict__", module.__dict__)
    return twin


def _follow(kind: type) -> None:
    """The original may have been given another class: parametrizations and lazy modules do that."""
    original = type(kind._orig_mod)  # type: ignore[attr-defined]
    if _BASES.__get__(kind)[1] is original:
        return
    _BASES.__set__(kind, (CompiledModule, original))
    for name, value in {"__name__": original.__name__, **_of_class(original)}.items():
        type.__setattr__(kind, name, value)


def follow_class(compiled: _C.CompiledFunction) -> None:
    """After a call that found, or made, the module to be of another class."""
    _follow(compiled._kind)


def _of_class(original: type) -> dict[str, Any]:
    return {name: getattr(original, name) for name in ("__module__", "__qualname__", "__doc__")}


def _slots(original: type) -> list[str]:
    return [
        name
        for base in original.__mro__
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
    ]


def _of_original(name: str) -> property:
    """An attribute that is not in the __dict__."""

    def get(self: Any) -> Any:
        return getattr(type(self)._orig_mod, name)

    def put(self: Any, value: Any) -> None:
        setattr(type(self)._orig_mod, name, value)

    def drop(self: Any) -> None:
        delattr(type(self)._orig_mod, name)

    return property(get, put, drop)


class _Constant:
    """A class attribute that is an nn.Module (plain ones would be found before `__getattr__`, too)."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.value
