"""frametap: captures, explains and quantizes PyTorch programs by watching their bytecode run.

``frametap.compile`` decorates a function, method or module. ``explain``, ``guards``, ``segments``
and ``graph`` show the captured parts and the causes. ``quantize`` gives an int8 model, ``freeze`` a fast float
one; ``save`` and ``load`` keep programs.
"""

from __future__ import annotations

from frametap import _check  # says in one sentence what is wrong, before the extension loads

# isort: split
from frametap import _C, ir
from frametap._compile import CompiledModule, compile, graph, guards, reset, segments
from frametap._errors import (
    ArtifactError,
    BackendError,
    CaptureError,
    ConstraintError,
    FrametapError,
    FrametapWarning,
    FreezeError,
    FullGraphError,
    GraphError,
    QuantizationError,
    RecordingError,
)
from frametap._explain import Explanation, explain
from frametap._freeze import FrozenModel, freeze
from frametap._guards import Guard
from frametap._marks import mark_dynamic, mark_static
from frametap._no_recording import RECORDING_FORBIDDEN, assert_no_recording
from frametap._quantize import quantize
from frametap._save import load, save
from frametap._version import __version__

_check.capture_possible(_C.problem())
_check.int8_possible(_C.onednn_problem())
_check.log_asked_for(_C.log_events)
_check.fast_paths_asked_for(_C.cross_module_calls, _C.repeat_module_calls)
_C.set_error_classes(
    FullGraphError,
    ConstraintError,
    BackendError,
    FrametapWarning,
    RecordingError,
    RECORDING_FORBIDDEN,
)

__all__ = [
    "ArtifactError",
    "BackendError",
    "CaptureError",
    "CompiledModule",
    "ConstraintError",
    "Explanation",
    "FrametapError",
    "FrametapWarning",
    "FreezeError",
    "FrozenModel",
    "FullGraphError",
    "GraphError",
    "Guard",
    "QuantizationError",
    "RecordingError",
    "__version__",
    "assert_no_recording",
    "compile",
    "explain",
    "freeze",
    "graph",
    "guards",
    "ir",
    "load",
    "mark_dynamic",
    "mark_static",
    "quantize",
    "reset",
    "save",
    "segments",
]
