"""``frametap.freeze``: a captured model with packed weights and fused ops, in float32 or with products of bfloat16.

F1  The model that was given is not changed: a deep copy in eval mode is captured, and later changes of weights do not show.
F2  Each graph is frozen when it is recorded, at the first call of its kind. Python between the graphs stays alive.
F3  Each op has a row in the report; a layer that torch runs has a reason.

Not here: passes and kernels (``backends/freeze``); calls, and uses that are refused (``_inference_model.py``).
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from frametap import _C
from frametap._batches import ProgressLine, accepting, arguments, iterate
from frametap._errors import FrametapError, FrametapWarning, FreezeError
from frametap._inference_model import (
    InferenceModel,
    captured_copy,
    outside,
    run_batch,
    run_by_python,
    under_torch_compile,
)
from frametap._model_state import ModelState
from frametap._quant_report import place_of, render_table
from frametap._read_weights import weights_reached_by

__all__ = [
    "FrozenModel",
    "checked_dtype",
    "freeze",
    "freezing_backend",
    "products_of",
    "record",
]

_DTYPES = (torch.float32, torch.bfloat16)


def freeze(
    model: Callable[..., Any],
    data: Iterable[Any] | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    progress: bool | None = None,
) -> FrozenModel:
    """Captures `model` and gives it back for fast inference, with its weights packed and its ops fused.

    `model`: a ``torch.nn.Module`` (compiled or not), a method of one, or a function. A deep copy of the module is
    taken, in eval mode; the module itself stays as it is. Its parameters and buffers are taken as constants. A function
    is captured with the modules that it calls, in their mode; the weights that it reaches by globals, closures and
    defaults are frozen.

    `data`: batches to record now, so that the first call of the user is a fast one, too. A batch is a tensor, a
    tuple or list of positional arguments, or a dict of keyword arguments; the program runs once for each. Without it,
    the first call of each kind is recorded.

    `dtype`: ``torch.float32``, or ``torch.bfloat16``, which rounds the factors of the products in convolutions and
    linear layers to bfloat16 and sums them in float32. Inputs, results and everything else stay float32. It pays on
    processors with bfloat16 instructions (AMX, AVX-512 BF16); others compute in float32.

    Batch norms are folded into the convolutions before them, activations and residual sums are done by the kernel of
    the layer before them, and images stay in channels_last between layers. Results differ from the model's by
    rounding.

    Raises :class:`FreezeError` if the model is a function that reaches no weights, or no function at all, and if it
    does not accept a batch.
    """
    checked_dtype(dtype, "freeze", FreezeError)
    model = under_torch_compile(model)
    backend = functools.partial(
        freezing_backend, "freeze", FreezeError, products_of(dtype), {}, model
    )
    compiled, _, state = captured_copy(model, "freeze", FreezeError, backend)
    frozen = FrozenModel(compiled, products_of(dtype), {})
    record(frozen, state, "freeze", FreezeError, data, progress)
    return frozen


def record(
    model: FrozenModel,
    state: ModelState,
    who: str,
    error: type[FrametapError],
    data: Iterable[Any] | None,
    progress: bool | None,
) -> None:
    """Calls the model once for each batch of the data, if there are any. Data and model stay as they are."""
    if data is None:
        return
    with ProgressLine(who, data, progress) as line:
        for number, raw in enumerate(iterate(data, f"{who}: data", error)):
            batch = arguments(raw, f"{who}: batch {number}", error)
            line.show(number)
            with accepting(batch, who, f"batch {number}", error):
                run_batch(model, batch)
    state.put_back()


def checked_dtype(dtype: torch.dtype, who: str, error: type[FrametapError]) -> None:
    if dtype not in _DTYPES:
        raise error(
            f"{who}: dtype must be torch.float32 or torch.bfloat16, not {dtype!r:.60}; for int8 there is "
            "frametap.quantize"
        )


def products_of(dtype: torch.dtype) -> str:
    """How layers multiply, for the extension."""
    return str(dtype).removeprefix("torch.")


def freezing_backend(
    who: str,
    error: type[FrametapError],
    products: str,
    options: dict[str, Any],
    model: Any,
    owner: torch.nn.Module | None,
) -> _C.FreezeBackend:
    """`owner`: the module whose weights are frozen. Without one, `model` is a function, and freezes those it reaches."""
    weights = weights_reached_by(model if owner is None else owner)
    if owner is None and not weights:
        raise error(
            f"{who}: weights are frozen, and the function reaches none by a global, a closure or a default; pass a "
            "module, or a function that calls modules"
        )
    return _C.FreezeBackend(weights, products=products, options=options)


class FrozenModel(InferenceModel):
    """A fast form of a model, as :func:`freeze` gives it; see :class:`InferenceModel` for calls.

    `report` has one row an op of the graphs recorded so far, `report_text()` the same as a table. `dtype` is the
    type of the factors of products.
    """

    _kind = "frozen"
    _verb = "freeze"
    _original_name = "the original"
    _weights_name = "packed weights"
    _instead = "save it with frametap.save, or {} the original"
    _error: type[FrametapError] = FreezeError
    _slow = "a part of a frozen model is as slow as before"

    def __init__(self, model: Any, products: str, options: Mapping[str, Any]) -> None:
        super().__init__(model)
        self.dtype = torch.bfloat16 if products == "bfloat16" else torch.float32
        self.products = products
        self.options = dict(options)
        self._backend = _C.settings(self._frametap)["backend"]
        self._said: set[str] = set()

    def _note_call(self, problem: dict[str, Any]) -> None:
        """Warns once of each layer that plain Python ran, and of each graph that could not be frozen."""
        for text in self._problems(problem):
            if text not in self._said:
                self._said.add(text)
                warnings.warn(
                    f"{self._slow}: {text}", FrametapWarning, stacklevel=outside(globals())
                )

    def _problems(self, problem: dict[str, Any]) -> list[str]:
        ran = run_by_python(problem)
        return self._backend.problems + ([ran] if ran else [])

    def frozen_graph(self, segment: _C.Segment) -> _C.Graph | None:
        """The graph that runs for a segment; None if it runs as it was recorded."""
        made = _C.freeze_of(segment.executable)
        return None if made is None else made["graph"]

    @property
    def report(self) -> list[dict[str, Any]]:
        """One row an op: ``op``, ``scope``, ``file``, ``line``, ``form``, ``reason``, ``segment``.

        ``form``: ``"kernel"`` (of oneDNN), ``"fused"`` into the kernel before it, ``"folded"`` into a weight or
        dropped, ``"torch"``.
        """
        return [
            {**row, "segment": segment.name}
            for segment in _C.segments(self._frametap)
            if (made := _C.freeze_of(segment.executable)) is not None
            for row in self._shown(made["report"])
        ]

    @staticmethod
    def _shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows for users."""
        return list(rows)

    def report_text(self) -> str:
        """A table for each recorded graph: how each op runs, and why."""
        lines: list[str] = []
        for segment in _C.segments(self._frametap):
            made = _C.freeze_of(segment.executable)
            if made is None:
                continue
            lines += [f"{segment.name}, from {segment.entry}, {made['runs']} runs"]
            lines += [self._table(self._shown(made["report"])), ""]
        if not lines:
            return f"nothing was recorded yet; call the model once, or give {self._verb} some data"
        return "\n".join(lines).rstrip()

    @staticmethod
    def _table(rows: list[dict[str, Any]]) -> str:
        return _table(rows)

    def __repr__(self) -> str:
        count = sum(row["form"] == "kernel" for row in self.report)
        name = str(self.dtype).removeprefix("torch.")
        return f"FrozenModel({self._name_of_original()}, {name}, {count} kernels)"


_FORMS = {
    "kernel": "kernels",
    "fused": "fused into them",
    "folded": "folded away",
    "torch": "by torch",
}


def _table(rows: list[dict[str, Any]]) -> str:
    count = Counter(row["form"] for row in rows)
    parts = [f"{count[form]} {words}" for form, words in _FORMS.items() if count[form]]
    reasons = {"fused": "by the kernel of {}", "folded": "{}", "torch": "{}", "kernel": "{}"}
    cells = [
        (row["op"], place_of(row), row["form"], reasons[row["form"]].format(row["reason"]))
        for row in rows
    ]
    return render_table(("op", "where", "runs as", "why"), cells) + (
        f"\n\n{len(rows)} ops: {', '.join(parts) or 'none'}"
    )
