"""Changes of states that belong to no object of a program: modes, switches, hooks of all modules, random state."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from .changes import Change, Undo, set_attribute
from .values import different, replacing


class _OtherFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return different(result) if type(result) is Tensor else result


class _OtherOps(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result.mul_(2) if func is torch.ops.aten.mul.Tensor else result


@contextlib.contextmanager
def _switched(
    read: Callable[[], Any], write: Callable[[Any], object], value: Any
) -> Iterator[None]:
    before = read()
    write(value)
    try:
        yield
    finally:
        write(before)


@contextlib.contextmanager
def _profiled() -> Iterator[None]:
    sys.setprofile(lambda *_: None)
    try:
        yield
    finally:
        sys.setprofile(None)


SCOPES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "default dtype": lambda: _switched(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "default device": lambda: torch.device("meta"),
    "deterministic algorithms": lambda: _switched(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True
    ),
    "anomaly detection": torch.autograd.detect_anomaly,
    "function mode": _OtherFunctions,
    "dispatch mode": _OtherOps,
    "saved tensors hooks": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda t: t, lambda t: t
    ),
    "torch functions disabled": torch._C.DisableTorchFunctionSubclass,
    "profiler": _profiled,
}


def _hook(register: Callable[[Any], Any], hook: Callable[..., Any]) -> Callable[[], Undo]:
    return lambda: register(hook).remove


def _kept(
    read: Callable[[], Any], write: Callable[[Any], object], value: Any
) -> Callable[[], Undo]:
    def make() -> Undo:
        before = read()
        write(value)
        return lambda: write(before)

    return make


STATES: dict[str, Callable[[], Undo]] = {
    "grad mode off": _kept(torch.is_grad_enabled, torch.set_grad_enabled, False),
    "other random state": _kept(
        torch.get_rng_state, torch.set_rng_state, torch.Generator().manual_seed(7).get_state()
    ),
    "forward hook of all modules": _hook(
        module_hooks.register_module_forward_hook, lambda m, a, out: different(out)
    ),
    "forward pre-hook of all modules": _hook(
        module_hooks.register_module_forward_pre_hook, lambda m, a: different(a)
    ),
    "backward hook of all modules": _hook(
        module_hooks.register_module_full_backward_hook, lambda m, i, o: None
    ),
    "backward pre-hook of all modules": _hook(
        module_hooks.register_module_full_backward_pre_hook, lambda m, o: None
    ),
    **{
        f"nn.Module.{name}": lambda name=name: set_attribute(
            nn.Module, name, replacing(getattr(nn.Module, name))
        )
        for name in ("__call__", "_call_impl", "__getattr__")
    },
    **{
        f"Tensor.{name}": lambda name=name: set_attribute(
            Tensor, name, replacing(getattr(Tensor, name))
        )
        # No __getitem__: one that came and went leaves a slot, by which torch takes numbers for rows.
        for name in ("__mul__", "__add__")
    },
}


def world() -> Iterator[Change]:
    for name, scope in SCOPES.items():
        yield Change(name, scope=scope)
    for name, make in STATES.items():
        yield Change(name, make)
