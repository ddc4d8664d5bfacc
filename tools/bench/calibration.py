"""The way from a float model to its first answer in int8, beside eager calls: a batch of calibration, and the rest.

`frametap.quantize` takes batches from a generator. Between two of them, a batch is calibrated. The
generator times an eager call of the batch right before, so the two are interleaved. The rest is the time from the last
batch to the first answer: conversion, packing, the report, and a call.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
import warnings
from collections.abc import Iterator

import int8
import timing
import torch
from int8_rows import ROWS, Row
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap


class Calibrated:
    """One model, quantized with some batches; each number is in seconds."""

    def __init__(self, model: nn.Module, batches: list[Tensor], x: Tensor) -> None:
        self.eager: list[float] = []
        self.batches: list[float] = []
        model(batches[0])
        quantized = frametap.quantize(model, self._timed(model, batches), progress=False)
        self.answer = quantized(x).clone()
        self.rest = time.process_time() - self._end

    def _timed(self, model: nn.Module, batches: list[Tensor]) -> Iterator[Tensor]:
        for batch in batches:
            start = time.process_time()
            model(batch)
            given = time.process_time()
            yield batch
            self._end = time.process_time()
            self.eager.append(given - start)
            self.batches.append(self._end - given)


def add(table: timing.Numbers, row: Row, size: int, count: int, rounds: int) -> None:
    torch.manual_seed(0)
    model = row.model()
    batches = [row.input(size) for _ in range(count)]
    x = row.input(1)
    found = [Calibrated(model, batches, x) for _ in range(rounds)]
    ratios = [[b / e for b, e in zip(f.batches, f.eager, strict=True)] for f in found]
    later = [ratio for run in ratios for ratio in run[1:]]
    one = min(e for f in found for e in f.eager) / size
    table.add(
        f"{row.name}, {count} x {size}",
        statistics.median(run[0] for run in ratios),
        statistics.median(later) if later else None,
        min(f.rest for f in found),
        min(f.rest for f in found) / one,
        int8.sqnr(model(x), found[-1].answer),
    )


def main() -> int:
    parser = timing.parser("Calibration, and the first answer in int8.", rounds=3)
    parser.add_argument("--images", type=int, default=32, help="samples of the calibration")
    parser.add_argument(
        "--batches", nargs="*", type=int, default=[1, 8, 32], help="samples of each batch"
    )
    arguments: argparse.Namespace = parser.parse_args()
    table = timing.Numbers(
        "CPU time of calibration, in eager calls of the batch, and of the rest up to the first answer",
        {
            "first batch / eager": "{:.2f}".format,
            "later batch / eager": "{:.2f}".format,
            "the rest": timing.human,
            "the rest, in eager samples": "{:.0f}".format,
            "SQNR": "{:.1f} dB".format,
        },
    )
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: there is no int8\n")
        return 0
    for row in ROWS:
        for size in arguments.batches:
            if timing.wanted(arguments, row.name):
                with torch.no_grad(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    add(table, row, size, max(1, arguments.images // size), arguments.rounds)
                gc.collect()
                print(table.markdown().splitlines()[-1], file=sys.stderr, flush=True)
    return timing.report([table], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
