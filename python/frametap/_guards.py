"""Guards as objects: the conditions that a replay checks.

The kinds are rows of ``ir/segment/predicates.def``; docs/predicates.md lists them. A value is read from
its text, which is cut where it is long.
"""

from __future__ import annotations

import ast
from typing import Any

import torch

from frametap import _C
from frametap._formula import COMPARISONS

__all__ = ["UNREAD", "Guard", "expected_of", "is_plain", "value_of"]

_PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

UNREAD = object()
"""A value whose text is cut, or that Python cannot read."""


class Guard:
    """One thing that a replay checks.

    ``source``: the path to the object, such as ``L.x`` or ``L.self.scale``; ``"state"`` for the
    thread's state.

    ``predicate``: the condition, in words.

    ``kind``: the kind of predicate. Common kinds are ``tensor``, ``type``, ``is``, ``is not``,
    ``==``, ``<`` …, ``len``, ``keys``, ``has``, ``absent``, ``code`` and ``state``.
    ``relation`` compares numbers, and ``branch`` is a decision on a tensor's elements.
    ``no hooks`` and ``class`` are facts of a module or its class.

    ``expected``: the expected value, length, list of keys or key, or the name of the type or object.
    For ``state`` it is a dict. An expectation that cannot be read back is given as text.

    ``position``, ``file``, ``line``: the expression of the user's source that read it.

    ``stands_for``: where the source begins at a value without a name (``S[0]``), the expression that
    made it.
    """

    __slots__ = (
        "expected",
        "file",
        "kind",
        "line",
        "position",
        "predicate",
        "segment",
        "source",
        "stands_for",
    )

    def __init__(
        self,
        segment: str,
        source: str,
        predicate: str,
        kind: str,
        expected: Any,
        position: str = "?",
        file: str = "",
        line: int = 0,
        stands_for: str = "",
    ) -> None:
        self.segment = segment
        self.source = source
        self.predicate = predicate
        self.kind = kind
        self.expected = expected
        self.position = position
        self.file = file
        self.line = line
        self.stands_for = stands_for

    def __str__(self) -> str:
        name = f" ({self.stands_for})" if self.stands_for else ""
        text = f"{self.source}{name} : {self.predicate}"
        return f"{text}  @ {self.position}" if self.line else text

    def __repr__(self) -> str:
        return f"<Guard {self}>"


def is_plain(value: Any) -> bool:
    """Returns whether the value is None, a number, a text, bytes, a dtype or a device."""
    return type(value) in _PLAIN_TYPES


def expected_of(row: _C.GuardRow) -> Any:
    """Returns the expected value of a row as :class:`Guard` has it."""
    if row["kind"] == "tensor":
        return row["argument"]["text"]
    value = value_of(row)
    return row["argument"] if value is UNREAD else value


def value_of(row: _C.GuardRow) -> Any:
    """Returns the value that the argument of the predicate describes, and ``UNREAD`` if it describes none."""
    kind, argument = row["kind"], row["argument"]
    if kind == "keys":
        return UNREAD if "..." in argument else _literal(argument)
    if kind in ("has", "absent", "lacks", "branch") or kind.removeprefix("not ") in COMPARISONS:
        return _value(argument)
    return argument if type(argument) is int or argument is None else UNREAD


def _value(text: str) -> Any:
    if isinstance(found := getattr(torch, text.removeprefix("torch."), None), torch.dtype):
        return found
    if text.startswith("device("):
        return _device(text)
    value = _literal(text)
    whole = repr(value) == text and isinstance(value, (*_PLAIN_TYPES, tuple))
    return value if whole else UNREAD


def _device(text: str) -> Any:
    """Reads ``device(type='cpu', index=0)``."""
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        arguments = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        return torch.device(**arguments)
    except (AssertionError, RuntimeError, SyntaxError, TypeError, ValueError):
        return UNREAD


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return UNREAD
