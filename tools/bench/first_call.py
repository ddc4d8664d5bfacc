"""What a first call costs: eager, captured by frametap, and by torch.compile(backend="eager").

Each round has a fresh model and forgets all earlier captures. The measure is a warm eager call, the fourth of its model.
A first eager call of a fresh model is shown beside it: part of any first call is cold caches.
"""

from __future__ import annotations

import copy
import importlib
import sys

import timing
import torch

from fixtures.models import BERT_2X768, MODELS, Case, available
from fixtures.subject import EAGER, frametap

ROWS = [
    ("mlp, batch 4", MODELS["mlp"], 4),
    ("resnet18, 64x64, batch 1", MODELS["resnet18"], 1),
    ("encoder, 12 layers, batch 2", MODELS["encoder"], 2),
    ("bert, tiny, batch 2", MODELS["bert"], 2),
    ("bert, 2x768, batch 1", BERT_2X768, 1),
    ("vit, tiny, batch 2", MODELS["vit"], 2),
    ("u-net, batch 1", MODELS["unet"], 1),
]


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
        row.append(timing.Contestant('torch.compile("eager")', call, compiled))
    return row


def main() -> int:
    arguments = timing.arguments("First calls.", rounds=5)
    torch.set_num_threads(1)
    dynamo = not arguments.no_dynamo
    if dynamo:
        importlib.import_module("torch._dynamo")  # its import is not a first call
    tables = []
    for title, train in (("First call, eval, no_grad", False), ("First call, training", True)):
        table = timing.Table(title)
        for name, case, batch in ROWS:
            if not available(case) or (arguments.models and case.name not in arguments.models):
                continue
            row = contestants(case, batch, train, dynamo)
            with torch.set_grad_enabled(train):
                # Ours is cheap: more rounds for all but torch.compile, which gets its share first.
                timing.race(row, max(1, arguments.rounds // 2))
                timing.race([c for c in row if "compile" not in c.name], 3 * arguments.rounds)
            table.add(name, row)
        tables.append(table)
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report(tables, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
