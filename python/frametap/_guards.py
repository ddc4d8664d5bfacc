"""Guards as objects: what a replay checks, read from the words in which segments print it.

The words are defined by the text form (docs/text_form.md). Each kind of guard is one row of
``_FORMS``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["PLAIN_TYPES", "UNREAD", "Guard", "read"]

PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)

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
    ``no hooks``, ``attribute`` and ``class`` are facts of a module or its class.

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
        position: str = "?",
        file: str = "",
        line: int = 0,
        stands_for: str = "",
    ) -> None:
        self.segment = segment
        self.source = source
        self.predicate = predicate
        self.kind, self.expected = read(predicate)
        if self.expected is UNREAD:
            self.expected = predicate.removeprefix(self.kind).strip()
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


def read(predicate: str) -> tuple[str, Any]:
    """The kind of a predicate and what it expects, which may be ``UNREAD``."""
    for form, kind, expected in _FORMS:
        if match := form.fullmatch(predicate):
            return match["kind"] if kind is None else kind, expected(match[match.lastgroup or 0])
    return predicate.partition(" ")[0], UNREAD


def _value(text: str) -> Any:
    if text.startswith("torch.") and isinstance(
        found := getattr(torch, text[6:], None), torch.dtype
    ):
        return found
    if match := re.fullmatch(r"device\(type='(\w+)'(?:, index=(\d+))?\)", text):
        return torch.device(match[1], int(match[2])) if match[2] else torch.device(match[1])
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return UNREAD
    whole = repr(value) == text and isinstance(value, (*PLAIN_TYPES, tuple))
    return value if whole else UNREAD


def _keys(text: str) -> Any:
    if "..." in text:
        return UNREAD
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return UNREAD


def _nothing(_: str) -> None:
    return None


def _state(text: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)\(([^)]*)\)", text))


def _form(
    pattern: str, expected: Callable[[str], Any] = str, kind: str | None = None
) -> tuple[re.Pattern[str], str | None, Callable[[str], Any]]:
    return re.compile(pattern, re.DOTALL), kind, expected


# The expected value is the last group of the pattern.
_FORMS = (
    _form(r"(?P<kind>tensor) (?P<what>.+)"),
    _form(r"type\((?P<what>[^()]+)\) watched", kind="type"),
    _form(r"type\([^()]+\) (?P<what>.+)", kind="attribute"),
    _form(r"class (?P<what>.+) unchanged", kind="class"),
    _form(r"(?P<kind>keys) (?P<what>\[.*\])", _keys),
    _form(r"(?P<kind>len) (?P<what>\d+)", int),
    _form(r"(?P<kind>set) of (?P<what>\d+)", int),
    _form(r"(?P<kind>has|absent|lacks) (?P<what>.+)", _value),
    _form(r"(?P<kind>is not|is) (?P<what>.+)"),
    _form(r"(?P<kind>(?:not )?(?:<=|>=|==|!=|<|>)) (?P<what>.+)", _value),
    _form(r"(?P<kind>code) (?P<what>.+)"),
    _form(r"(?P<what>.+ (?:<=|>=|==|!=|<|>) .+)", kind="relation"),
    _form(r"(?P<kind>suspended) at (?P<what>.+)"),
    _form(r"(?P<kind>branch) on its elements is (?P<what>True|False)", _value),
    _form(r"no hooks", _nothing, kind="no hooks"),
    _form(r"at the same address", _nothing, kind="address"),
    _form(r"unchanged inside", _nothing, kind="field"),
    _form(r"laid out as before", _nothing, kind="layout"),
    _form(r"registrations as recorded", _nothing, kind="registrations"),
    _form(r"answers as recorded", _nothing, kind="answer"),
    _form(r"(?P<what>(?:\w+\([^)]*\) ?)+)", _state, kind="state"),
    _form(r"(?P<what>[\w.]+)", kind="type"),
)
