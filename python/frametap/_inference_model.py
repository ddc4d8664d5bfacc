"""The base of the models that :func:`frametap.quantize` and :func:`frametap.freeze` return.

R1  A call runs the converted graphs, whatever the thread's grad mode, autocast, tracer or compiler is.
R3  Uses that would lose the conversion in silence (export, copies, dtypes, state dicts) are refused.

Not here: R2, which says when a part of a call was not converted (``_quantized_model.py``, ``_freeze.py``).
"""

from __future__ import annotations

import copy
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch

from frametap import _C
from frametap._batches import Batch, copied, tensors
from frametap._compile import CompiledModule, compile_with, compiled_of
from frametap._decomposed import take_decomposed
from frametap._errors import FrametapError, FrametapWarning
from frametap._exported import leave_dynamo_settings_out
from frametap._model_state import ModelState

__all__ = ["InferenceModel", "captured_copy", "outside", "run_batch", "under_torch_compile"]


def run_batch(model: Any, batch: Batch) -> Any:
    """Calls the model with copies, since the program may write to its arguments.

    A recording is dropped for work of a first call: an import, or a cache that is filled. After it, the same call can be
    captured, and is made again.
    """
    compiled = compiled_of(model, "run_batch")

    def put_off() -> int:
        return sum(row["kind"] == "abort" and row["once"] for row in _C.log(compiled))

    def call() -> Any:
        args, kwargs = copied(batch)
        return model(*args, **kwargs)

    before = put_off()
    result = call()
    return call() if put_off() > before else result


class InferenceModel(torch.nn.Module):
    """A model in another form for inference. It is called as the original was.

    Calls run without gradients, in eval mode, and without autocast: under autocast, inputs in half precision are
    taken as float32. Debuggers, profilers and coverage do not see into a call, as with code in C.
    """

    # For texts of errors.
    _kind = "converted"  # "a quantized model …"
    _verb = "convert"  # the function that made it
    _original_name = "the original"
    _weights_name = "its weights"
    _instead = "{} the original instead"
    _error: type[FrametapError] = FrametapError

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.training = False
        self.__dict__["_model"] = model  # no submodule: its float weights are not this model's
        self._frametap = compiled_of(model, self._verb)
        owner = self._frametap.__self__
        parameters = list(owner.parameters()) if isinstance(owner, torch.nn.Module) else []
        backend = _C.settings(self._frametap)["backend"]
        freezes = backend if isinstance(backend, _C.FreezeBackend) else None
        self._calls = _C.InferenceCalls(parameters, freezes)
        _C.answer_calls(type(self))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        _C.answer_calls(type(self))
        if torch.compiler.is_exporting() or torch.jit.is_tracing() or _has_proxy(args, kwargs):
            self._refuse(
                "cannot be exported or traced: the program would be the float one", "export"
            )
        if torch.is_autocast_enabled("cpu"):
            args, kwargs = _in_float32(args), _in_float32(kwargs)
            with torch.autocast("cpu", enabled=False):
                result, problem = _C.call_converted(self._frametap, self._calls, args, kwargs)
        else:
            result, problem = _C.call_converted(self._frametap, self._calls, args, kwargs)
        if problem is not None:
            self._end_call(problem)
        return result

    # torch.compile calls it as it is.
    forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    forward._torchdynamo_disable_msg = "a quantized model or a frozen one of frametap"  # type: ignore[attr-defined]

    def _end_call(self, problem: dict[str, Any]) -> None:
        """Ends a call that did not run in converted graphs throughout."""
        if problem["modes"] and _is_traced_below():
            self._refuse("cannot be traced: the program would be the float one", "trace")
        if problem["modes"] and _is_differentiated():
            self._refuse("has no gradients: torch.func would give zeros", "differentiate")
        self._note_call(problem)

    def _note_call(self, problem: dict[str, Any]) -> None:
        """R2. `problem`: what the call did not run in converted graphs."""

    # -- R3 --

    def _refuse(self, text: str, verb: str) -> NoReturn:
        raise self._error(f"a {self._kind} model {text}; {self._instead.format(verb)}")

    def train(self, mode: bool = True) -> Any:
        if mode and not _is_part_of_the_caller(self):
            raise self._error(
                f"train: a {self._kind} model has no gradients; train {self._original_name}, then "
                f"{self._verb} again"
            )
        return self

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if torch.onnx.is_in_onnx_export():
            self._refuse(
                f"cannot be exported to ONNX: {self._weights_name} are in no state dict", "export"
            )
        if not args and kwargs.get("destination") is None:
            raise self._error(
                f"state_dict: {self._weights_name} are in no state dict; "
                + self._instead.format("take the state dict of")
            )
        warnings.warn(
            f"the state dict of a module leaves out the {self._kind} model in it; use frametap.save for that",
            FrametapWarning,
            stacklevel=outside(globals()),
        )
        return super().state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise self._error(
            f"load_state_dict: {self._weights_name} are fixed; load them into {self._original_name} and "
            f"{self._verb} that"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        probe = torch.empty(1)
        moved = fn(probe)
        if moved.dtype != probe.dtype or moved.device != probe.device:
            raise self._error(
                f"to: a {self._kind} model runs on {probe.device} and takes {probe.dtype}, not {moved.device} and "
                f"{moved.dtype}; move or convert {self._original_name} instead"
            )
        return self

    def __prepare_scriptable__(self) -> Any:
        self._refuse("cannot be scripted by torch.jit", "script")

    def __reduce_ex__(self, protocol: Any) -> Any:  # of copy, deepcopy and pickle
        raise self._error(
            f"a {self._kind} model cannot be copied or pickled; use frametap.save for that"
        )

    def _name_of_original(self) -> str:
        original = self._frametap.__self__
        return (
            self._frametap._function.__qualname__ if original is None else type(original).__name__
        )


_C.set_own_executable(InferenceModel.forward.__code__)
# torch.compile is not to look at it even where it is called for itself.
_dynamo = torch._C._dynamo.eval_frame
_dynamo.set_code_exec_strategy(
    InferenceModel.forward.__code__,
    _dynamo._FrameExecStrategy(_dynamo._FrameAction.SKIP, _dynamo._FrameAction.SKIP),
)


def run_by_python(problem: dict[str, Any]) -> str | None:
    """The part of a call that plain Python ran, in words; None if all of it ran in graphs."""
    if problem["modes"]:
        return f"plain Python runs {problem['modes']}"
    if problem["plain_layer"]:
        return (
            f"plain Python ran {problem['plain_layer']}, outside of all graphs; "
            "report_text() and frametap.explain name the places where graphs end"
        )
    return None


def captured_copy(
    model: Any,
    who: str,
    error: type[FrametapError],
    make_backend: Callable[[torch.nn.Module | None], _C.Backend],
) -> tuple[Any, torch.nn.Module | None, ModelState]:
    """The captured object, the module that it belongs to, and the state of that.

    If a module or a method was given, the module is a deep copy in eval mode.

    `who`: the function that asks, for errors.
    """
    model = under_torch_compile(model)
    if isinstance(model, CompiledModule):
        model = type(model)._orig_mod
    if isinstance(model, InferenceModel):
        raise error(f"{who}: the model is {model._kind} already; pass {model._original_name}")
    owner = model if isinstance(model, torch.nn.Module) else getattr(model, "__self__", None)
    if not isinstance(owner, torch.nn.Module):
        if not callable(model) or isinstance(model, type):
            raise error(
                f"{who}: a torch.nn.Module or a function expected, got {type(model).__name__} "
                f"{model!r:.60}"
            )
        return _compiled(model, make_backend(None)), None, ModelState(None)
    for name, tensor in itertools.chain(owner.named_parameters(), owner.named_buffers()):
        if tensor.device.type != "cpu":
            raise error(
                f"{who}: {name} of {type(owner).__name__} is on the device {tensor.device}; frametap computes on the "
                "CPU: load the weights there, or move the model with .to('cpu')"
            )
    memo = {id(tensor): tensor.detach().clone() for tensor in _computed_tensors(owner)}
    try:
        twin = copy.deepcopy(owner, memo).eval()
    except Exception as cause:
        raise error(
            f"{who}: {type(owner).__name__} cannot be copied ({type(cause).__name__}: {cause}); "
            "the copy is what gets converted, so that the model itself stays as it is"
        ) from cause
    take_decomposed(twin)
    leave_dynamo_settings_out(twin)
    backend = make_backend(twin)
    state = ModelState(twin, {id(made) for made in memo.values()})
    method = getattr(model, "__func__", None)  # of the module, if that was given
    if model is owner:
        method = getattr(type(twin), "forward", None)
        if not isinstance(method, _C.CompiledFunction) and not _is_plain_fx(twin):
            return _compiled(twin, backend), twin, state
    if isinstance(method, _C.CompiledFunction):  # @frametap.compile stands over it
        method = method._function
    return _compiled(types.MethodType(method, twin), backend), twin, state


def under_torch_compile(model: Any) -> Any:
    """The module, method or function that was given to torch.compile, or `model` itself."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # which torch imports when it is needed
    if dynamo is None:
        return model
    if isinstance(model, dynamo.OptimizedModule):
        return model._orig_mod
    if isinstance(model, types.MethodType):  # of a class that has it under torch.compile
        return types.MethodType(dynamo.innermost_fn(model.__func__), model.__self__)
    return dynamo.innermost_fn(model) if isinstance(model, types.FunctionType) else model


def _computed_tensors(owner: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Those in attributes that torch does not copy, because they have a history: hidden states, old weight norms."""
    for module in owner.modules():
        for holder in (vars(module), module._buffers):
            for value in tensors(list(holder.values())):
                if not value.is_leaf:
                    yield value


def _is_plain_fx(module: torch.nn.Module) -> bool:
    """Returns whether `forward` is all that a call of a ``torch.fx.GraphModule`` runs.

    Its class has a ``__call__`` of its own, which shows the generated line where an error was raised. A file cannot
    hold it, and graphs that begin at `forward` can be saved.
    """
    return isinstance(module, torch.fx.GraphModule) and not any(
        vars(module).get(hooks)
        for hooks in (
            "_forward_hooks",
            "_forward_pre_hooks",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
    )


def _compiled(model: Any, backend: _C.Backend) -> Any:
    """A converted graph has its weights in it: no two layers share one."""
    return compile_with(
        model,
        backend=backend,
        fullgraph=False,
        dynamic=None,
        segment_limit=64,
        by_identity=True,
        answers_by_replay=True,
    )


def _is_part_of_the_caller(model: torch.nn.Module) -> bool:
    """Returns whether the method of a module around the model has called a method of the same name of the model."""
    frame = sys._getframe(2)
    return (
        frame.f_code is torch.nn.Module.train.__code__ and frame.f_locals.get("self") is not model
    )


def _has_proxy(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether torch.fx.symbolic_trace is the caller, which may give one proxy for all."""
    # Loops, because a generator would take longer than all other checks of a call.
    proxy = torch.fx.Proxy
    if isinstance(args, proxy) or isinstance(kwargs, proxy):
        return True
    for value in args:
        if isinstance(value, proxy):
            return True
    for value in kwargs.values():
        if isinstance(value, proxy):
            return True
    return False


def _is_traced_below() -> bool:
    """By make_fx and what is built on it, which see the ops of plain Python."""
    key = torch._C._TorchDispatchModeKey
    return any(
        torch._C._get_dispatch_mode(mode) is not None for mode in (key.PROXY, key.FUNCTIONAL)
    )


def _is_differentiated() -> bool:
    """By torch.func.grad and what is built on it. Derivatives of the other mode pass through plain Python."""
    functorch = torch._C._functorch
    top = functorch.peek_interpreter_stack()
    return top is not None and top.key() == functorch.TransformType.Grad


def _in_float32(value: Any) -> Any:
    """With floating-point tensors as float32, as torch.amp.custom_fwd casts them."""
    if isinstance(value, torch.Tensor):
        return (
            value.float() if value.is_floating_point() and value.dtype != torch.float64 else value
        )
    if isinstance(value, dict) and type(value) is dict:
        return {key: _in_float32(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_in_float32(item) for item in value)
    return value


def outside(variables: dict[str, Any]) -> int:
    """The level of the frame that called the model, for warnings. `variables`: the module of the code that warns."""
    inside = (variables, globals(), vars(torch.nn.modules.module))
    level, frame = 1, sys._getframe(1)
    while frame is not None and any(frame.f_globals is known for known in inside):
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    return level
