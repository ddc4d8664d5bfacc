"""The subjects of several benchmarks: models, and functions of a few ops beside
torch.compile(backend="eager").
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import timing
import torch
from torch import Tensor

from fixtures.models import BERT_2X768, GPT2_2X768, MODELS, Case, available, blocks
from fixtures.subject import frametap

_ROWS = [
    ("mlp, batch 4", MODELS["mlp"], 4),
    ("10 blocks, batch 4", blocks(10), 4),
    ("200 blocks, batch 4", blocks(200), 4),
    ("resnet18, 64x64, batch 1", MODELS["resnet18"], 1),
    ("encoder, 12 layers, batch 2", MODELS["encoder"], 2),
    ("bert, tiny, batch 2", MODELS["bert"], 2),
    ("bert, 2x768, batch 1", BERT_2X768, 1),
    ("gpt2, tiny, batch 2", MODELS["gpt2"], 2),
    ("gpt2, 2x768, batch 1", GPT2_2X768, 1),
    ("vit, tiny, batch 2", MODELS["vit"], 2),
    ("u-net, batch 1", MODELS["unet"], 1),
]


def model_rows(arguments: argparse.Namespace) -> Iterator[tuple[str, Case, int]]:
    """Title, model and batch size of each row that is asked for and can be built."""
    for name, case, batch in _ROWS:
        if available(case) and timing.wanted(arguments, name):
            yield name, case, batch


def straight(lines: list[str]) -> Callable[[Tensor], Tensor]:
    """A fresh function of `x` that runs these lines and returns `x`: nothing captured for another one can count."""
    names: dict[str, Callable[[Tensor], Tensor]] = {}
    body = "\n    ".join(lines)
    exec(f"def program(x):\n    {body}\n    return x\n", names)  # noqa: S102
    return names["program"]


def function_row(
    lines: list[str], dynamo: bool, x: Tensor | None = None
) -> list[timing.Contestant]:
    """Later calls of `straight(lines)` on `x`, by default on four elements."""
    x = torch.ones(4) if x is None else x
    eager = straight(lines)
    calls = {"eager": eager, "frametap": frametap.compile(straight(lines))}
    if dynamo:
        calls[timing.TORCH_COMPILE] = torch.compile(straight(lines), backend="eager")
    return timing.warmed(
        {name: lambda f=f: f(x) for name, f in calls.items()},
        timing.repeats_for(lambda: eager(x)),
    )
