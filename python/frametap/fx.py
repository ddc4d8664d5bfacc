"""A graph of frametap as a ``torch.fx.GraphModule``.

F1  The module computes the result of the graph: same ops, same order, in-place ops included. The
    thread state (grad mode, inference mode, autocast) is switched where the recording switched it
    and restored at the end.
F2  Every call carries ``stack_trace`` and ``nn_module_stack`` in the forms that torch itself uses, and
    ``val``, ``example_value``, ``tensor_meta`` if they were asked for and could be computed.
F3  The graph that was given is not changed, and the module does not refer to it.
F4  A tensor that the program makes of Python data, as ``torch.tensor`` does, is a new one at each run.
    The program may write to it, keep it or return it.

Not here: how a backend of TorchDynamo's kind is called (``_callable.py``).
"""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from keyword import iskeyword
from typing import Any

import torch
import torch.fx

from frametap import _C
from frametap._builtin_ops import BUILTIN_OPS, AssumptionFails, require_another, require_contiguous

__all__ = ["entry_state", "to_fx"]


def require_traced_sizes(tensor: torch.Tensor) -> bool:
    """Fails where a tracer takes a tensor that an op has resized to be as it was.

    Outside of a trace, and in one that sees the new sizes, nothing is required.
    """
    traced = sys.modules.get("torch._subclasses.functional_tensor")
    if traced is None or not isinstance(tensor, traced.FunctionalTensor):
        return True
    if tensor.elem.shape != tensor.shape:
        raise AssumptionFails("`out=` had the sizes of the result when this graph was recorded")
    return True


# Without effect where its result is unused, except for errors that it may raise.
_NUMBERS_ONLY = frozenset(BUILTIN_OPS.values()) - {
    operator.getitem,
    require_contiguous,
    require_another,
}

NUMBER_KINDS = frozenset({"int", "float", "bool"})

State = dict[str, Any]


def to_fx(
    graph: _C.Graph,
    level: str = "aten",
    *,
    examples: Sequence[Any] | None = None,
    fake: bool = True,
) -> torch.fx.GraphModule:
    """The graph as an fx module whose ``forward`` takes the graph's inputs and returns a tuple.

    Weights are inputs, too: ``graph.weights`` has the parameter or buffer of each input, or ``None`` for
    an argument of the call.

    ``fake``: fill ``meta["val"]`` by running the module on fake tensors, made from ``examples`` (the
    inputs' values) or else from the recorded types, contiguous.
    """
    if level != "aten":
        raise ValueError(f"to_fx: level must be 'aten', not {level!r}")
    if not isinstance(graph, _C.Graph):
        raise TypeError(
            f"to_fx: a graph expected, got {type(graph).__name__}; frametap.graph(f) gives the graph of a captured "
            "function, and each of frametap.segments(f) has one"
        )
    module = build(graph, {})
    if fake:
        _propagate(module, graph, examples)
    return module


def build(
    graph: _C.Graph,
    numbers: Mapping[_C.Value, Any],
    sizes: Mapping[_C.Value, tuple[_C.Value, int]] | None = None,
    left_out: Collection[_C.Value] = (),
    free: Collection[_C.Value] = (),
    as_tensors: Sequence[_C.Value] = (),
    *,
    again: Mapping[_C.Value, _C.Value] | None = None,
    traced: bool = False,
    runs: bool = False,
) -> torch.fx.GraphModule:
    """The module for the graph with the values in ``numbers`` replaced by plain numbers.

    Inputs, nodes and outputs that ``numbers`` covers do not appear in the module. Inputs in ``sizes``
    do not either: the module reads that size from the input. Outputs in ``left_out`` are not outputs.
    Numbers in ``free`` do not appear, except numbers in ``as_tensors``. These are arguments after the
    inputs, float64 tensors without dimensions (:func:`takes_tensor`). Inputs in ``again`` do not appear, because
    each has the tensor of an earlier input. ``traced``: for a compiler that traces the
    module. A fact that it would not see raises :class:`AssumptionFails`. ``runs``: the module runs as it is, and its
    tensors count writes as they do in plain Python.
    """
    builder = _Builder(graph, numbers, sizes or {}, free, as_tensors, again or {}, traced, runs)
    return builder.module({*numbers, *left_out})


def takes_tensor(node: _C.Node, value: _C.Value) -> bool:
    """Whether ``node`` gives the same bits if its float ``value`` is a float64 tensor without dimensions.

    Python's numbers count less for the result's dtype than such a tensor. That is the same beside a
    tensor of float32 or float64 that has dimensions.
    """
    args = node.args
    at = [i for i, arg in enumerate(args) if isinstance(arg, _C.Value) and arg == value]
    if len(at) != 1 or at[0] > 1 or not node.takes_float_tensor:
        return False
    other = args[1 - at[0]]
    is_tensor = isinstance(other, _C.Value) and other.kind == "tensor"
    return is_tensor and other.dtype in (torch.float32, torch.float64) and bool(other.shape)


def target_of(op: str) -> Callable[..., Any]:
    """``aten.add.Tensor`` -> ``torch.ops.aten.add.Tensor``; ``aten.relu`` -> its default overload."""
    if op in BUILTIN_OPS:
        return BUILTIN_OPS[op]
    namespace, name, *overload = op.split(".")
    packet = getattr(getattr(torch.ops, namespace), name)
    return getattr(packet, overload[0] if overload else "default")


def _as_text(target: Any) -> Callable[..., Any]:
    """The op, or a function that calls it where Python cannot read its name: ``torch.ops.aten.random_.from``.

    The code of an fx module names ops of torch by their path, and all else by globals of its own.
    """
    parts = [part for name in target.name().split("::") for part in name.split(".")]
    if all(part.isidentifier() and not iskeyword(part) for part in parts):
        return target
    return _caller_of(target)


@functools.cache
def _caller_of(target: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    call.__name__ = call.__qualname__ = _word(target.name())
    return call


@functools.cache
def _filling(target: Any) -> Callable[..., Any]:
    """Makes tensors as torch's own bindings do: filling a new one is not a write that its version counts."""
    write_counter = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(write_counter):
            return target(*args, **kwargs)

    call.__name__ = call.__qualname__ = _word(target.name())
    return call


@contextlib.contextmanager
def entry_state(state: State) -> Iterator[None]:
    """The thread state in which a graph begins; what was there before is put back afterwards."""
    with contextlib.ExitStack() as stack:
        if state["inference_mode"] != torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(state["inference_mode"]))
        stack.enter_context(torch.set_grad_enabled(state["grad_mode"]))
        if state["autocast_cpu"] or torch.is_autocast_enabled("cpu"):
            stack.enter_context(
                torch.autocast(
                    "cpu",
                    dtype=state["autocast_cpu_dtype"],
                    enabled=state["autocast_cpu"],
                    cache_enabled=state["autocast_cache"],
                )
            )
        yield


class _Builder:
    def __init__(
        self,
        graph: _C.Graph,
        numbers: Mapping[_C.Value, Any],
        sizes: Mapping[_C.Value, tuple[_C.Value, int]],
        free: Collection[_C.Value],
        as_tensors: Sequence[_C.Value],
        again: Mapping[_C.Value, _C.Value],
        traced: bool,
        runs: bool,
    ) -> None:
        self.graph = graph
        self.again = again
        self.traced = traced
        self.runs = runs
        self.sizes = sizes
        self.free = free
        self.as_tensors = as_tensors
        self.root = torch.nn.Module()
        self.fx = torch.fx.Graph()
        self.env: dict[_C.Value, Any] = dict(numbers)
        self.numbers = numbers
        self.constants: dict[_C.Value, torch.Tensor] = dict(graph.constants)
        self.attributes = 0
        self.may_raise: set[torch.fx.Node] = set()

    def module(self, left_out: Collection[_C.Value]) -> torch.fx.GraphModule:
        for value in self.graph.inputs:
            if value in self.again:
                self.env[value] = self.env[self.again[value]]
            elif value not in self.env and value not in self.sizes and value not in self.free:
                self.env[value] = self._placeholder(_identifier(value.name, "arg"))
        for i, value in enumerate(self.as_tensors):
            self.env[value] = self._placeholder(f"number{i}")
        # Asked for before any op can change them.
        for value, (tensor, dim) in self.sizes.items():
            if value not in self.env:
                asked = (self.env[tensor], dim)
                self.env[value] = self.fx.call_function(torch.ops.aten.sym_size.int, asked)
        states = _StateSwitches(self.fx, self.graph.entry_state)
        for node in self.graph.nodes:
            outputs = node.outputs
            if outputs and all(out in self.numbers or out in self.free for out in outputs):
                continue
            meta = _source_meta(node)
            if not node.is_scalar:
                states.switch_to(node.state, meta)
            self._call(node, outputs, meta)
        states.leave()
        for out in self.graph.outputs:
            self._make_constants(out, {})
        self.fx.output(tuple(self.env[out] for out in self.graph.outputs if out not in left_out))
        for call in reversed(self.fx.nodes):
            is_number = call.op == "call_function" and call.target in _NUMBERS_ONLY
            if is_number and not call.users and call not in self.may_raise:
                self.fx.erase_node(call)
        module = torch.fx.GraphModule(self.root, self.fx, class_name="FrametapGraph")
        module.graph.lint()
        return module

    def _placeholder(self, name: str) -> torch.fx.Node:
        """An argument of a name that no other has, and that Python accepts in a ``def``."""
        node = self.fx.placeholder(name + "_" * (name == "self"))
        node.target = node.name
        return node

    def _make_constants(self, arg: Any, meta: dict[str, Any]) -> None:
        """Copies a constant where it is first used (F4): the program makes it there, at each run."""
        if isinstance(arg, list):
            for item in arg:
                self._make_constants(item, meta)
        elif isinstance(arg, _C.Value) and arg in self.constants and arg not in self.env:
            kept = self._attribute(self.constants[arg], arg.name)
            copy = self.fx.call_function(torch.ops.aten.clone.default, (kept,))
            copy.meta.update(meta)
            self.env[arg] = copy

    def _call(self, node: _C.Node, outputs: list[_C.Value], meta: dict[str, Any]) -> None:
        op = node.op
        self._make_constants(node.args, meta)
        if node.takes_float_tensor and any(
            isinstance(arg, _C.Value) and arg in self.as_tensors for arg in node.args
        ):
            op = op.rpartition(".")[0] + ".Tensor"
        target = target_of(op)
        args = [self._arg(arg) for arg in node.args]
        kwargs: dict[str, Any] = {}
        if not node.is_scalar:
            args, kwargs = _call_form(target, args)
            target = _filling(target) if self.runs and node.is_factory else _as_text(target)
        if node.drops_out and _drops_nothing(*node.args):
            self.env[outputs[0]] = args[0]
            return
        if node.drops_out and self.traced and _drops_everything(*node.args):
            zero = self.fx.call_function(torch.ops.aten.new_zeros.default, (args[0], []))
            product = self.fx.call_function(torch.ops.aten.mul.Tensor, (args[0], zero))
            for made in (zero, product):
                made.meta.update(meta)
            self.env[outputs[0]] = product
            return
        name = _identifier(outputs[0].name, "") if len(outputs) == 1 else ""
        call = self.fx.create_node("call_function", target, tuple(args), kwargs, name=name or None)
        call.meta.update(meta)
        if node.may_raise:
            self.may_raise.add(call)
        if self.traced and not node.is_scalar:
            for out in _out_arguments(target_of(op), kwargs):
                self.fx.call_function(require_traced_sizes, (out,)).meta.update(meta)
        if len(outputs) == 1:
            self.env[outputs[0]] = call
            return
        for index, out in enumerate(outputs):
            item = self.fx.create_node(
                "call_function",
                operator.getitem,
                (call, index),
                name=_identifier(out.name, "") or None,
            )
            item.meta.update(meta)
            self.env[out] = item

    def _arg(self, arg: Any) -> Any:
        if isinstance(arg, _C.Value):
            return self.env[arg]
        if isinstance(arg, list):
            return [self._arg(item) for item in arg]
        if isinstance(arg, torch.Tensor | torch.Generator):
            return self._attribute(arg, "")
        return arg

    def _attribute(self, value: Any, name: str) -> torch.fx.Node:
        attribute = f"_constant{self.attributes}"
        if identifier := _identifier(name, ""):
            attribute += f"_{identifier}"
        self.attributes += 1
        if isinstance(value, torch.Tensor):
            self.root.register_buffer(attribute, value)
        else:
            setattr(self.root, attribute, value)
        return self.fx.get_attr(attribute)


class _StateSwitches:
    """Writes the calls that switch thread state between nodes, in the form that TorchDynamo uses."""

    def __init__(self, fx: torch.fx.Graph, entry: State) -> None:
        self.fx = fx
        self.entry = entry
        self.now = dict(entry)
        self.autocast: torch.fx.Node | None = None
        self.inference: torch.fx.Node | None = None
        self.grad_outside_inference = entry["grad_mode"]

    def switch_to(self, state: State, meta: dict[str, Any]) -> None:
        if state == self.now:
            return
        inference = state["inference_mode"] != self.now["inference_mode"]
        if inference or _autocast(state) != _autocast(self.now):
            self._leave_autocast()
        if inference:
            self._leave_inference()
            if state["inference_mode"] != self.entry["inference_mode"]:
                self._enter_inference(state["inference_mode"], meta)
        if _autocast(state) != _autocast(self.now):
            self._enter_autocast(state, meta)
        if state["grad_mode"] != self.now["grad_mode"]:
            self._emit(torch._C._set_grad_enabled, (state["grad_mode"],), meta)
        self.now = dict(state)

    def leave(self) -> None:
        self.switch_to(self.entry, {})

    def _enter_autocast(self, state: State, meta: dict[str, Any]) -> None:
        enabled, dtype, cache = _autocast(state)
        self.autocast = self._emit(
            torch.amp.autocast_mode._enter_autocast, ("cpu", dtype, enabled, cache), meta
        )

    def _leave_autocast(self) -> None:
        if self.autocast is not None:
            self._emit(torch.amp.autocast_mode._exit_autocast, (self.autocast,), {})
            self.autocast = None
            for key in ("autocast_cpu", "autocast_cpu_dtype", "autocast_cache"):
                self.now[key] = self.entry[key]

    def _enter_inference(self, enabled: bool, meta: dict[str, Any]) -> None:
        self.grad_outside_inference = self.now["grad_mode"]
        self.inference = self._emit(
            torch.autograd.grad_mode._enter_inference_mode, (enabled,), meta
        )
        # Inference mode switches gradients with it, and leaving it puts back what was there.
        self.now["grad_mode"] = not enabled
        self.now["inference_mode"] = enabled

    def _leave_inference(self) -> None:
        if self.inference is not None:
            self._emit(torch.autograd.grad_mode._exit_inference_mode, (self.inference,), {})
            self.inference = None
            self.now["grad_mode"] = self.grad_outside_inference
            self.now["inference_mode"] = self.entry["inference_mode"]

    def _emit(self, target: Any, args: tuple[Any, ...], meta: dict[str, Any]) -> torch.fx.Node:
        node = self.fx.call_function(target, args)
        node.meta.update(meta)
        return node


def _autocast(state: State) -> tuple[bool, torch.dtype, bool]:
    return state["autocast_cpu"], state["autocast_cpu_dtype"], state["autocast_cache"]


def _identifier(name: str, fallback: str) -> str:
    """``h`` for a name that the user gave, ``in_`` for a keyword; the fallback for a number (``0``)."""
    if not name[:1].isidentifier():
        return fallback
    return _word(name) + "_" * iskeyword(name)


def _word(name: str) -> str:
    """Returns the name with ``_`` for characters that no identifier has."""
    return "".join(c if f"a{c}".isidentifier() else "_" for c in name)


def _call_form(target: Any, args: list[Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as a person writes the call: keyword-only ones by name, defaults left out."""
    positional: list[Any] = []
    keyword: dict[str, Any] = {}
    schema = target._schema.arguments
    for argument, value in zip(schema, args, strict=True):
        if not argument.kwarg_only:
            positional.append(value)
        elif not _is_default(argument, value):
            keyword[argument.name] = value
    while positional and _is_default(schema[len(positional) - 1], positional[-1]):
        positional.pop()
    return positional, keyword


def _out_arguments(target: Any, keyword: dict[str, Any]) -> Iterator[torch.fx.Node]:
    """The tensors that are passed as ``out=`` or by the name that the op has for it."""
    for argument in target._schema.arguments:
        if argument.is_out:
            given = keyword[argument.name]
            yield from given if isinstance(given, list) else [given]


def _drops_nothing(_: Any, p: Any, train: Any) -> bool:
    """Gives its argument back, where AOTAutograd's own form of dropout makes a copy."""
    return train is False or (isinstance(p, int | float) and p == 0)


def _drops_everything(_: Any, p: Any, train: Any) -> bool:
    """Draws no random numbers, where AOTAutograd's own form of dropout does."""
    return train is True and isinstance(p, int | float) and p == 1


def _is_default(argument: Any, value: Any) -> bool:
    if not argument.has_default_value():
        return False
    default = argument.default_value
    if isinstance(value, float) and isinstance(default, float):
        return value.hex() == default.hex()  # distinguishes -0.0 from 0.0
    return type(value) is type(default) and value == default


def _source_meta(node: _C.Node) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    if (trace := node.stack_trace) is not None:
        meta["stack_trace"] = trace
    if scope := node.scope:
        meta["nn_module_stack"] = OrderedDict(
            (path, (path, _class_object(klass))) for path, klass in scope
        )
    return meta


def _class_object(name: str) -> Any:
    """The class of this qualified name if its module is loaded, else the name."""
    module, _, qualname = name.rpartition(".")
    found: Any = sys.modules.get(module)
    found = getattr(found, qualname, None)
    return found if isinstance(found, type) else name


# -- fake values --

_UNKNOWN = object()


def _propagate(
    module: torch.fx.GraphModule, graph: _C.Graph, examples: Sequence[Any] | None
) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    if examples is None:
        inputs = [_fake_of_type(value, mode) for value in graph.inputs]
    else:
        inputs = [mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in examples]
    with entry_state(graph.entry_state), mode:
        _FakeValues(module).run(*inputs)


def _fake_of_type(value: _C.Value, mode: Any) -> Any:
    if value.kind != "tensor" or None in value.shape:
        return _UNKNOWN
    with mode:
        floating = value.dtype.is_floating_point or value.dtype.is_complex
        return torch.empty(
            value.shape,
            dtype=value.dtype,
            device=value.device,
            requires_grad=value.requires_grad and floating,
        )


class _FakeValues(torch.fx.Interpreter):
    """Fills ``meta`` where the value is known without data, and leaves it empty elsewhere."""

    def run_node(self, n: torch.fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        if n.op == "output" or any(leaf is _UNKNOWN for leaf in leaves):
            return _UNKNOWN
        try:
            result = super().run_node(n)
        except Exception:  # noqa: BLE001  data-dependent, or an op without a rule for fake tensors
            return _UNKNOWN
        if n.target not in _STATE_CALLS and result is not _UNKNOWN:
            n.meta["val"] = n.meta["example_value"] = result
            if isinstance(result, torch.Tensor):
                from torch.fx.passes.shape_prop import _extract_tensor_metadata

                n.meta["tensor_meta"] = _extract_tensor_metadata(result)
        return result


_STATE_CALLS = frozenset(
    {
        torch._C._set_grad_enabled,
        torch.amp.autocast_mode._enter_autocast,
        torch.amp.autocast_mode._exit_autocast,
        torch.autograd.grad_mode._enter_inference_mode,
        torch.autograd.grad_mode._exit_inference_mode,
    }
)
