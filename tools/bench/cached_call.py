"""The cost of a later call: eager, replayed by frametap, and by torch.compile(backend="eager")."""

from __future__ import annotations

import copy
import sys

import timing
import torch
from rows import model_rows

from fixtures.models import Case
from fixtures.subject import EAGER, frametap


def contestants(case: Case, batch: int, train: bool, dynamo: bool) -> list[timing.Contestant]:
    model = case.build().train(train)
    inputs = case.inputs(batch)
    repeats = timing.repeats_for(lambda: model(**inputs))
    callables = {"eager": model, "frametap": frametap.compile(copy.deepcopy(model))}
    if dynamo:
        torch._dynamo.reset()
        callables[timing.TORCH_COMPILE] = torch.compile(copy.deepcopy(model), backend="eager")
    return timing.warmed({name: lambda f=f: f(**inputs) for name, f in callables.items()}, repeats)


def main() -> int:
    arguments = timing.arguments("Cached calls.", rounds=40)
    dynamo = not arguments.no_dynamo
    tables = []
    for title, train in (
        ("Cached call, eval, no_grad", False),
        ("Cached call, training (forward)", True),
    ):
        table = timing.Table(title)
        for name, case, batch in model_rows(arguments):
            with torch.set_grad_enabled(train):
                row = contestants(case, batch, train, dynamo)
                timing.race(row, arguments.rounds)
            table.add(name, row)
        tables.append(table)
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report(tables, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
