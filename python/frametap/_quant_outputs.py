"""The distance between the outputs of an int8 model and of the float model: each output by itself,
in dB.

The signal to noise ratio is 10 log10(sum of squares of the float output / sum of squares of the difference),
over all batches that were kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from frametap import _C

__all__ = ["Decibels", "OutputNoise", "measured_on_graphs", "named_tensors"]


class Decibels(dict[str, float]):
    """dB by output. `unlike`: by output that cannot be compared, the sizes that differ, in words."""

    def __init__(self, values: Mapping[str, float], unlike: Mapping[str, str]) -> None:
        super().__init__(values)
        self.unlike = dict(unlike)


class OutputNoise:
    """Collects signal and noise by the name of the output."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}
        self._unlike: dict[str, str] = {}

    def add(self, name: str, want: torch.Tensor, got: torch.Tensor) -> None:
        """`want`, `got`: of one shape, or the output counts as not comparable."""
        sums = self._sums.setdefault(name, [0.0, 0.0])
        if (
            want.shape != got.shape
        ):  # a mask picked other rows, or another arm of a branch was taken
            sums[1] = math.nan
            self._unlike.setdefault(name, _unlike(want.shape, got.shape))
            return
        exact = want.detach().double()
        sums[0] += float(exact.square().sum())
        sums[1] += float((exact - got.detach().double()).square().sum())

    def decibels(self) -> Decibels:
        """dB by output, the worst first; NaN where the outputs cannot be compared."""
        values = {name: _decibels(*sums) for name, sums in self._sums.items()}
        worst_first = sorted(values.items(), key=lambda item: (not math.isnan(item[1]), item[1]))
        return Decibels(dict(worst_first), self._unlike)


def _unlike(want: torch.Size, got: torch.Size) -> str:
    if want[1:] == got[1:] and len(want) == len(got):
        return f"{want[0]} rows in float, {got[0]} in int8"
    return f"sizes {list(want)} in float, {list(got)} in int8"


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    if not (math.isfinite(signal) and math.isfinite(noise)):
        return math.nan
    ratio = signal / noise
    return 10 * math.log10(ratio) if ratio > 0 else -math.inf


def named_tensors(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The float tensors in a result with the way to each: ``['boxes']``, ``[0].logits``; "" for the result itself."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{path}[{key!r}]")
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from named_tensors(item, f"{path}[{i}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from named_tensors(getattr(value, field.name, None), f"{path}.{field.name}")


def measured_on_graphs(
    converted: Mapping[_C.Segment, _C.QuantizedGraph],
    observations: Mapping[_C.Segment, _C.Observation],
) -> dict[str, float] | None:
    """dB by output, measured by running the graphs on inputs that calibration kept. No code of the program runs.

    Returns None if a call is more than one graph: only the program has the inputs of the next
    graph.
    """
    if any(s.entry != "start" or s.exit.kind != "return" for s in observations):
        return None
    native = _C.native_backend()
    noise = OutputNoise()
    for segment, quantized in converted.items():
        graph = segment.graph
        exact, lowered = _C.compile(native, graph), _C.compile(native, quantized.lowered)
        names = [value.name for value in graph.outputs]
        for inputs in observations[segment].kept:
            want = dict(zip(names, exact.run(_copies(inputs)), strict=True))
            got = dict(zip(names, lowered.run(_copies(inputs)), strict=True))
            for path, name in _named_values(segment.exit.result):
                if isinstance(want[name], torch.Tensor) and want[name].is_floating_point():
                    noise.add(path, want[name], got[name])
    return noise.decibels()


def _copies(inputs: list[Any]) -> list[Any]:
    return [x.clone() if isinstance(x, torch.Tensor) and not x.requires_grad else x for x in inputs]


def _named_values(operand: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """As :func:`named_tensors`, for a result that a graph will give: the way to each value, and its name."""
    kind, items = operand["kind"], operand["items"]
    if kind == "value":
        yield path, operand["value"]
    elif kind in ("tuple", "list"):
        for i, item in enumerate(items):
            yield from _named_values(item, f"{path}[{i}]")
    elif kind == "dict":
        for key, item in zip(items[::2], items[1::2], strict=True):
            yield from _named_values(item, f"{path}[{key.get('constant')!r}]")
    elif kind == "new":
        names = operand["names"]
        for name, item in zip(names, items[len(items) - len(names) :], strict=True):
            yield from _named_values(item, f"{path}.{name}")
