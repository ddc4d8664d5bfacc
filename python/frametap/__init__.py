"""frametap: captures, explains and quantizes PyTorch programs by watching their bytecode run.

``frametap.compile`` decorates a function, method or module; ``explain``, ``guards``, ``segments`` and
``graph`` say what was captured and why; ``quantize`` gives an int8 model; ``save`` and ``load`` keep it.
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
    FrametapError,
    FullGraphError,
    GraphError,
    QuantizationError,
)
from frametap._explain import Explanation, explain
from frametap._quantize import quantize
from frametap._save import load, save
from frametap._version import __version__

_check.capture_possible(_C.problem())
_C.set_error_classes(FullGraphError, BackendError)

__all__ = [
    "ArtifactError",
    "BackendError",
    "CaptureError",
    "CompiledModule",
    "Explanation",
    "FrametapError",
    "FullGraphError",
    "GraphError",
    "QuantizationError",
    "__version__",
    "compile",
    "explain",
    "graph",
    "guards",
    "ir",
    "load",
    "quantize",
    "reset",
    "save",
    "segments",
]
