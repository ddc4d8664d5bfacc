"""Entry as a backend of torch.compile: ``torch.compile(model, backend="frametap")``.

T1  TorchDynamo checks its own guards before it calls a graph. The graph is captured at its first call, with guards of ours.
T2  With ``freeze``, parameters and buffers are packed, and packed again where one of them has changed. The model stays the
    caller's, who may load other weights into it.

Not here: how a change is noticed (``backends/freeze/following.h``).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from frametap import _C
from frametap._compile import OPTIONS, checked_options, compile
from frametap._decomposed import take_decomposed
from frametap._errors import FrametapError, FrametapWarning
from frametap._freeze import checked_dtype, products_of

__all__ = ["frametap_backend"]

_OPTIONS = {**OPTIONS, "freeze": False, "dtype": torch.float32}


def frametap_backend(
    gm: torch.fx.GraphModule,
    example_inputs: list[torch.Tensor],
    *,
    options: dict[str, Any] | None = None,
    **others: Any,
) -> Callable[..., Any]:
    """A TorchDynamo backend: the graph module is captured at its first call and replayed after it.

    `options`: the options of :func:`frametap.compile`, and

    - ``freeze`` (False): pack weights and fuse ops as :func:`frametap.freeze` does, where no gradients are computed.
      Weights that have changed are packed again at the next call;
    - ``dtype`` (``torch.float32``): with ``freeze``, the `dtype` of :func:`frametap.freeze`.

    `others` are passed to :func:`frametap.compile`.
    """
    given = checked_options(options, _OPTIONS)
    freeze, dtype = given.pop("freeze"), given.pop("dtype")
    if type(freeze) is not bool:
        raise FrametapError(f"compile: freeze must be True or False, got {freeze!r:.60}")
    if not freeze:
        if "dtype" in (options or {}):
            raise FrametapError("compile: dtype belongs to freeze, which is not on")
        return compile(gm.forward, options=given, **others)
    checked_dtype(dtype, "compile", FrametapError)
    if others:
        raise FrametapError(f"compile: {', '.join(sorted(others))} cannot be combined with freeze")
    return _FrozenGraph(gm, dtype, given)


class _FrozenGraph:
    """A graph of TorchDynamo with its weights packed, and a warning where that could not be done."""

    def __init__(
        self, gm: torch.fx.GraphModule, dtype: torch.dtype, options: dict[str, Any]
    ) -> None:
        take_decomposed(gm)
        # TorchDynamo passes weights as arguments, or keeps them in the module.
        self._backend = _C.FollowingBackend(
            [*gm.parameters(), *gm.buffers()], products=products_of(dtype)
        )
        self._frametap = compile(gm.forward, backend=self._backend, options=options)
        self._said = 0

    def __call__(self, *args: Any) -> Any:
        results = self._frametap(*args)
        if self._backend.problem_count != self._said:
            self._warn()
        return results

    def _warn(self) -> None:
        problems = self._backend.problems
        said, self._said = self._said, len(problems)
        for text in problems[said:]:
            warnings.warn(f"torch.compile with freeze: {text}", FrametapWarning, stacklevel=3)
