"""Modules of ``torch.export``: their guard functions run in a block of settings for TorchDynamo.

The block sets context variables, which no graph can hold. The settings mean nothing where TorchDynamo does not trace.
"""

from __future__ import annotations

import inspect
import sys
from types import FunctionType

import torch

__all__ = ["leave_dynamo_settings_out"]


def leave_dynamo_settings_out(root: torch.nn.Module) -> None:
    """Lets modules of `root`, which must not be the user's, call the functions that such blocks are put around."""
    for module in root.modules():
        forward = vars(module).get("forward")
        inner = _inside(forward) if isinstance(forward, FunctionType) else None
        if inner is not None:
            module.forward = inner  # type: ignore[method-assign]


def _inside(function: FunctionType) -> FunctionType | None:
    decorators = sys.modules.get("torch._dynamo.decorators")
    if decorators is None:  # the function is then not of its making
        return None
    wraps = decorators.wrap_dunder_call_ctx_manager
    if not any(constant is function.__code__ for constant in wraps.__code__.co_consts):
        return None
    variables = inspect.getclosurevars(function).nonlocals
    inner = variables.get("func")
    is_settings = isinstance(variables.get("self"), decorators.DynamoConfigPatchProxy)
    return inner if is_settings and isinstance(inner, FunctionType) else None
