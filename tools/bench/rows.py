"""The models whose first and later calls are measured."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import timing

from fixtures.models import BERT_2X768, MODELS, Case, available, blocks

_ROWS = [
    ("mlp, batch 4", MODELS["mlp"], 4),
    ("10 blocks, batch 4", blocks(10), 4),
    ("200 blocks, batch 4", blocks(200), 4),
    ("resnet18, 64x64, batch 1", MODELS["resnet18"], 1),
    ("encoder, 12 layers, batch 2", MODELS["encoder"], 2),
    ("bert, tiny, batch 2", MODELS["bert"], 2),
    ("bert, 2x768, batch 1", BERT_2X768, 1),
    ("gpt2, tiny, batch 2", MODELS["gpt2"], 2),
    ("vit, tiny, batch 2", MODELS["vit"], 2),
    ("u-net, batch 1", MODELS["unet"], 1),
]


def model_rows(arguments: argparse.Namespace) -> Iterator[tuple[str, Case, int]]:
    """Title, model and batch size of each row that is asked for and can be built."""
    for name, case, batch in _ROWS:
        if available(case) and timing.wanted(arguments, name):
            yield name, case, batch
