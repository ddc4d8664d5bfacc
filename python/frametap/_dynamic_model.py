"""The result of ``frametap.quantize(model, scheme="dynamic")``: a frozen model whose linear layers multiply bytes.

Not here: the kernels (``backends/quant/dynamic_linear.h``), and the calls (``_inference_model.py``).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from frametap._errors import FrametapWarning, QuantizationError
from frametap._freeze import FrozenModel
from frametap._inference_model import outside
from frametap._quant_report import render_report

__all__ = ["DynamicModel"]


class DynamicModel(FrozenModel):
    """A model with linear layers in int8, as :func:`quantize` gives it for ``scheme="dynamic"``.

    `report` has one row an op of the graphs recorded so far, `report_text()` the same as a table. A row is as in
    :class:`QuantizedModel`, without the signal to noise, which needs data.
    """

    _kind = "quantized"
    _verb = "quantize"
    _original_name = "the float model"
    _weights_name = "int8 weights"
    _instead = "save it with frametap.save, or {} the float model"
    _error = QuantizationError
    _slow = "a part of a quantized model runs in float"

    def __init__(self, model: Any, options: Mapping[str, Any], *, strict: bool = False) -> None:
        super().__init__(model, "dynamic int8", options)
        self._strict = strict
        self._awaits_int8 = False

    def _note_call(self, problem: dict[str, Any]) -> None:
        if self._strict and (texts := self._problems(problem)):
            raise QuantizationError(f"{self._slow}: {texts[0]}")
        super()._note_call(problem)
        if self._awaits_int8 and self.report:
            self._awaits_int8 = False
            if text := self.text_if_float("no op of the first call runs in int8"):
                warnings.warn(text, FrametapWarning, stacklevel=outside(globals()))

    def await_int8(self) -> None:
        """Lets the first call that records graphs warn if none of their ops is int8."""
        self._awaits_int8 = True

    def text_if_float(self, text: str) -> str:
        """Returns a warning if no op recorded so far runs in int8, else "". Raises under `strict`."""
        rows = self.report
        if not rows or any(row["decision"] == "int8" for row in rows):
            return ""
        if self._strict:
            raise QuantizationError(f"quantize: {text}:\n{render_report(rows)}")
        return f"quantize: {text}; report_text() has the reasons"

    @staticmethod
    def _shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**row, "decision": _decision(row), "reason": _reason(row)} for row in rows]

    @staticmethod
    def _table(rows: list[dict[str, Any]]) -> str:
        return render_report(rows)

    def __repr__(self) -> str:
        count = sum(row["decision"] == "int8" for row in self.report)
        return f"DynamicModel({self._name_of_original()}, {count} ops in int8)"


def _decision(row: dict[str, Any]) -> str:
    if row["is_int8"]:
        return "int8"
    return "folded" if row["form"] == "folded" else "float"


def _reason(row: dict[str, Any]) -> str:
    if row["form"] == "fused":
        return f"by the kernel of {row['reason']}"
    return row["reason"] or "only linear layers are int8 in the dynamic scheme"
