"""What a call costs before any op runs: chains of blocks whose ops are left out of the account.

The front end (guards, gathering, hand-back) is measured on modules that compute almost nothing on a tensor of one
element, next to the same ops called from a bare function; what remains is the front end. Rows grow in the number of
modules (guards over a tree), of parameters, and of segments at one entry (which one is looked up).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import timing
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap


class Block(nn.Module):
    """Reads attributes and a parameter, as a user's block does; computes one add."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()
        self.weight = nn.Parameter(torch.ones(1))
        self.scale = 1.0
        self.active = False

    def forward(self, x: Tensor) -> Tensor:
        if self.active:
            x = x * self.scale
        return self.norm(x)


class Chain(nn.Module):
    """`count` blocks; only the last op is computed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x + 1


class Weights(nn.Module):
    """`count` parameters in one op each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(1) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + weight
        return x


def bare(count: int) -> Callable[[Tensor], Tensor]:
    weights = [torch.ones(1) for _ in range(count)]

    def run(x: Tensor) -> Tensor:
        for weight in weights:
            x = x + weight
        return x

    return run


def by_name(x: Tensor, name: str) -> Tensor:
    return x + 1 if len(name) > 0 else x


def row_of(
    run: Callable[[], Any], candidates: dict[str, Callable[[], Any]]
) -> list[timing.Contestant]:
    repeats = timing.repeats_for(run, seconds=0.01)
    row = []
    for name, call in candidates.items():
        contestant = timing.Contestant(name, lambda _, call=call: call(), repeats=repeats)
        try:
            for _ in range(3):
                call()
        except Exception as error:  # noqa: BLE001 - one contestant must not end the race
            contestant.error = f"{type(error).__name__}: {error}"
        row.append(contestant)
    return row


def module_row(
    model: nn.Module, floor: Callable[[Tensor], Tensor], dynamo: bool
) -> list[timing.Contestant]:
    x = torch.zeros(1)
    captured = frametap.compile(model)
    candidates: dict[str, Callable[[], Any]] = {
        "ops alone": lambda: floor(x),
        "eager": lambda: model(x),
        "frametap": lambda: captured(x),
    }
    if dynamo:
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")
        candidates['torch.compile("eager")'] = lambda: compiled(x)
    return row_of(candidates["ops alone"], candidates)


def segments_row(count: int, dynamo: bool) -> list[timing.Contestant]:
    """`count` values of a string argument, the last of them called."""
    x = torch.zeros(1)
    names = [f"name{i}" for i in range(count)]
    captured = frametap.compile(by_name)
    for name in names:
        captured(x, name)
    candidates: dict[str, Callable[[], Any]] = {
        "ops alone": lambda: x + 1,
        "eager": lambda: by_name(x, names[-1]),
        "frametap": lambda: captured(x, names[-1]),
    }
    if dynamo:
        torch._dynamo.reset()
        compiled = torch.compile(by_name, backend="eager")
        for name in names:
            compiled(x, name)
        candidates['torch.compile("eager")'] = lambda: compiled(x, names[-1])
    return row_of(candidates["ops alone"], candidates)


def main() -> int:
    arguments = timing.arguments("Front-end cost of a warm call.", rounds=15)
    torch.set_num_threads(1)
    dynamo = not arguments.no_dynamo
    table = timing.Table("Front end of a warm call (one-element tensors, no_grad)")
    with torch.no_grad():
        for count in (1, 10, 50, 200):
            row = module_row(Chain(count).eval(), lambda x: x + 1, dynamo)
            timing.race(row, arguments.rounds)
            table.add(f"{count} blocks, one op", row)
        for count in (1, 10, 100, 300):
            row = module_row(Weights(count).eval(), bare(count), dynamo)
            timing.race(row, arguments.rounds)
            table.add(f"{count} parameters, {count} ops", row)
        for count in (1, 2, 4, 8):
            row = segments_row(count, dynamo)
            timing.race(row, arguments.rounds)
            table.add(f"segment {count} of {count}", row)
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report([table], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
