"""Objects of C code and containers, given to a captured function, exchanged and changed between its calls.

    python tests/stress/held_objects.py [NAMES] [--form argument] [--backend native] [--show]

`held_objects.txt` lists kinds of objects, what is done to them between calls, and what a function does with them. Each
of these is a program for the harness of `tests/same` in four forms. The object is an argument, an attribute, a global, or
a variable before a break.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stress import generated, samples

TABLE = Path(__file__).with_suffix(".txt")
# The code before the statements, and the call.
FORMS = {
    "argument": ("def f(x, v):", "f(ones(2), v)"),
    "attribute": ("def f(x, holder):\n    v = holder.held", "f(ones(2), holder)"),
    "global": ("def f(x):\n    global v", "f(ones(2))"),
    "after_break": ("def f(x, w):\n    print('a break')\n    v = w", "f(ones(2), v)"),
}


@dataclasses.dataclass
class Held:
    """A section of the table: the code in its lines, by their first words."""

    name: str
    make: list[str] = dataclasses.field(default_factory=list)
    change: list[str] = dataclasses.field(default_factory=list)
    state: list[str] = dataclasses.field(default_factory=list)
    do: list[str] = dataclasses.field(default_factory=list)


def table() -> tuple[str, list[Held]]:
    """Returns the code that all programs begin with, and the objects."""
    _, prelude, *sections = re.split(
        r"^=== ", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    objects = []
    for section in sections:
        name, *lines = section.splitlines()
        held = Held(name)
        for line in lines:
            kind, _, code = line.partition(" ")
            getattr(held, kind).append(code)
        objects.append(held)
    return prelude.partition("\n")[2].rstrip(), objects


def programs(
    held: Held, prelude: str, forms: list[str] | None = None
) -> Iterator[tuple[str, str, str]]:
    """Yields name, code and calls of the programs in these forms; of each in one form, and always the same, by default."""
    for index, done in enumerate(held.do):
        name = f"{held.name}_{index}"
        one = list(FORMS)[zlib.crc32(name.encode()) % len(FORMS)]
        for form in forms or [one]:
            head, call = FORMS[form]
            body = "".join(f"\n    {line}" for line in done.split(" // "))
            shown = [call, *held.state]
            made = [line for code in held.make for line in (f"v = holder.held = {code}", *shown)]
            changed = [line for code in held.change for line in (code, *shown)]
            calls = [*made, *changed, *made]
            yield f"{name}_{form}", f"{prelude}\n{head}{body}", "\n".join(calls)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", help="objects whose names hold one of these; all of them"
    )
    parser.add_argument("--form", choices=FORMS, action="append", help="repeatable (all)")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--show", action="store_true", help="print the programs")
    options = parser.parse_args()
    prelude, objects = table()

    def fault(held: Held) -> str:
        faults = []
        for program in programs(held, prelude, options.form or list(FORMS)):
            if options.show:
                print(generated.text_of(*program))
            faults.append(generated.fault(*program, backend=options.backend))
        return "\n\n".join(filter(None, faults))

    return samples.compared(objects, options.names, fault, "object")


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
