"""How parts of a segment, and misses, look in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from frametap import _C

__all__ = ["Exit", "MissText", "counted", "reasons_text"]


class Exit(dict):
    """How a segment ends: ``kind`` ("return" or "resume"), ``reason``, ``detail``, ``position`` …

    The entries are attributes too.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"an exit has no {name!r}; it has {', '.join(self)}") from None


@dataclass(frozen=True)
class MissText:
    """A call that no segment fitted: the first guard that said no."""

    segment: str
    source: str
    want: str
    got: str
    why: str
    position: str
    stands_for: str = ""
    """The expression that made the value, where the source begins at a value without a name (``S[0]``)."""

    def __str__(self) -> str:
        name = f" ({self.stands_for})" if self.stands_for else ""
        lines = [f"miss {self.segment} at {self.source or '?'}{name}"]
        if self.want:
            lines.append(f"  want  {self.want}")
        if self.got:
            lines.append(f"  got   {self.got}")
        if self.why:
            lines.append(f"  why   {self.why}")
        if self.position and self.position != "?":
            lines.append(f"  read  {self.position}")
        return "\n".join(lines)


def reasons_text(compiled: _C.CompiledFunction) -> str:
    """A line for each place where a graph of the function ended, or could not begin."""
    lines = (
        f"\n  {row['position']['text']}: {row['text']}; {row['advice']}"
        for row in _C.log(compiled)
        if row["kind"] in ("break", "abort", "error")
    )
    return "".join(dict.fromkeys(lines))


def counted(number: int, one: str, more: str = "") -> str:
    """``1 graph``, ``2 graphs``. `more`: the plural if it is not formed by an s."""
    return f"{number} {one if number == 1 else more or one + 's'}"
