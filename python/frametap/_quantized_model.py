"""The result of :func:`frametap.quantize`: a model that runs in int8, or reports that it does not.

R1  A call runs int8 graphs, whatever the thread's grad mode, autocast, tracer or compiler is.
R2  Where float runs all the same, one warning for each cause names it; under ``strict`` it is an error.
R3  Uses that would lose int8 in silence (export, copies, dtypes, state dicts) are refused.

Not here: calibration and conversion (``_quantize.py``); which graphs become int8 (``backends/quant``).
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from frametap import _C
from frametap._compile import compiled_of
from frametap._errors import FrametapWarning, QuantizationError
from frametap._quant_outputs import Decibels
from frametap._quant_report import plain_parts, render_report

__all__ = ["QuantizedModel"]

_INSTEAD = "save it with frametap.save, or {} the float model and quantize that"


class QuantizedModel(torch.nn.Module):
    """A model in int8, as :func:`quantize` gives it. It is called as the float model was.

    Calls run without gradients, in eval mode, and without autocast: under autocast, inputs in half precision are
    taken as float32. Debuggers, profilers and coverage do not see into a call, as with code in C.

    `report` has one row an op, `report_text()` the same as a table. `output_sqnr` is the signal to
    noise ratio of each output on calibration data, in dB, the worst first; `sqnr` is the worst one.
    `calls` counts calls, such as ``{"int8": 7, "float": 0}``. A call counts as float if a part of
    it ran in float that has an int8 form.
    """

    report: list[dict[str, Any]]

    def __init__(
        self,
        model: Any,
        converted: Mapping[_C.Segment, _C.QuantizedGraph],
        measured: dict[str, float] | Callable[[QuantizedModel], dict[str, float]],
        *,
        strict: bool = False,
    ) -> None:
        super().__init__()
        self.training = False
        self.__dict__["_model"] = model  # no submodule: its float weights are not this model's
        self._frametap = compiled_of(model, "quantize")
        owner = self._frametap.__self__
        has_parameters = isinstance(owner, torch.nn.Module)
        self._weights = _C.OwnWeights(list(owner.parameters()) if has_parameters else [])
        self._converted = dict(converted)
        self._strict = strict
        self._causes: Counter[str] = Counter()
        self.calls = Counter({"int8": 0, "float": 0})
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
    def sqnr(self) -> float:
        """dB of the worst output; infinite if no output is a float tensor, or if none differs."""
        return next(iter(self.output_sqnr.values()), math.inf)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_exporting() or torch.jit.is_tracing() or _has_proxy(args, kwargs):
            raise QuantizationError(
                "a quantized model cannot be exported or traced: the program would be the float one; "
                + _INSTEAD.format("export")
            )
        if torch.is_autocast_enabled("cpu"):
            args, kwargs = _in_float32(args), _in_float32(kwargs)
            with torch.autocast("cpu", enabled=False):
                result, problem = _C.call_quantized(self._frametap, self._weights, args, kwargs)
        else:
            result, problem = _C.call_quantized(self._frametap, self._weights, args, kwargs)
        if problem is None:
            self.calls["int8"] += 1
        else:
            self._tell(problem)
        return result

    # torch.compile calls it as it is.
    forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    forward._torchdynamo_disable_msg = "a quantized model of frametap"  # type: ignore[attr-defined]

    def _tell(self, problem: dict[str, Any]) -> None:
        """R2."""
        if problem["modes"] and _is_traced_below():
            raise QuantizationError(
                "a quantized model cannot be traced: the program would be the float one; "
                + _INSTEAD.format("trace")
            )
        self.calls["float"] += 1
        cause = _cause_of(problem, self._frametap)
        self._causes[cause] += 1
        text = f"a quantized model ran in float: {cause}"
        if problem["recorded"] and not problem["unconverted"]:
            text += f". {_last('miss', self._frametap)}".rstrip(". ")
        if self._strict:
            raise QuantizationError(text)
        if self._causes[cause] == 1:
            warnings.warn(text, FrametapWarning, stacklevel=_outside())

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
        if self.calls["int8"] or self.calls["float"]:
            lines.append(f"calls: {self.calls['int8']} in int8, {self.calls['float']} in float")
        lines += [f"  {count} in float: {cause}" for cause, count in self._causes.items()]
        return "\n".join(lines).rstrip()

    # -- R3 --

    def train(self, mode: bool = True) -> QuantizedModel:
        if mode:
            raise QuantizationError(
                "train: a quantized model has no gradients; train the float model, then quantize again"
            )
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if torch.onnx.is_in_onnx_export():
            raise QuantizationError(
                "a quantized model cannot be exported to ONNX: int8 weights are in no state dict; "
                + _INSTEAD.format("export")
            )
        if not args and kwargs.get("destination") is None:
            raise QuantizationError(
                "state_dict: int8 weights are in no state dict; "
                + _INSTEAD.format("take the state dict of")
            )
        warnings.warn(
            "the state dict of a module leaves out the quantized model in it; use frametap.save for that",
            FrametapWarning,
            stacklevel=_outside(),
        )
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise QuantizationError(
            "load_state_dict: int8 weights are fixed; load them into the float model and quantize that"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        probe = torch.empty(1)
        moved = fn(probe)
        if moved.dtype != probe.dtype or moved.device != probe.device:
            raise QuantizationError(
                f"to: a quantized model runs on {probe.device} and takes {probe.dtype}, not {moved.device} and "
                f"{moved.dtype}; move or convert the float model instead"
            )
        return self

    def __prepare_scriptable__(self) -> Any:
        raise QuantizationError(
            "a quantized model cannot be scripted by torch.jit; " + _INSTEAD.format("script")
        )

    def __reduce_ex__(self, protocol: Any) -> Any:  # of copy, deepcopy and pickle
        raise QuantizationError(
            "a quantized model cannot be copied or pickled; use frametap.save and frametap.load"
        )

    def __repr__(self) -> str:
        original = self._frametap.__self__
        name = (
            self._frametap._function.__qualname__ if original is None else type(original).__name__
        )
        count = sum(row["decision"] == "int8" for row in self.report)
        return f"QuantizedModel({name}, {count} ops in int8)"


_C.set_own_executable(QuantizedModel.forward.__code__)
# torch.compile is not to look at it even where it is called for itself.
_dynamo = torch._C._dynamo.eval_frame
_dynamo.set_code_exec_strategy(
    QuantizedModel.forward.__code__,
    _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.SKIP),
)


def _has_proxy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether torch.fx.symbolic_trace is the caller, which may give one proxy for all."""
    # Loops, because a generator would take longer than all other checks of a call.
    proxy = torch.fx.Proxy
    if isinstance(args, proxy) or isinstance(kwargs, proxy):
        return True
    for value in args:
        if isinstance(value, proxy):
            return True
    for value in kwargs.values():
        if isinstance(value, proxy):
            return True
    return False


def _is_traced_below() -> bool:
    """By make_fx and what is built on it, which see the ops of plain Python."""
    key = torch._C._TorchDispatchModeKey
    return any(
        torch._C._get_dispatch_mode(mode) is not None for mode in (key.PROXY, key.FUNCTIONAL)
    )


def _in_float32(value: Any) -> Any:
    """With floating-point tensors as float32, as torch.amp.custom_fwd casts them."""
    if isinstance(value, torch.Tensor):
        return (
            value.float() if value.is_floating_point() and value.dtype != torch.float64 else value
        )
    if isinstance(value, dict) and type(value) is dict:
        return {key: _in_float32(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_in_float32(item) for item in value)
    return value


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
    if problem["modes"]:
        return f"plain Python runs {problem['modes']}"
    if problem["plain_layer"]:
        return (
            f"plain Python ran {problem['plain_layer']}, outside of all graphs; "
            "report_text() and frametap.explain name the places where graphs end"
        )
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
    runs = f"{'runs in int8' if made['is_int8'] else 'runs in float'} ({made['runs']} runs)"
    return runs + (f"; in float: {'; '.join(lost)}" if lost else "")


def _outside() -> int:
    """The level of the frame that called the model, for warnings."""
    import sys

    level, frame = 1, sys._getframe(1)
    inside = (__file__, torch.nn.modules.module.__file__)
    while frame is not None and frame.f_code.co_filename in inside:
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level
