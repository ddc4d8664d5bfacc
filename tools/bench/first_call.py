"""What a first call costs: eager, captured by frametap, and by torch.compile(backend="eager").

Each round has a fresh model and forgets all earlier captures. The measure is a warm eager call, the fourth of its model.
A first eager call of a fresh model is shown beside it: part of any first call is cold caches. How cold, other users of
the machine decide: small models, of which a call is soon disturbed, get many rounds.
"""

from __future__ import annotations

import copy
import importlib
import sys

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

    def ours() -> object:
        frametap.reset()
        return frametap.compile(copy.deepcopy(model))

    def compiled() -> object:
        torch._dynamo.reset()
        return torch.compile(copy.deepcopy(model), backend="eager")

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
    for title, train in (("First call, eval, no_grad", False), ("First call, training", True)):
        table = timing.Table(title)
        for name, case, batch in model_rows(arguments):
            row = contestants(case, batch, train, dynamo)
            with torch.set_grad_enabled(train):
                # Ours is cheap: more rounds for all but torch.compile, which gets its share first.
                timing.race(row, max(1, arguments.rounds // 2))
                cheap = [c for c in row if "compile" not in c.name]
                timing.race(cheap, 3 * arguments.rounds)
                timing.race_for(cheap, seconds=2.0, most=150)
            table.add(name, row)
        tables.append(table)
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report(tables, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
