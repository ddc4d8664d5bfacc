"""Objects of the program's own classes in results of a loaded program.

O1  A file holds no code. It holds the name of an object's class, its content as a dict or tuple, and
    its attributes.
O2  A class is never looked up by its name. An object is made of its class if the caller of
    ``frametap.load`` gave that class, or if ops of torch return it. Otherwise it is a stand-in, which
    has the same content and attributes and none of the methods.
O3  No ``__init__``, ``__new__``, ``__setattr__`` or other method of a class runs, as in a replay.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from frametap._errors import ArtifactError

__all__ = ["KINDS", "SavedDict", "SavedObject", "SavedTuple", "by_name", "make", "name_of"]

KINDS = ("object", "dict", "tuple")


class SavedObject:
    """Stands for an object whose class the program does not have: its attributes."""

    saved_class: str

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}=..." for name in vars(self) if name != "saved_class")
        return f"<saved {self.saved_class.rpartition('.')[2]}({inside})>"


class SavedDict(SavedObject, dict[Any, Any]):
    """Stands for an object of a subclass of dict. ``saved[0]`` is the first value if 0 is not a key."""

    __repr__ = SavedObject.__repr__
    __hash__ = None  # type: ignore[assignment]  # as that of a dict

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice) or (type(key) is int and key not in self):
            return tuple(self.values())[key]
        return super().__getitem__(key)


class SavedTuple(SavedObject, tuple[Any, ...]):
    """Stands for an object of a subclass of tuple. The items of a named tuple have their names."""

    __repr__ = SavedObject.__repr__
    _fields: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name in self._fields:
            return self[self._fields.index(name)]
        raise AttributeError(f"{self.saved_class} was saved without an attribute {name!r}")


_STAND_INS: dict[str, type] = {"object": SavedObject, "dict": SavedDict, "tuple": SavedTuple}
_BASES: dict[str, type] = {"object": object, "dict": dict, "tuple": tuple}


def name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


# Their items have names that are members of the C type, which only its own __new__ can fill.
_OF_TORCH = frozenset(
    cls
    for cls in vars(torch.return_types).values()
    if isinstance(cls, type) and hasattr(cls, "n_sequence_fields")
)


def by_name(classes: Iterable[type]) -> dict[str, type]:
    """Returns torch's own classes and those that load was given, by the names under which objects were saved."""
    found: dict[str, type] = {name_of(cls): cls for cls in _OF_TORCH}
    for cls in classes:
        if not isinstance(cls, type):
            raise ArtifactError(f"load: classes has {cls!r:.60}, which is not a class")
        if found.setdefault(name_of(cls), cls) is not cls:
            raise ArtifactError(f"load: classes has two classes named {name_of(cls)}")
    return found


def make(
    classes: Mapping[str, type],
    name: str,
    kind: str,
    content: Any,
    attributes: Mapping[str, Any],
    fields: Sequence[str],
) -> Any:
    """The object: of the class of this name if it was given, else a stand-in."""
    cls = classes.get(name)
    if cls is None:
        made = _new(_STAND_INS[kind], kind, content)
        vars(made)["saved_class"] = name
        if fields:
            vars(made)["_fields"] = tuple(fields)
    else:
        if not issubclass(cls, _BASES[kind]):
            raise ArtifactError(
                f"{name}: the class that was given to load is not a subclass of {kind}, and the saved object is one"
            )
        made = _new(cls, kind, content)
    if attributes:
        try:
            object.__getattribute__(made, "__dict__").update(attributes)
        except AttributeError as error:
            raise ArtifactError(
                f"{name}: objects of the class that was given to load have no attributes of their own, and the "
                "saved object has some"
            ) from error
    return made


def _new(cls: type, kind: str, content: Any) -> Any:
    try:
        if cls in _OF_TORCH:
            return cls(content)
        if kind == "tuple":
            return tuple.__new__(cls, content)
        if kind == "object":
            return object.__new__(cls)
        is_ordered = issubclass(cls, collections.OrderedDict)
        base: Any = collections.OrderedDict if is_ordered else dict
        made = base.__new__(cls)
        for key, value in content.items():
            base.__setitem__(made, key, value)
        return made
    except TypeError as error:
        raise ArtifactError(
            f"{name_of(cls)}, which was given to load, cannot be made: {error}"
        ) from error
