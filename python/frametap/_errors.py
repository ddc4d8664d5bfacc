"""The exceptions of frametap.

Every message states the problem, the place, the cause and the remedy. Exceptions of the user's own
code are different: they pass through unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from frametap._records import MissText

__all__ = [
    "ArtifactError",
    "BackendError",
    "CaptureError",
    "ConstraintError",
    "FrametapError",
    "FrametapWarning",
    "FreezeError",
    "FullGraphError",
    "GraphError",
    "QuantizationError",
    "RecordingError",
]


# Why activations of 8 bits are refused on a processor, or by its settings.
SATURATES = "int8 products of 8 bits saturate on this processor (without VNNI, or limited by ONEDNN_MAX_CPU_ISA)"


class FrametapError(RuntimeError):
    """The base of all exceptions that frametap itself raises."""


class FrametapWarning(UserWarning):
    """Something costs time, or does not do what was asked for, though results are right."""


class GraphError(FrametapError):
    """A graph's text cannot be parsed, or a graph breaks the rules of the verifier."""


class BackendError(FrametapError):
    """A backend is unknown, could not compile a graph, or gave results of the wrong number or kind."""


class QuantizationError(FrametapError):
    """A model cannot be quantized as asked, or the calibration data does not fit it."""


class FreezeError(FrametapError):
    """A model cannot be frozen as asked, or a frozen model does not take part in such a use."""


class ArtifactError(FrametapError):
    """A saved program cannot be written, read, or called with these inputs."""


class CaptureError(FrametapError):
    """Something cannot be captured as asked.

    ``reason`` is the name of the limit, ``position`` the place in the user's source
    (``function:line:col``), ``advice`` what to do about it.
    """

    def __init__(
        self, message: str, *, reason: str = "", position: str = "", advice: str = ""
    ) -> None:
        self.reason = reason
        self.position = position
        self.advice = advice
        lines = [message]
        if position:
            lines.append(f"  where   {position}")
        if reason:
            lines.append(f"  why     {reason}")
        if advice:
            lines.append(f"  advice  {advice}")
        super().__init__("\n".join(lines))


class FullGraphError(CaptureError):
    """``fullgraph=True`` was asked for and the function needs more than one graph."""


class ConstraintError(CaptureError):
    """A declaration by :func:`frametap.mark_dynamic` does not hold.

    A size is fixed, or the program takes another branch for a part of the given range. The changes
    of the call are taken back where possible.
    """


def could_not_compile(backend: str, error: BaseException) -> str:
    return f"the backend {backend!r} could not compile a graph: {type(error).__name__}: {error}"


def not_finite(place: str) -> str:
    return f"NaN or infinity reached an int8 op, in {place}; bytes hold neither"


def refuse_segment(
    segment: str, what: str, advice: str, position: Mapping[str, Any] | None = None
) -> NoReturn:
    """Raises the error of a segment that cannot be saved."""
    where = f" at {position['text']}" if position is not None and position["line"] else ""
    raise ArtifactError(
        f"save: segment {segment}{where} cannot be saved: {what}\n  advice  {advice}"
    )


_REFUSED = {
    "not_recorded": "call it with such arguments before, so that it is recorded",
    "miss": "call it with such arguments before, or make what differs a tensor",
    "segment_limit": "raise options={'segment_limit': n}, or make what differs a tensor",
}


class RecordingError(CaptureError):
    """A call inside of :func:`assert_no_recording` would have been recorded. Nothing was recorded.

    ``reason`` is ``"not_recorded"`` if no segment begins at this position yet. It is ``"miss"`` if
    guards of the segments do not hold, and ``"segment_limit"`` if no more may be recorded either.
    ``function`` is the name of the function. ``miss`` is ``None`` or the first guard that does not
    hold (``segment``, ``source``, ``want``, ``got``, ``why``, ``position``).
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        position: str = "",
        function: str = "",
        miss: dict[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.miss = None if miss is None else MissText(**miss)
        text = message if self.miss is None else f"{message}\n{self.miss}"
        super().__init__(text, reason=reason, position=position, advice=_REFUSED.get(reason, ""))
