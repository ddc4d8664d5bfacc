"""Memory: the peak while a call is recorded, what a segment or a quantized model holds, and what is left after `reset`.

Each row comes from processes of its own. A peak is the peak of one call above the resident memory
before it. The calls are a warm eager call, the first captured call of the process, and a first call
after `reset`. The last is the memory of a recording. The one before also brings in the pages of the
code that records, as the first eager call brought in the pages of the kernels.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

import timing
from processes import MEMORY, numbers_of

PEAK = (
    MEMORY
    + """
import json, sys
import torch
torch.set_num_threads(1)
from fixtures.models import MODELS, blocks
which, name, batch, train = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "True"
if which == "frametap":
    from frametap import compile, reset
else:
    compile = lambda f: torch.compile(f, backend="eager")
    reset = torch.compiler.reset
compile(torch.relu)(torch.ones(2))
case = blocks(10, 256) if name == "blocks" else MODELS[name]
model = case.build().train(train)
inputs = case.inputs(batch)
def peak_of(call):
    before = resident()
    forget_peak()
    call(**inputs)
    return peak() - before
with torch.set_grad_enabled(train):
    model(**inputs)
    peaks = {"eager": peak_of(model)}
    for name in ("first", "again"):
        peaks[name] = peak_of(compile(model))
        reset()
print(json.dumps(peaks))
"""
)

SEGMENTS = (
    MEMORY
    + """
import json, sys
import torch
torch.set_num_threads(1)
import frametap
from fixtures.models import MODELS
def by_name(x, name):
    return x * SCALES[name]
if sys.argv[1] == "small":
    count, x = 2000, torch.ones(2)
    SCALES = {str(n): float(n) for n in range(count)}
    f = frametap.compile(by_name, options={"segment_limit": count})
    def record(numbers):
        for n in numbers:
            f(x, str(n))
        assert len(frametap.explain(f).segments) == count
else:
    count, case = 50, MODELS["encoder"]
    model, inputs = case.build().eval(), case.inputs(2)
    copies = []
    def record(numbers):
        for _ in numbers:
            copies.append(frametap.compile(model))
            copies[-1](**inputs)
with torch.no_grad():
    record(range(count))
    frametap.reset()
    before = resident()
    record(range(count))
    held = resident() - before
    frametap.reset()
    left = resident() - before
print(json.dumps({"each": held / count, "left": left}))
"""
)

# The float model is dropped after its conversion, as a program that only serves the int8 model does.
QUANTIZED = (
    MEMORY
    + """
import json, sys
import torch
torch.set_num_threads(1)
import frametap
from int8_rows import ROWS
row = next(row for row in ROWS if row.name == sys.argv[1])
torch.manual_seed(0)
x = row.input(None)
frametap.quantize(torch.nn.Linear(8, 8), [torch.randn(2, 8)], progress=False)(torch.randn(2, 8))
before = resident()
model = row.model()
weights = sum(tensor.nbytes for tensor in model.state_dict().values())
quantized = frametap.quantize(model, [row.input(None) for _ in range(2)], progress=False)
del model
quantized(x)
held = resident() - before
moved = quantized.offload_weights()
quantized(x)
print(json.dumps({"weights": weights, "held": held, "moved": moved, "left": resident() - before}))
"""
)

PEAKS = [
    ("10 blocks of width 256, batch 4096, eval", "blocks", 4096, False),
    ("10 blocks of width 256, batch 4096, training", "blocks", 4096, True),
    ("resnet18, 64x64, batch 16, eval", "resnet18", 16, False),
    ("resnet18, 64x64, batch 16, training", "resnet18", 16, True),
    ("encoder, 12 layers, batch 64, training", "encoder", 64, True),
]


def kibibytes(number: float) -> str:
    return f"{number / 2**10:.1f} KiB"


def main() -> int:
    arguments = timing.arguments("Memory.", rounds=3)
    tracers = ["frametap"] + ["torch.compile"] * (not arguments.no_dynamo)
    columns: dict[str, Callable[[Any], str]] = {"eager": timing.mebibytes}
    for name in tracers:
        columns |= {f"{name}, {which}": timing.mebibytes for which in ("first", "again")}
        columns |= {f"{name}, {which} / eager": "{:.2f}".format for which in ("first", "again")}
    peaks = timing.Numbers("Peak of one call above what was there", columns)
    for title, *case in PEAKS:
        if not timing.wanted(arguments, title):
            continue
        seen = [
            (name, numbers_of(PEAK, name, *map(str, case)))
            for _ in range(arguments.rounds)
            for name in tracers
        ]
        eager = statistics.median(numbers["eager"] for _, numbers in seen)
        row = [eager]
        for name in tracers:
            first, again = (
                statistics.median(numbers[call] for which, numbers in seen if which == name)
                for call in ("first", "again")
            )
            row += [first, again, first / eager, again / eager]
        peaks.add(title, *row)
    held = timing.Numbers(
        "Memory that segments hold", {"each segment": kibibytes, "left after reset": kibibytes}
    )
    for title, which in (
        ("x * SCALES[name], 2,000 segments", "small"),
        ("encoder, 50 segments", "encoder"),
    ):
        if timing.wanted(arguments, title):
            numbers = numbers_of(SEGMENTS, which)
            held.add(title, numbers["each"], numbers["left"])
    quantized = timing.Numbers(
        "Memory that a quantized model holds, its float weights included",
        {
            "float weights": timing.mebibytes,
            "resident": timing.mebibytes,
            "offloaded": timing.mebibytes,
            "resident then": timing.mebibytes,
        },
    )
    for title in ("resnet18, 224x224", "bert, 12 layers, 128 tokens", "mlp, 4 x 1024"):
        if timing.wanted(arguments, title):
            numbers = numbers_of(QUANTIZED, title)
            quantized.add(title, *(numbers[key] for key in ("weights", "held", "moved", "left")))
    return timing.report([peaks, held, quantized], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
