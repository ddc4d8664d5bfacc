"""What a later call costs: eager, replayed by frametap, and by torch.compile(backend="eager")."""

from __future__ import annotations

import copy
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
    repeats = timing.repeats_for(lambda: model(**inputs))
    callables = {"eager": model, "frametap": frametap.compile(copy.deepcopy(model))}
    if dynamo:
        torch._dynamo.reset()
        callables['torch.compile("eager")'] = torch.compile(copy.deepcopy(model), backend="eager")
    row = []
    for name, f in callables.items():
        contestant = timing.Contestant(name, lambda _, f=f: f(**inputs), repeats=repeats)
        try:
            for _ in range(3):
                f(**inputs)
        except Exception as error:  # noqa: BLE001 - one contestant must not end the race
            contestant.error = f"{type(error).__name__}: {error}"
        row.append(contestant)
    return row


def main() -> int:
    arguments = timing.arguments("Cached calls.", rounds=15)
    torch.set_num_threads(1)
    dynamo = not arguments.no_dynamo
    tables = []
    for title, train in (
        ("Cached call, eval, no_grad", False),
        ("Cached call, training (forward)", True),
    ):
        table = timing.Table(title)
        for name, case, batch in ROWS:
            if not available(case) or (arguments.models and case.name not in arguments.models):
                continue
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
