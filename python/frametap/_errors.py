"""What frametap raises.

Every message says what went wrong, where, why, and what to do. Exceptions of the user's own code are
none of these: they pass through unchanged.
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
    "BackendError",
    "CaptureError",
    "FrametapError",
    "FullGraphError",
    "GraphError",
    "QuantizationError",
]


class FrametapError(RuntimeError):
    """The base of all exceptions that frametap itself raises."""


class GraphError(FrametapError):
    """A graph's text cannot be parsed, or a graph breaks the rules of the verifier."""


class BackendError(FrametapError):
    """A backend is unknown, could not compile a graph, or gave results of the wrong number or kind."""


class QuantizationError(FrametapError):
    """A model cannot be quantized as asked, or the calibration data does not fit it."""


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
