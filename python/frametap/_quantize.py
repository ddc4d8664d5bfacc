"""``frametap.quantize``: a captured model in int8, with a table that accounts for every op.

Q1  The model that was given is not changed: a deep copy in eval mode is captured.
Q2  Each segment observes each calibration batch once, however many runs it took to record it.
Q3  Python between the graphs stays alive: a branch on a tensor's value chooses between int8 segments.
Q4  Nothing is in float in silence: an op has a reason, a segment met after calibration is named.

Not here: observers, decisions, kernels (``backends/quant``); the table's layout (``_quant_report.py``).
"""

from __future__ import annotations

import copy
import math
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Self, TypeAlias

import torch

from frametap import _C
from frametap._compile import CompiledModule, compile_with, compiled_of
from frametap._errors import FrametapError, QuantizationError
from frametap._quant_report import render_report
from frametap._quantized_model import QuantizedModel

__all__ = ["QuantizedModel", "quantize"]

Batch: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

_OBSERVERS = ("histogram", "minmax")
_KEPT_BATCHES = 4  # for the SQNR of the whole model
_MOST_RECORDINGS = 16  # of one batch: a model that records at every call must not hold us up


def quantize(
    model: Callable[..., Any],
    calibration_data: Iterable[Any],
    *,
    observer: str = "histogram",
    activation_bits: int | None = None,
    float_ops: Collection[str] = (),
    float_scopes: Collection[str] = (),
    strict: bool = False,
    progress: bool | None = None,
) -> QuantizedModel:
    """Captures `model` on the calibration data and gives it back in int8.

    `model`: a ``torch.nn.Module`` (compiled or not), or a function. A deep copy of a module is taken, in
    eval mode; the module itself stays as it is.

    `calibration_data`: batches as the model will meet them: a tensor, a tuple or list of positional
    arguments, or a dict of keyword arguments. A tuple ``(x, y)`` means two arguments: if the second is a
    label, leave it out. A few hundred samples are enough; each branch that shall be int8 must be taken.

    `observer`: ``"histogram"`` leaves out rare outliers, ``"minmax"`` keeps the whole range.
    `activation_bits`: 8, or 7 for processors whose int8 products saturate; by default as the processor
    needs it. `float_ops` (``"aten.linear"``) and `float_scopes` (``"head"``) stay in float.
    `strict`: a call of which a part runs in float that is int8 otherwise raises, where it would warn.
    `progress`: a line on stderr; by default if that is a terminal.

    Raises :class:`QuantizationError` if the data is empty, not finite or does not fit the model, and if
    there is nothing to quantize.
    """
    options = _options(observer, activation_bits, float_ops, float_scopes)
    compiled, owner = _captured_copy(model)
    state = _PlainState(owner)
    calibration = _Calibration(compiled)
    line = _ProgressLine(calibration_data, sys.stderr.isatty() if progress is None else progress)
    with line, torch.no_grad():
        for number, raw in enumerate(_iterate(calibration_data)):
            batch = _arguments(raw, number)
            line.show(number)
            try:
                calibration.add(batch)
            except FrametapError:
                raise
            except Exception as error:  # whatever the model makes of data that does not fit
                raise QuantizationError(
                    f"quantize: the model does not accept calibration batch {number} "
                    f"({_described(batch)}): {type(error).__name__}: {error}\n"
                    "  a batch is a tensor, a tuple of positional or a dict of keyword arguments"
                ) from error
    if not calibration.batches:
        raise QuantizationError(
            "quantize: the calibration data is empty; give some batches as the model will meet them "
            "(an iterator can be read only once)"
        )
    converted = _convert(compiled, calibration, options)
    state.put_back()
    with torch.no_grad():
        sqnr = calibration.sqnr_of_outputs()
    state.put_back()
    return QuantizedModel(compiled, converted, sqnr, strict=bool(strict))


# -- arguments --


def _options(
    observer: str, bits: int | None, float_ops: Collection[str], float_scopes: Collection[str]
) -> dict[str, Any]:
    if observer not in _OBSERVERS:
        raise QuantizationError(
            f"quantize: observer must be 'histogram' or 'minmax', not {observer!r}"
        )
    if bits not in (None, 7, 8):
        raise QuantizationError(f"quantize: activation_bits must be 7, 8 or None, not {bits!r}")
    options: dict[str, Any] = {"observer": observer}
    if bits is not None:
        options["activation_bits"] = bits
    for name, value in (("float_ops", float_ops), ("float_scopes", float_scopes)):
        if isinstance(value, str) or not all(isinstance(item, str) for item in value):
            raise QuantizationError(f"quantize: {name} must be a list of strings, not {value!r}")
        options[name] = list(value)
    return options


def _captured_copy(model: Any) -> tuple[Any, torch.nn.Module | None]:
    """What is captured, compiled, and the module that it belongs to."""
    if isinstance(model, CompiledModule):
        model = type(model)._orig_mod
    if isinstance(model, QuantizedModel):
        raise QuantizationError("quantize: the model is quantized already; pass the float model")
    if not isinstance(model, torch.nn.Module):
        if not callable(model) or isinstance(model, type):
            raise QuantizationError(
                f"quantize: a torch.nn.Module or a function expected, got {type(model).__name__} "
                f"{model!r:.60}"
            )
        owner = getattr(model, "__self__", None)
        return _compiled(model), owner if isinstance(owner, torch.nn.Module) else None
    try:
        twin = copy.deepcopy(model).eval()
    except Exception as error:
        raise QuantizationError(
            f"quantize: {type(model).__name__} cannot be copied ({type(error).__name__}: {error}); "
            "the copy is what gets quantized, so that the model itself stays as it is"
        ) from error
    _take_attention_apart(twin)
    forward = getattr(type(twin), "forward", None)
    if isinstance(forward, _C.CompiledFunction):  # @frametap.compile stands over `forward` itself
        return _compiled(types.MethodType(forward._function, twin)), twin
    return _compiled(twin), twin


def _compiled(model: Any) -> Any:
    """An int8 graph has its weights in it: no two layers share one."""
    return compile_with(
        model,
        backend=_C.QuantBackend(),
        fullgraph=False,
        dynamic=None,
        segment_limit=64,
        by_identity=True,
        answers_by_replay=True,
    )


def _take_attention_apart(model: torch.nn.Module) -> None:
    """Turns off torch's fused kernels of attention and encoder layers, which hide their linear layers.

    In eval mode torch takes them whenever it can, and has a switch for all threads only. Each module says no
    by itself: an encoder layer whose activation is none of two, an attention that trains without dropout.
    """
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, torch.nn.MultiheadAttention):
            module.dropout, module.training = 0.0, True


def _iterate(data: Any) -> Iterator[Any]:
    if isinstance(data, (torch.Tensor, str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise QuantizationError(
            f"quantize: calibration_data must be an iterable of batches, got {type(data).__name__}"
            + ("; put it in a list" if isinstance(data, (torch.Tensor, Mapping)) else "")
        )
    return iter(data)


def _arguments(batch: Any, number: int) -> Batch:
    if isinstance(batch, torch.Tensor):
        arguments: Batch = ((batch,), {})
    elif isinstance(batch, (tuple, list)):
        arguments = (tuple(batch), {})
    elif isinstance(batch, Mapping):
        arguments = ((), dict(batch))
    else:
        raise QuantizationError(
            f"quantize: calibration batch {number} is {type(batch).__name__} {batch!r:.40}; a batch is a "
            "tensor, a tuple of positional or a dict of keyword arguments"
        )
    for tensor in _tensors(arguments):
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise QuantizationError(
                f"quantize: calibration batch {number} ({_described(arguments)}) has NaN or infinite "
                "values; ranges cannot be taken from it: remove such samples"
            )
    return arguments


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _described(batch: Batch) -> str:
    def one(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        return type(value).__name__

    args, kwargs = batch
    return ", ".join(
        [*map(one, args), *(f"{name}: {one(value)}" for name, value in kwargs.items())]
    )


# -- calibration --


class _PlainState:
    """The numbers and strings that hang on a model (a counter of calls): calibration must not show in them."""

    _KINDS = (bool, int, float, complex, str, bytes, type(None))

    def __init__(self, owner: torch.nn.Module | None) -> None:
        modules = owner.modules() if owner is not None else ()
        self._saved = [
            (module, name, value)
            for module in modules
            for name, value in vars(module).items()
            if type(value) in self._KINDS
        ]

    def put_back(self) -> None:
        for module, name, value in self._saved:
            now = vars(module).get(name, value)
            if now is not value and type(now) in self._KINDS:
                object.__setattr__(module, name, value)


class _Calibration:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.batches = 0
        self.observations: dict[_C.Segment, _C.Observation] = {}
        self._compiled = compiled_of(model, "quantize")
        self._native = _C.native_backend()
        self._plain: dict[_C.Segment, _C.Executable] = {}
        self._observing: dict[_C.Segment, _C.Executable] = {}
        self._kept: list[tuple[Batch, Any]] = []

    def add(self, batch: Batch) -> None:
        """Runs the batch until no new segment appears; see Q2."""
        result = self._call(batch)
        for _ in range(_MOST_RECORDINGS):
            fresh = [s for s in _C.segments(self._compiled) if s not in self.observations]
            if not fresh:
                break
            for segment, executable in self._plain.items():
                segment.set_executable(executable)
            for segment in fresh:
                self._begin(segment)
            self._call(batch)
            for segment, executable in self._observing.items():
                segment.set_executable(executable)
        self.batches += 1
        if len(self._kept) < _KEPT_BATCHES:
            self._kept.append((batch, [t.clone() for t in _tensors(result)]))

    def _call(self, batch: Batch) -> Any:
        args, kwargs = batch
        return self.model(*args, **kwargs)

    def _begin(self, segment: _C.Segment) -> None:
        observing, observation = _C.quant_observe(segment.graph)
        self._plain[segment] = _C.compile(self._native, segment.graph)
        self._observing[segment] = observing
        self.observations[segment] = observation
        segment.set_executable(observing)

    def sqnr_of_outputs(self) -> float:
        """In dB, over all outputs of the batches kept; infinite if none differs."""
        signal = noise = 0.0
        for batch, want in self._kept:
            got = list(_tensors(self._call(batch)))
            if [t.shape for t in got] != [t.shape for t in want]:
                return math.nan  # another arm of a branch was taken
            for one, other in zip(want, got, strict=True):
                if one.is_floating_point():
                    signal += float(one.double().square().sum())
                    noise += float((one.double() - other.double()).square().sum())
        if noise == 0.0:
            return math.inf
        return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


class _ProgressLine:
    def __init__(self, data: Any, shown: bool) -> None:
        self._shown = shown
        try:
            self._of = f" of {len(data)}"
        except TypeError:
            self._of = ""

    def __enter__(self) -> Self:
        return self

    def show(self, number: int) -> None:
        if self._shown:
            sys.stderr.write(f"\rcalibration: batch {number + 1}{self._of}")
            sys.stderr.flush()

    def __exit__(self, *error: object) -> None:
        if self._shown:
            sys.stderr.write("\r\033[K" if sys.stderr.isatty() else "\n")
            sys.stderr.flush()


# -- conversion --


def _convert(
    model: Any, calibration: _Calibration, options: Mapping[str, Any]
) -> dict[_C.Segment, _C.QuantizedGraph]:
    converted: dict[_C.Segment, _C.QuantizedGraph] = {}
    executables: dict[_C.Segment, _C.Executable] = {}
    backend = _C.settings(compiled_of(model, "quantize"))["backend"]
    observed = {
        segment: observation
        for segment, observation in calibration.observations.items()
        if observation.runs and len(segment.graph.nodes)
    }
    for segment, observation in observed.items():
        backend.add(segment.graph, observation)
    for segment, observation in observed.items():
        try:
            converted[segment], executables[segment] = backend.convert(
                segment.graph, observation, dict(options)
            )
        except QuantizationError as error:
            raise QuantizationError(
                f"quantize: segment {segment.name} (from {segment.entry}): {error}"
            ) from error
    rows = [row for quantized in converted.values() for row in quantized.report]
    if not rows and any(len(segment.graph.nodes) for segment in calibration.observations):
        raise QuantizationError(
            "quantize: every call was recorded anew, so there is nothing that could be replayed in int8"
            + _last_miss(compiled_of(model, "quantize"))
        )
    if not rows:
        raise QuantizationError(
            "quantize: no graph was captured, so there is nothing to quantize"
            + _reasons_for_no_graph(compiled_of(model, "quantize"))
        )
    if not any(row["decision"] == "int8" for row in rows):
        raise QuantizationError(
            "quantize: none of the captured ops can run in int8:\n" + render_report(rows)
        )
    for segment, executable in executables.items():
        segment.set_executable(executable)
    backend.end_calibration()
    return converted


def _reasons_for_no_graph(compiled: _C.CompiledFunction) -> str:
    lines = []
    for row in _C.log(compiled):
        if row["kind"] in ("break", "abort", "error"):
            line = f"\n  {row['position']['text']}: {row['text']}; {row['advice']}"
            if line not in lines:
                lines.append(line)
    return "".join(lines)


def _last_miss(compiled: _C.CompiledFunction) -> str:
    misses = [row for row in _C.log(compiled) if row["kind"] == "miss"]
    if not misses:
        return ""
    miss = misses[-1]
    return (
        f"\n  {miss['segment']} did not fit at {miss['source']}: {miss['why']}, read at "
        f"{miss['position']['text']}; keep what changes at every call out of the model"
    )
