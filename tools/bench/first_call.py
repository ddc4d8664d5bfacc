"""The cost of a first call: eager, captured by frametap, and by torch.compile(backend="eager").

Each round has a fresh model and no capture of it or another. The measure is a warm eager call, the fourth of its model;
a first eager call of a fresh model is shown beside it. Caches decide much of the time of a small model's call, and how
much of them other users of the machine leave is chance. So like is compared with like, in two ways:

- Warm: eager has been called just before, and a capture has been made just before, of another copy of the model, and
  been forgotten. So the code of both is in the caches, but the captured model is new, and eager's is not.
- Cold: nothing of either is in any cache of the processor.
"""

from __future__ import annotations

import copy
import importlib
import sys
from collections.abc import Callable

import timing
import torch
from rows import model_rows

from fixtures.models import Case
from fixtures.subject import EAGER, frametap


def contestants(case: Case, batch: int, train: bool, dynamo: bool) -> list[timing.Contestant]:
    model = case.build().train(train)
    inputs = case.inputs(batch)

    def eager() -> object:
        return copy.deepcopy(model)

    def eager_again() -> object:
        fresh = copy.deepcopy(model)
        for _ in range(3):
            fresh(**inputs)
        return fresh

    def captured_another(capture: Callable[[object], object], forget: Callable[[], None]) -> object:
        fresh, other = copy.deepcopy(model), copy.deepcopy(model)
        capture(other)(**inputs)  # type: ignore[operator]
        forget()
        return capture(fresh)

    def ours() -> object:
        return captured_another(frametap.compile, frametap.reset)

    def compiled() -> object:
        return captured_another(lambda f: torch.compile(f, backend="eager"), torch._dynamo.reset)

    def call(f: object) -> object:
        return f(**inputs)  # type: ignore[operator]

    row = [
        timing.Contestant("eager", call, eager_again),
        timing.Contestant("eager, first call", call, eager),
        timing.Contestant("frametap", call, ours),
    ]
    if dynamo:
        row.append(timing.Contestant(timing.TORCH_COMPILE, call, compiled))
    return row


def main() -> int:
    arguments = timing.arguments("First calls.", rounds=5)
    dynamo = not arguments.no_dynamo
    if dynamo:
        importlib.import_module("torch._dynamo")  # its import is not a first call
    tables = []
    for title, train in (("eval, no_grad", False), ("training", True)):
        table = timing.Table(f"First call, {title}")
        cold = timing.Table(f"First call from cold caches, {title}")
        tables += [table, cold]
        for name, case, batch in model_rows(arguments):
            row = contestants(case, batch, train, dynamo)
            with torch.set_grad_enabled(train):
                # Ours is cheap: more rounds for all but torch.compile, which gets its share first.
                timing.race(row, max(1, arguments.rounds // 2))
                cheap = [c for c in row if "compile" not in c.name]
                timing.race(cheap, 3 * arguments.rounds)
                timing.race_for(cheap, seconds=2.0, most=150)
                of_cold = [timing.from_cold_caches(c) for c in (row[0], row[2])]
                timing.race(of_cold, 3 * arguments.rounds)
            table.add(name, row)
            cold.add(name, of_cold)
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report(tables, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
