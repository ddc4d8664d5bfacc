"""The cost that a break adds to the time of the instruction in plain Python.

A function of eleven ops has n breaks between them: calls of `print`, which neither tracer can look into. The ops are the
same whatever n is, and what the calls cost in plain Python is taken off.
"""

from __future__ import annotations

import sys

import timing
import torch
from rows import function_row

from fixtures.subject import EAGER

OPS = 11
BREAKS = (0, 1, 5, 10)


def program(n: int) -> list[str]:
    """The lines of a function with `n` breaks."""
    lines = []
    for i in range(OPS):
        lines += ["x = x + 1"] + ["print(end='')"] * (i < n)
    return lines


def added(
    n: int, one: list[timing.Contestant], none: list[timing.Contestant]
) -> list[float | None]:
    """Returns the cost of each of the `n` breaks, by contestant except eager."""

    def more(i: int) -> float | None:
        with_breaks, without = one[i].best, none[i].best
        return None if with_breaks is None or without is None else (with_breaks - without) / n

    plain = more(0)
    return [
        None if plain is None or (cost := more(i)) is None else cost - plain
        for i in range(1, len(one))
    ]


def main() -> int:
    arguments = timing.arguments("The cost of a break.", rounds=60)
    rows = {n: function_row(program(n), not arguments.no_dynamo) for n in BREAKS}
    with torch.no_grad():
        # All in one race: what is taken off is of the same run.
        timing.race([c for row in rows.values() for c in row], arguments.rounds)
    whole = timing.Table(f"Calls of {OPS} ops with n breaks (four elements, no_grad)")
    cost = timing.Numbers(
        "Cost of a break besides the instruction in plain Python",
        {c.name: timing.human for c in rows[0][1:]},
    )
    for n, row in rows.items():
        whole.add(f"{n} breaks", row)
        if n:
            cost.add(f"each of {n}", *added(n, row, rows[0]))
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report([cost, whole], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
