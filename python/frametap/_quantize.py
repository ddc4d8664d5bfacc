"""``frametap.quantize``: a captured model in int8, with a table that accounts for every op.

Q1  The model that was given is not changed: a deep copy in eval mode is captured.
Q2  The program runs once for each calibration batch, on a copy of it. The graphs that the call records are run once more
    on the inputs that they had, to observe them; no Python of the program runs then.
Q3  Python between the graphs stays alive: a branch on a tensor's value chooses between int8 segments.
Q4  Each op in float has a reason, and each segment recorded after calibration is named.

Not here: observers, decisions, kernels (``backends/quant``); the table's layout (``_quant_report.py``).
"""

from __future__ import annotations

import difflib
import functools
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from frametap import _C
from frametap._batches import (
    Batch,
    ProgressLine,
    accepting,
    arguments,
    copied,
    described,
    iterate,
    tensors,
)
from frametap._compile import compiled_of
from frametap._decomposed import has_decomposed
from frametap._dynamic_model import DynamicModel
from frametap._errors import SATURATES, FrametapWarning, QuantizationError
from frametap._freeze import freezing_backend, record
from frametap._fused_attention import FUSED_ATTENTION_OFF
from frametap._inference_model import captured_copy, outside, run_batch, under_torch_compile
from frametap._model_state import ModelState
from frametap._quant_outputs import OutputNoise, measured_on_graphs, named_tensors
from frametap._quant_report import plain_parts, render_report
from frametap._quantized_model import QuantizedModel
from frametap._records import reasons_text

__all__ = ["DynamicModel", "QuantizedModel", "quantize"]

_OBSERVERS = ("histogram", "minmax")
_LEAST_SQNR = 30.0  # dB, of a layer alone
_KEPT_BATCHES = 4  # for the SQNR of the whole model


def quantize(
    model: Callable[..., Any],
    calibration_data: Iterable[Any] | None = None,
    *,
    scheme: str = "static",
    min_sqnr: float | None = None,
    observer: str = "histogram",
    activation_bits: int | None = None,
    float_ops: Collection[str] = (),
    float_scopes: Collection[str] = (),
    float_dtype: torch.dtype | None = None,
    bias_correction: bool = True,
    strict: bool = False,
    check_finite: bool = False,
    progress: bool | None = None,
) -> QuantizedModel | DynamicModel:
    """Captures `model` on the calibration data and gives it back in int8.

    `model`: a ``torch.nn.Module`` (compiled or not), a method of one (``model.encode``), or a function. A deep copy
    of the module is taken, in eval mode; the module itself stays as it is. A function is captured with the modules
    that it reads.

    `calibration_data`: realistic batches. A batch is a tensor, a tuple or list of positional
    arguments, or a dict of keyword arguments. A tuple ``(x, y)`` means two arguments: if the second
    is a label, leave it out. A few hundred samples are enough; each branch that shall be int8 must be
    taken.

    `scheme`: ``"static"`` takes the ranges of activations from the calibration data. ``"dynamic"`` computes them for
    each row at each call, for linear layers alone; it needs no data, and records batches that are given. ``"auto"``
    takes for each layer the quickest of static int8, dynamic int8 and float. They are timed on this processor on the
    first calibration batch. A form has to keep `min_sqnr` dB of signal to noise, 30 by default.

    `observer`: ``"histogram"`` leaves out rare outliers, ``"minmax"`` keeps the whole range.
    `activation_bits`: 8, or 7 for processors whose int8 products saturate; by default as the processor
    needs it. `float_ops` (``"aten.linear"``) and `float_scopes` (``"head"``) stay in float.
    `float_dtype`: ``torch.bfloat16`` or ``torch.float32``, in which attention multiplies queries, keys and values; by
    default bfloat16 where the processor has products of it. Other float ops compute in float32.
    `bias_correction`: biases take back by how much rounded weights shift the mean of a layer's result.
    `strict`: a call of which a part runs in float that is int8 otherwise raises, where it would warn.
    `check_finite`: a call in which NaN or infinity reaches an int8 op raises. Bytes hold neither, so that it would become
    a number.
    `progress`: a line on stderr; by default if that is a terminal.

    Raises :class:`QuantizationError` if the data is empty, not finite or does not fit the model, and if
    there is nothing to quantize. A model that computes gradients in its own call is refused, too.
    """
    for name, flag in (("strict", strict), ("check_finite", check_finite)):
        if not isinstance(flag, bool):
            raise QuantizationError(f"quantize: {name} must be True or False, not {flag!r:.60}")
    if progress is not None and not isinstance(progress, bool):
        raise QuantizationError(
            f"quantize: progress must be True, False or None, not {progress!r:.60}"
        )
    make = _SCHEMES.get(scheme) if isinstance(scheme, str) else None
    if make is None:
        near = difflib.get_close_matches(str(scheme), _SCHEMES, n=1, cutoff=0.4)
        raise QuantizationError(
            f"quantize: scheme must be {' or '.join(map(repr, _SCHEMES))}, not {scheme!r:.60}{_did_you_mean(near)}"
        )
    model = under_torch_compile(model)
    if isinstance(model, torch.nn.Module) and has_decomposed(model):
        raise QuantizationError(
            "quantize: the model holds a graph that is quantized already (quantized_decomposed ops); "
            "frametap.freeze runs it in int8"
        )
    options = _options(
        observer, activation_bits, float_ops, float_scopes, float_dtype, bias_correction
    )
    if scheme == "auto":
        options["choices"] = _C.QuantChoices(_checked_sqnr(min_sqnr))
    elif min_sqnr is not None:
        raise QuantizationError(f"quantize: min_sqnr belongs to scheme='auto', not to {scheme!r}")
    return make(model, calibration_data, options, strict, check_finite, progress)


def _checked_sqnr(min_sqnr: Any) -> float:
    if min_sqnr is None:
        return _LEAST_SQNR
    if type(min_sqnr) not in (int, float) or not math.isfinite(min_sqnr):
        raise QuantizationError(
            f"quantize: min_sqnr must be a number of dB such as {_LEAST_SQNR}, not {min_sqnr!r:.60}"
        )
    return float(min_sqnr)


def _static(
    model: Callable[..., Any],
    calibration_data: Iterable[Any] | None,
    options: dict[str, Any],
    strict: bool,
    check_finite: bool,
    progress: bool | None,
) -> QuantizedModel:
    if calibration_data is None:
        raise QuantizationError(
            f"quantize: the {'auto' if 'choices' in options else 'static'} scheme needs calibration data; "
            "scheme='dynamic' needs none"
        )
    compiled, owner, state = captured_copy(
        model, "quantize", QuantizationError, lambda _: _C.QuantBackend(check_finite)
    )
    _refuse_unknown_names(options, owner)
    calibration = _Calibration(compiled)
    line = ProgressLine("calibration", calibration_data, progress)
    with line, torch.no_grad(), FUSED_ATTENTION_OFF:
        for number, raw in enumerate(
            iterate(calibration_data, "quantize: calibration_data", QuantizationError)
        ):
            batch = arguments(raw, f"quantize: calibration batch {number}", QuantizationError)
            _refuse_unusable(batch, number)
            line.show(number)
            with accepting(batch, "quantize", f"calibration batch {number}", QuantizationError):
                calibration.add(batch)
    if not calibration.batches:
        raise QuantizationError(
            "quantize: the calibration data is empty; give some batches as the model will meet them "
            "(an iterator can be read only once)"
        )
    if not calibration.has_elements:
        raise QuantizationError(
            "quantize: the tensors of the calibration data have no elements; give batches of at least one row"
        )
    converted = _convert(compiled, calibration, options)
    state.put_back()
    with torch.no_grad():
        measured = measured_on_graphs(converted, calibration.observations)
    later = functools.partial(_measured_on_calls, kept=calibration.kept, state=state)
    return QuantizedModel(
        compiled,
        converted,
        later if measured is None else measured,
        strict=strict,
        checks_finite=check_finite,
    )


def _dynamic(
    model: Callable[..., Any],
    data: Iterable[Any] | None,
    options: dict[str, Any],
    strict: bool,
    check_finite: bool,
    progress: bool | None,
) -> DynamicModel:
    if check_finite:
        raise QuantizationError(
            "quantize: check_finite belongs to the other schemes; in the dynamic one NaN and infinity stay NaN"
        )
    if options["observer"] != _OBSERVERS[0]:
        raise QuantizationError(
            "quantize: an observer belongs to the static scheme; the dynamic one takes the extremes of each row"
        )

    def backend(owner: torch.nn.Module | None) -> _C.Backend:
        made = freezing_backend(
            "quantize", QuantizationError, "dynamic int8", options, model, owner
        )
        _refuse_unknown_names(options, owner)
        return made

    compiled, _, state = captured_copy(model, "quantize", QuantizationError, backend)
    quantized = DynamicModel(compiled, options, strict=strict)
    record(quantized, state, "quantize", QuantizationError, data, progress)
    if data is None:
        quantized.await_int8()
    elif text := quantized.text_if_float("no op of the given batches runs in int8"):
        warnings.warn(text, FrametapWarning, stacklevel=outside(globals()))
    return quantized


_SCHEMES = {"static": _static, "dynamic": _dynamic, "auto": _static}


def _measured_on_calls(
    model: QuantizedModel,
    kept: list[tuple[Batch, list[tuple[str, torch.Tensor]]]],
    state: ModelState,
) -> dict[str, float]:
    """dB by output, measured by calling the program on batches of the calibration."""
    noise = OutputNoise()
    now = state.of_now()
    state.put_back()
    try:
        for batch, want in kept:
            args, kwargs = copied(batch)
            got = dict(named_tensors(model(*args, **kwargs)))
            for name, tensor in want:
                noise.add(name, tensor, got.get(name, tensor.new_empty(0)))
    finally:
        now.put_back()
    return noise.decibels()


# -- arguments --


def _options(
    observer: str,
    bits: int | None,
    float_ops: Collection[str],
    float_scopes: Collection[str],
    float_dtype: torch.dtype | None,
    bias_correction: bool,
) -> dict[str, Any]:
    if observer not in _OBSERVERS:
        near = difflib.get_close_matches(str(observer), _OBSERVERS, n=1, cutoff=0.4)
        raise QuantizationError(
            f"quantize: observer must be 'histogram' or 'minmax', not {observer!r:.60}{_did_you_mean(near)}"
        )
    if bits is not None and (type(bits) is not int or bits not in (7, 8)):
        raise QuantizationError(f"quantize: activation_bits must be 7, 8 or None, not {bits!r}")
    if bits == 8 and not _C.quant_full_range():
        raise QuantizationError(
            f"quantize: activation_bits=8 would give wrong results here, because {SATURATES}; "
            "leave activation_bits out, which takes 7 bits here"
        )
    if not isinstance(bias_correction, bool):
        raise QuantizationError(
            f"quantize: bias_correction must be True or False, not {bias_correction!r}"
        )
    options: dict[str, Any] = {"observer": observer, "bias_correction": bias_correction}
    if bits is not None:
        options["activation_bits"] = bits
    if float_dtype is not None:
        if float_dtype not in (torch.float32, torch.bfloat16):
            raise QuantizationError(
                f"quantize: float_dtype must be torch.float32, torch.bfloat16 or None, not {float_dtype!r:.60}"
            )
        options["float_dtype"] = str(float_dtype).removeprefix("torch.")
    for name, value in (("float_ops", float_ops), ("float_scopes", float_scopes)):
        is_list = isinstance(value, Collection) and not isinstance(value, str)
        items = list(value) if is_list else []
        if name == "float_ops":
            items = [_name_of_op(item) for item in items]
        if not is_list or not all(isinstance(item, str) for item in items):
            raise QuantizationError(
                f"quantize: {name} must be a list of strings, not {value!r:.60}"
            )
        options[name] = items
    return options


def _name_of_op(op: Any) -> Any:
    """The op as a report names it: ``torch.ops.aten.conv2d.default`` is ``"aten.conv2d"``."""
    if isinstance(op, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        op = str(op)
    return op.removesuffix(".default") if isinstance(op, str) else op


def _refuse_unknown_names(options: dict[str, Any], owner: torch.nn.Module | None) -> None:
    """Raises for an op that torch does not have, and for a module that the model does not have."""
    for name in options["float_ops"]:
        if name not in (known := _ops_of_torch()):
            bare = f"aten.{name}"
            near = [bare] if bare in known else difflib.get_close_matches(name, known, 3, 0.75)
            raise QuantizationError(
                f"quantize: float_ops has {name!r}, and torch has no such op{_did_you_mean(near)}; an op is "
                "named as in the report ('aten.add.Tensor'), or without its overload ('aten.add')"
            )
    if owner is None:
        return
    paths = [path for path, _ in owner.named_modules() if path]
    for name in options["float_scopes"]:
        if name not in paths:
            near = difflib.get_close_matches(name, paths, n=3, cutoff=0.5)
            raise QuantizationError(
                f"quantize: float_scopes has {name!r}, and the model has no module of that path"
                f"{_did_you_mean(near)}; paths are the names of named_modules()"
            )


def _ops_of_torch() -> set[str]:
    """Each op with and without its overload, as a report names it. Libraries may add some at any time."""
    names = {name.replace("::", ".", 1) for name in torch._C._dispatch_get_all_op_names()}
    return names | {".".join(name.split(".", 2)[:2]) for name in names}


def _did_you_mean(near: list[str]) -> str:
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def _refuse_unusable(batch: Batch, number: int) -> None:
    for tensor in tensors(batch):
        if tensor.device.type != "cpu":
            raise QuantizationError(
                f"quantize: calibration batch {number} ({described(batch)}) is on the device {tensor.device}; "
                "frametap computes on the CPU: move data and model there"
            )
        if tensor.is_nested or tensor.layout is not torch.strided:
            what = "is nested" if tensor.is_nested else f"has the layout {tensor.layout}"
            raise QuantizationError(
                f"quantize: calibration batch {number} ({described(batch)}) {what}; ranges are taken from dense tensors"
            )
    if not all(map(_may_be_calibrated, tensors(batch))):
        raise QuantizationError(
            f"quantize: calibration batch {number} ({described(batch)}) has NaN or infinite "
            "values; ranges cannot be taken from it: remove such samples"
        )


def _may_be_calibrated(tensor: torch.Tensor) -> bool:
    """Admits -inf, which an additive mask holds. The conversion refuses it where an int8 op would read it."""
    return not tensor.is_floating_point() or bool((tensor < math.inf).all())


# -- calibration --


class _Calibration:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.batches = 0
        self.has_elements = False
        self.observations: dict[_C.Segment, _C.Observation] = {}
        self._compiled = compiled_of(model, "quantize")
        self.kept: list[tuple[Batch, list[tuple[str, torch.Tensor]]]] = []

    def add(self, batch: Batch) -> None:
        """Runs the batch, and observes what ran; see Q2."""
        result = run_batch(self.model, batch)
        self._refuse_gradients()
        for segment in _C.segments(self._compiled):
            if segment not in self.observations:
                self._observe(segment)
        self.batches += 1
        sizes = [tensor.numel() for tensor in tensors(batch)]
        self.has_elements = self.has_elements or not sizes or any(sizes)
        if len(self.kept) < _KEPT_BATCHES:
            self.kept.append(
                (copied(batch), [(name, t.clone()) for name, t in named_tensors(result)])
            )

    def _refuse_gradients(self) -> None:
        """An int8 graph runs without gradients, so backward() after it would raise."""
        for row in _C.log(self._compiled):
            if row["reason"] == "backward_runs":
                raise QuantizationError(
                    f"quantize: {row['position']['text']}: {row['text']}, in a call of the model; int8 graphs run "
                    "without gradients, so quantize a part of the model that computes none"
                )

    def _observe(self, segment: _C.Segment) -> None:
        """Observes the run that was recorded, and from now on each replay."""
        observing, observation = _C.quant_observe(segment.graph)
        self.observations[segment] = observation
        with torch.random.fork_rng(devices=[]):
            segment.run_first_inputs(observing)
        segment.set_executable(observing)


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
    if not rows:
        raise QuantizationError(
            "quantize: no graph was captured, so there is nothing to quantize"
            + reasons_text(compiled_of(model, "quantize"))
        )
    if not any(row["decision"] == "int8" for row in rows):
        plain = plain_parts(converted, compiled_of(model, "quantize"))
        raise QuantizationError(
            "quantize: "
            + (
                "no op is quicker in int8 on this processor; frametap.freeze makes a fast float model:\n"
                if "choices" in options
                else "none of the captured ops can run in int8:\n"
            )
            + "\n".join([render_report(rows), *plain])
        )
    for segment, executable in executables.items():
        segment.set_executable(executable)
    backend.end_calibration()
    return converted
