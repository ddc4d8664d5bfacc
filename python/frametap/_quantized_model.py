"""The result of :func:`frametap.quantize`: a model that runs in int8, or reports that it does not.

R2  Where float runs in a call, one warning for each cause names it; under ``strict`` it is an error.

Not here: R1 and R3 (``_inference_model.py``), calibration and conversion (``_quantize.py``), which graphs become int8 (``backends/quant``).
"""

from __future__ import annotations

import math
import os
import tempfile
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from frametap import _C
from frametap._errors import FrametapWarning, QuantizationError, not_finite
from frametap._inference_model import InferenceModel, outside, run_by_python
from frametap._quant_outputs import Decibels
from frametap._quant_report import plain_parts, render_report
from frametap._records import counted

__all__ = ["QuantizedModel"]


class QuantizedModel(InferenceModel):
    """A model in int8, as :func:`quantize` gives it; see :class:`InferenceModel` for calls.

    `report` has one row an op, `report_text()` the same as a table. `output_sqnr` is the signal to
    noise ratio of each output on calibration data, in dB, the worst first; `sqnr` is the worst one.
    `calls` counts them under ``"int8"`` and ``"float"``. A call counts as float if a part of it ran in
    float that has an int8 form.
    """

    _kind = "quantized"
    _verb = "quantize"
    _original_name = "the float model"
    _weights_name = "int8 weights"
    _instead = "save it with frametap.save, or {} the float model and quantize that"
    _error = QuantizationError

    report: list[dict[str, Any]]

    def __init__(
        self,
        model: Any,
        converted: Mapping[_C.Segment, _C.QuantizedGraph],
        measured: dict[str, float] | Callable[[QuantizedModel], dict[str, float]],
        *,
        strict: bool = False,
        checks_finite: bool = False,
    ) -> None:
        super().__init__(model)
        self.checks_finite = checks_finite
        self._converted = dict(converted)
        self._strict = strict
        self._causes: Counter[str] = Counter()
        self._measured = measured
        self.report = [
            {**row, "segment": segment.name}
            for segment, quantized in self._converted.items()
            for row in quantized.report
        ]

    @property
    def output_sqnr(self) -> dict[str, float]:
        """dB by output (``['boxes']``, ``[0]``; "" if the result is one tensor), the worst first.

        A model of one graph is measured when it is quantized. One with breaks is measured when this is first
        asked for: the program then runs on up to four of the calibration batches.
        """
        if not isinstance(self._measured, dict):
            self._measured = self._measured(self)
        return self._measured

    @property
    def measured_sqnr(self) -> dict[str, float] | None:
        """`output_sqnr` if it has been measured."""
        return dict(self._measured) if isinstance(self._measured, dict) else None

    @property
    def sqnr(self) -> float:
        """dB of the worst output; infinite if no output is a float tensor, or if none differs."""
        return next(iter(self.output_sqnr.values()), math.inf)

    @property
    def calls(self) -> Counter[str]:
        return Counter({"int8": self._calls.quiet, "float": self._causes.total()})

    def _note_call(self, problem: dict[str, Any]) -> None:
        if problem["not_finite"]:
            raise QuantizationError(not_finite(problem["not_finite"]))
        cause = _cause_of(problem, self._frametap)
        self._causes[cause] += 1
        text = f"a quantized model ran in float: {cause}"
        if problem["recorded"] and not problem["unconverted"]:
            text += f". {_last('miss', self._frametap)}".rstrip(". ")
        if self._strict:
            raise QuantizationError(text)
        if self._causes[cause] == 1:
            warnings.warn(text, FrametapWarning, stacklevel=outside(globals()))

    def offload_weights(self, directory: str | os.PathLike[str] | None = None) -> int:
        """Moves the float weights that no int8 call reads from memory to a file, and returns their bytes.

        They are needed where a call of a new kind is recorded, and are read from the file then. Results stay the same.
        `directory`: on a disk, with room for the weights; by default the one of :mod:`tempfile`. The file has no name, and
        goes when the model goes. No other thread may call the model meanwhile.
        """
        if not isinstance(self._frametap.__self__, torch.nn.Module):
            raise QuantizationError(
                "offload_weights: the weights belong to the modules that the function reads; quantize a module, or a "
                "method of one, of which a copy is made"
            )
        try:
            with tempfile.TemporaryFile(dir=directory) as file:
                return _C.offload_weights(self._frametap, file.fileno())
        except OSError as error:
            raise QuantizationError(f"offload_weights: no file can be made: {error}") from error

    def quantized_graph(self, segment: _C.Segment) -> _C.QuantizedGraph | None:
        """The int8 form of a segment; None if it runs in float."""
        if segment in self._converted:
            return self._converted[segment]
        made = _C.quant_of(segment.executable)
        return made["quantized"] if made is not None and made["is_int8"] else None

    def _decibels(self, name: str, db: float) -> str:
        if isinstance(self._measured, Decibels) and name in self._measured.unlike:
            return f"not comparable: {self._measured.unlike[name]}"
        return f"{db:.1f} dB"

    def report_text(self) -> str:
        """A table for each segment of the calibration, what was recorded since, and how calls ran."""
        lines: list[str] = []
        for segment, quantized in self._converted.items():
            lines += [f"{segment.name}, from {segment.entry}", render_report(quantized.report), ""]
        if isinstance(self._measured, dict) and self._measured:
            lines.append("outputs, the worst first:")
            lines += [
                f"  {name or 'the result'}: {self._decibels(name, db)}"
                for name, db in self._measured.items()
            ]
        for segment, quantized in self._converted.items():
            if quantized.lowering_note:
                lines.append(f"{segment.name} is not lowered to kernels: {quantized.lowering_note}")
        lines += plain_parts(self._converted, self._frametap)
        for segment in _C.segments(self._frametap):
            if segment in self._converted or not len(segment.graph.nodes):
                continue
            lines.append(
                f"{segment.name} ({segment.function}, from {segment.entry}), recorded after calibration, "
                + _how_it_runs(segment)
            )
        calls = self.calls
        if calls.total():
            lines.append(f"calls: {calls['int8']} in int8, {calls['float']} in float")
        lines += [f"  {count} in float: {cause}" for cause, count in self._causes.items()]
        return "\n".join(lines).rstrip()

    def __repr__(self) -> str:
        count = sum(row["decision"] == "int8" for row in self.report)
        return f"QuantizedModel({self._name_of_original()}, {count} ops in int8)"


def _cause_of(problem: dict[str, Any], compiled: _C.CompiledFunction) -> str:
    if problem["unconverted"]:
        lost = problem["lost"]
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        return f"{lost[0]}{more}"
    if problem["recorded"]:
        return (
            "a call of a new kind was recorded, with several graphs or with lasting effects; "
            "a later call is int8 if these graphs fit it"
        )
    if ran := run_by_python(problem):
        return ran
    return f"no graph was replayed. {_last('abort', compiled)}".rstrip()


def _last(kind: str, compiled: _C.CompiledFunction) -> str:
    rows = [row for row in _C.log(compiled) if row["kind"] == kind]
    if not rows:
        return ""
    row = rows[-1]
    if kind == "miss":
        return f"{row['segment']} did not fit at {row['source']}: {row['why']}"
    return f"{row['position']['text']}: {row['text']}; {row['advice']}"


def _how_it_runs(segment: _C.Segment) -> str:
    made = _C.quant_of(segment.executable)
    if made is None:
        return "has no layers"
    lost = made["lost"]
    count = counted(made["runs"], "run")
    layers: dict[str, list[str]] = {}
    for layer, why in lost:
        layers.setdefault(why, []).append(layer or "all of it")
    if not made["is_int8"]:
        runs = f"runs in float ({count})"
    elif lost:
        runs = f"runs in int8 except {counted(len(lost), 'layer')} ({count})"
    else:
        runs = f"runs in int8 ({count})"
    if made["extrapolated"]:
        layers_then = counted(made["extrapolated"], "layer")
        runs += f"; {layers_then} where calibration met other computations, with the ranges of the same layers there"
    return "\n".join(
        [
            runs,
            *(
                textwrap.fill(
                    f"in float: {', '.join(names)}: {why}",
                    width=120,
                    initial_indent="  ",
                    subsequent_indent="    ",
                )
                for why, names in layers.items()
            ),
        ]
    )
