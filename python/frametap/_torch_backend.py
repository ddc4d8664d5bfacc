"""Entry as a backend of torch.compile: ``torch.compile(model, backend="frametap")``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["frametap_backend"]


def frametap_backend(
    gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor], **options: Any
) -> Callable[..., Any]:
    """A TorchDynamo backend: the graph module is captured at its first call and replayed after it.

    ``options`` are passed to :func:`frametap.compile`.
    """
    import frametap

    # TorchDynamo calls the result with its own guards checked; parameters are attributes of `gm`.
    return frametap.compile(gm.forward, **options)
