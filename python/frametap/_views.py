"""How parts of a segment look in Python."""

from __future__ import annotations

from typing import Any

__all__ = ["Exit"]


class Exit(dict):
    """How a segment ends: ``kind`` ("return" or "resume"), ``reason``, ``detail``, ``position`` …

    The entries are attributes too.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"an exit has no {name!r}; it has {', '.join(self)}") from None
