"""The table of a quantization: one line an op, from the plain rows that the extension gives."""

from __future__ import annotations

import math
import os
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from frametap import _C

_HEADINGS = ("op", "where", "runs as", "SQNR", "so far", "why")
_WHY_WIDTH = 60


def _decibel(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    return "exact" if math.isinf(value) else f"{value:.1f} dB"


def place_of(row: Mapping[str, Any]) -> str:
    # The path of the layer; its line would be one of torch.nn, the same for all of its kind.
    if row.get("scope"):
        return row["scope"]
    line = row.get("line") or 0
    if not line:
        return "?"
    where = os.path.basename(row.get("file") or "") or row.get("function") or "?"
    return f"{where}:{line}"


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        row["op"],
        place_of(row),
        row["decision"],
        _decibel(row.get("sqnr")),
        _decibel(row.get("cumulative_sqnr")),
        "; ".join(text for text in (row.get("reason"), row.get("not_comparable")) if text),
    )


def _summary(rows: Sequence[Mapping[str, Any]]) -> str:
    count = Counter(row["decision"] for row in rows)
    words = {
        "int8": "int8",
        "follows": "on bytes",
        "folded": "folded away",
        "float": "in float",
    }
    parts = [f"{count[key]} {text}" for key, text in words.items() if count[key]]
    return f"{len(rows)} ops: " + (", ".join(parts) or "none")


def render_report(rows: Iterable[Mapping[str, Any]]) -> str:
    """Gives the rows as aligned text with a summary line.

    SQNR is measured for the op alone on float inputs; "so far" has everything before it in 8 bits,
    too.
    """
    rows = list(rows)
    if not rows:
        return _summary(rows)
    table = render_table(_HEADINGS, list(map(_cells, rows)), to_the_right=(3, 4))
    return f"{table}\n\n{_summary(rows)}"


def render_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], to_the_right: Sequence[int] = ()
) -> str:
    """Gives the rows as aligned text, with the last column wrapped. `to_the_right`: columns of numbers."""
    table = [headings, *rows]
    widths = [max(len(cells[i]) for cells in table) for i in range(len(headings) - 1)]
    lines: list[str] = []
    for cells in table:
        why = textwrap.wrap(cells[-1], _WHY_WIDTH) or [""]
        columns = [
            cell.rjust(width) if i in to_the_right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(cells, widths))
        ]
        first = "  ".join([*columns, why[0]])
        lines.append(first.rstrip())
        lines.extend(" " * (sum(widths) + 2 * len(widths)) + more for more in why[1:])
    lines.insert(1, "-" * max(len(line) for line in lines))
    return "\n".join(lines)


def plain_parts(segments: Iterable[_C.Segment], compiled: _C.CompiledFunction) -> list[str]:
    """Sentences on what runs in plain Python, and so in float, behind segments that do not return.

    An op that no graph holds is in no row of the table: the arms of torch.cond, an op of another library.
    """
    said = {row["position"]["text"]: row for row in _C.log(compiled) if row["kind"] == "break"}
    lines = []
    for segment in segments:
        end = segment.exit
        if end["kind"] == "return" or end["reason"] == "branch_on_tensor":
            continue  # a branch runs no op
        where = end["position"]["text"]
        why = said[where]["text"] if where in said else f"{end['reason']} {end['detail']}".rstrip()
        lines.append(
            f"{segment.name} ends at {where}: {why}. Code between this place and the next graph runs in float, "
            "and none of its ops is in the table."
        )
    # A graph without ops is not kept, and its end is in the log only.
    ends = {
        segment.exit["position"]["text"] for segment in segments if segment.exit["kind"] != "return"
    }
    for where, row in said.items():
        if where not in ends and row["reason"] != "branch_on_tensor":
            lines.append(
                f"no graph holds {where}: {row['text']}. Code there runs in float, and none of its ops is in the table."
            )
    return list(dict.fromkeys(lines))
