"""Chains of 1, 10 and 100 ops on tensors of four elements: what a call costs where the ops cost least; and of 10 ops on larger
ones, where memory is what they cost. In both sizes also a chain of 24 ops of which a third repeat an earlier one.

With the native backend beside torch.compile(backend="eager"), and both front ends with inductor where there is a C++
compiler.
"""

from __future__ import annotations

import shutil
import sys

import timing
import torch
from rows import function_row, straight

from fixtures.subject import EAGER, frametap


def chain(count: int) -> list[str]:
    """The lines of `count` ops in turn: a product, a sum, a ReLU."""
    return (["x = x * 1.5", "x = x + 0.5", "x = x.relu()"] * count)[:count]


# x * sigmoid(x) of a scaled x, as it is often written down.
REPEATING = ["x = (x * 1.5 + 0.5).sigmoid() * (x * 1.5 + 0.5)"] * 4


def inductor(count: int) -> list[timing.Contestant]:
    x = torch.ones(4)
    calls = {
        'torch.compile("inductor")': torch.compile(straight(chain(count)), backend="inductor"),
        'frametap("inductor")': frametap.compile(straight(chain(count)), backend="inductor"),
    }
    return timing.warmed({name: lambda f=f: f(x) for name, f in calls.items()}, 500)


SHAPES = [(64, 64), (256, 1024), (16, 64, 56, 56)]


def main() -> int:
    arguments = timing.arguments("Chains of ops on tiny tensors.", rounds=60)
    dynamo = not arguments.no_dynamo
    plain = timing.Table("Chains of ops on four elements (no_grad)")
    compiled = timing.Table("Chains of ops on four elements, inductor (no_grad)")
    large = timing.Table("Chains of ops on larger tensors (no_grad)")
    has_compiler = any(map(shutil.which, ("c++", "g++", "clang++")))
    with torch.no_grad():
        for count in (1, 10, 100):
            name = f"{count} op{'s' * (count > 1)}"
            if not timing.wanted(arguments, name):
                continue
            row = function_row(chain(count), dynamo)
            timing.race(row, arguments.rounds)
            plain.add(name, row)
            if dynamo and has_compiler:
                row = inductor(count)
                timing.race(row, arguments.rounds)
                compiled.add(name, row)
        if timing.wanted(arguments, "24 ops, 8 repeats"):
            row = function_row(REPEATING, dynamo)
            timing.race(row, arguments.rounds)
            plain.add("24 ops, 8 repeats", row)
        for shape in SHAPES:
            for kind, lines in {"": chain(10), ", 8 repeats in 24": REPEATING}.items():
                name = " x ".join(map(str, shape)) + kind
                if timing.wanted(arguments, name):
                    row = function_row(lines, dynamo, torch.ones(shape))
                    timing.race(row, max(5, arguments.rounds // 6))
                    large.add(name, row)
    if dynamo and not has_compiler:
        print("no C++ compiler: inductor is left out\n")
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report([plain, large, compiled], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
