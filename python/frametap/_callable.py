"""Backends that are Python functions ``(GraphModule, example_inputs) -> callable``.

P1  A compiled form is called only with inputs for which it was made. With ``static``, there is one
    variant for each set of numbers that reach tensor ops. Where the graph writes to a tensor, there
    is also one for each way in which inputs share memory. Guards check sizes, strides and dtypes.
P2  Numbers that only give other numbers (a counter) are computed in Python and make no variants.
P3  For inputs whose sizes are open, variants are made for symbols, each with the conditions under
    which it may be used. If the backend cannot compile for symbols, variants are made for the exact
    sizes. Open floats are passed as tensors if the ops give equal results (``fx.takes_tensor``),
    and are constants of a variant elsewhere.
P4  More than ``MAX_VARIANTS``: further ones run as the plain module, with a warning in the log.

Not here: backends by name (``_backend_names.py``), the graph module (``fx.py``), its numbers (``_graph_numbers.py``), the
symbols (``_symbolic.py``), conversion of values (``backends/callable``).
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from frametap import _C, fx
from frametap._builtin_ops import AssumptionFails
from frametap._errors import BackendError, could_not_compile
from frametap._graph_numbers import GraphNumbers, number_key, tensor_of
from frametap._records import counted
from frametap._second_derivatives import allow_second_derivatives
from frametap._symbolic import Condition, Symbols

__all__ = ["MAX_VARIANTS", "CompilerFn", "Program"]

MAX_VARIANTS = 8

CompilerFn = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]

log = logging.getLogger("frametap")

_own_lock = threading.RLock()


@contextlib.contextmanager
def _one_compilation() -> Iterator[None]:
    """Holds the lock for compilations, which torch.compile takes as well.

    torch's tracers keep state of the process (``CURRENT_PATCHER`` of torch.fx, in torch 2.13), and turn anomaly mode on
    for all threads.
    """
    module = sys.modules.get("torch._dynamo.convert_frame")
    with getattr(module, "compile_lock", _own_lock):
        _C.begin_compilation()
        try:
            yield
        finally:
            _C.end_compilation()


@contextlib.contextmanager
def _exact_results() -> Iterator[None]:
    """Settings under which torch's compilers do what eager does where they would not by default."""
    import torch._functorch.config

    inductor = sys.modules.get("torch._inductor.config")
    with (
        # The random numbers of eager mode, not of a generator of inductor's own.
        inductor.patch(fallback_random=True) if inductor else contextlib.nullcontext(),
        # Else a second backward through the same graph is refused.
        torch._functorch.config.patch(donated_buffer=False),
        # Plain Python computes gradients without autocast, even if the graph begins in a block of autocast.
        torch._functorch.config.patch(backward_pass_autocast="off"),
    ):
        yield


def _is_of_tracer(error: BaseException) -> bool:
    """Whether AOTAutograd failed on the ops of the graph, before it called the compiler below it (torch 2.13)."""
    tracer = sys.modules.get("torch._functorch._aot_autograd.graph_compile")
    if tracer is None:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    entry = vars(sys.modules["torch._functorch.aot_autograd"])
    calls = {tracer._aot_stage2b_compile_forward_or_inference, tracer._aot_stage2b_bw_compile}
    below = {function.__code__ for function in calls}
    in_tracer = any(frame.f_globals is entry for frame in frames)
    return in_tracer and not any(frame.f_code in below for frame in frames)


class Program:
    """A graph for one such backend; called with the graph's inputs, gives the graph's outputs.

    ``is_open`` says for each input whether its sizes, strides or number may differ from call to
    call. If it is empty, none may. ``sizes``: (input, tensor, dim) for a number that is a size of another input.
    """

    def __init__(
        self,
        graph: _C.Graph,
        function: CompilerFn,
        name: str,
        static: bool,
        is_open: Sequence[bool] = (),
        sizes: Sequence[tuple[int, int, int]] = (),
    ) -> None:
        inputs = list(graph.inputs)
        self._graph = graph
        self._graph_inputs = inputs
        self._is_open = list(is_open)
        self._sizes = {inputs[i]: (inputs[tensor], dim) for i, tensor, dim in sizes}
        self._open_variants: list[_OpenVariant] = []
        self._function = function
        self._name = name
        self._outputs = list(graph.outputs)
        self._numbers = GraphNumbers(graph) if static else None
        self._watch_aliases = static and any(node.writes for node in graph.nodes)
        self._writes_lists = self._watch_aliases and any(map(_writes_list, graph.nodes))
        host = self._numbers.values if self._numbers else frozenset()
        self._passed = [i for i, value in enumerate(graph.inputs) if value not in host]
        self._given = [value for value in self._outputs if value not in host]
        self._variants: dict[Hashable, _Variant] = {}
        # If all inputs are tensors and no two of them need to be distinguished, one compiled form
        # serves all calls.
        self._needs_one_form = not (self._is_open or host or self._watch_aliases)
        self._one_form: Callable[..., Any] | None = None
        self._may_run_again = static and all(node.is_pure for node in graph.nodes)
        self._plain: torch.fx.GraphModule | None = None
        self._has_warned = False
        # A graph that cannot be shown to the backend is an error now, not at the first run.
        fx.build(graph, {})

    def prepare(self, examples: Sequence[Any]) -> None:
        """Compiles for these inputs."""
        if self._writes_lists and _C.may_overlap(examples):
            return
        if self._is_open:
            self._find_open(examples)
            return
        self._find(examples, self._evaluate(examples))

    def __call__(self, *inputs: Any) -> list[Any]:
        if self._numbers and _saving_is_watched():
            return self.run_plain(*inputs)
        results = self._run(inputs)
        if self._may_run_again and torch.is_grad_enabled():
            allow_second_derivatives(results, inputs, self._run_again)
        return results

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        if self._one_form is not None:
            return self._checked(self._one_form(*inputs))
        if self._writes_lists and _C.may_overlap(inputs):
            return self.run_plain(*inputs)  # a compiler computes all results of such an op first
        if self._is_open:
            return self._run_open(inputs)
        numbers = self._evaluate(inputs)
        variant = self._find(inputs, numbers)
        if variant is None:
            return self.run_plain(*inputs)
        results = self._checked(variant.run(*(inputs[i] for i in variant.passed)))
        return self._with_numbers(results, numbers)

    def _with_numbers(self, results: list[Any], numbers: dict[_C.Value, Any]) -> list[Any]:
        if len(results) == len(self._outputs):
            return results
        rest = iter(results)
        return [numbers[out] if out in numbers else next(rest) for out in self._outputs]

    # -- open sizes --

    def _run_open(self, inputs: Sequence[Any]) -> list[Any]:
        variant = self._find_open(inputs)
        if variant is None:
            return self.run_plain(*inputs)
        has_numbers = bool(variant.as_tensors) or len(self._given) < len(self._outputs)
        numbers = self._evaluate(inputs) if has_numbers else {}
        tensors = (tensor_of(numbers[value]) for value in variant.as_tensors)
        results = self._checked(variant.run(*(inputs[i] for i in variant.passed), *tensors))
        return self._with_numbers(results, numbers)

    def _find_open(self, inputs: Sequence[Any]) -> _OpenVariant | None:
        shared = _alias_key(inputs) if self._watch_aliases else ()
        for variant in self._open_variants:
            if variant.shared == shared and variant.fits(inputs):
                return variant
        if len(self._open_variants) >= MAX_VARIANTS:
            self._warn_once()
            return None
        variant = self._compile_open(inputs, shared)
        self._open_variants.append(variant)
        return variant

    def _compile_open(self, inputs: Sequence[Any], shared: Hashable) -> _OpenVariant:
        try:
            symbols = Symbols(inputs, self._is_open)
            with symbols.tracing():
                variant = self._make_open(symbols.values, inputs, shared, symbols.fixed)
            return variant.under(symbols.condition())
        except AssumptionFails:
            raise
        except Exception as error:  # noqa: BLE001  of the backend, or of torch's symbols; the sizes are plain below
            log.warning("%s. It is compiled for these sizes alone.", error)
        variant = self._make_open(inputs, inputs, shared, lambda tensor: tensor)
        return variant.under(_same_as(inputs, self._is_open))

    def _make_open(
        self,
        inputs: Sequence[Any],
        examples: Sequence[Any],
        shared: Hashable,
        fake: Callable[[torch.Tensor], torch.Tensor],
    ) -> _OpenVariant:
        """For symbols, or for the sizes of these inputs; plain numbers become constants of the module.

        ``examples``: the values of the symbols. ``fake``: for tensors that are passed beside the
        inputs.
        """
        values = self._graph_inputs
        again = self._given_again(examples)
        is_open = {value for value, open_ in zip(values, self._is_open, strict=True) if open_}
        free, as_tensors = self._numbers.free_floats(is_open)
        baked = {
            i: inputs[i]
            for i, value in enumerate(values)
            if value.kind in fx.NUMBER_KINDS
            and value not in self._sizes
            and value not in free
            and not isinstance(inputs[i], torch.SymInt)
        }
        numbers = self._numbers.evaluate_from({values[i]: n for i, n in baked.items()})
        module = fx.build(
            self._graph,
            numbers,
            self._sizes,
            self._numbers.values,
            free,
            as_tensors,
            again=again,
            traced=True,
        )
        passed = [
            i
            for i, value in enumerate(values)
            if i not in baked
            and value not in self._sizes
            and value not in free
            and value not in again
        ]
        floats = self._evaluate(examples) if as_tensors else {}
        tensors = [fake(tensor_of(floats[value])) for value in as_tensors]
        may_run = inputs is examples
        given = [*(inputs[i] for i in passed), *tensors]
        run = self._call_backend(module, given, may_run, may_run and bool(shared))
        keys = {i: number_key(n) for i, n in baked.items()}
        return _OpenVariant(run, passed, as_tensors, keys, shared)

    # -- fixed sizes --

    def leave_modes(self, error: BaseException | None) -> None:
        """Leaves inference modes that the frames of a failed run have entered: each is left by the end of an object."""
        seen: set[int] = set()
        open_errors = [error]
        while open_errors:
            error = open_errors.pop()
            # Causes and contexts can form a circle: `raise part from whole`, where the part caused the whole.
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            open_errors += [error.__context__, error.__cause__]
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
            for frame in reversed(frames):
                for value in frame.f_locals.values():
                    if type(value) is torch._C._InferenceMode:
                        value.__exit__(None, None, None)

    def refuse_result(self, index: int, why: str) -> None:
        value = self._outputs[index]
        raise BackendError(
            f"the backend {self._name!r} gave a wrong result {index} (%{value.name}): {why}; "
            "the callable it returns must give what the graph module gives"
        )

    def refuse_writes(self, error: BaseException) -> None:
        raise BackendError(
            f"the backend {self._name!r} raised {type(error).__name__}: {error}, after it had written to an input that "
            "the graph only reads; the call cannot be made again in plain Python, and that input is changed"
        ) from error

    def _evaluate(self, inputs: Sequence[Any]) -> dict[_C.Value, Any]:
        return self._numbers.evaluate(inputs) if self._numbers else {}

    def _find(self, inputs: Sequence[Any], numbers: dict[_C.Value, Any]) -> _Variant | None:
        key = self._key(inputs, numbers)
        variant = self._variants.get(key)
        if variant is None:
            if len(self._variants) >= MAX_VARIANTS:
                self._warn_once()
                return None
            variant = self._variants[key] = self._compile(inputs, numbers)
            if self._needs_one_form:
                self._one_form = variant.run
        return variant

    def _key(self, inputs: Sequence[Any], numbers: dict[_C.Value, Any]) -> Hashable:
        baked = self._numbers.baked if self._numbers else ()
        return (
            tuple(number_key(numbers[value]) for value in baked),
            _alias_key(inputs) if self._watch_aliases else (),
        )

    def _compile(self, inputs: Sequence[Any], numbers: dict[_C.Value, Any]) -> _Variant:
        again = self._given_again(inputs)
        traced = self._numbers is not None
        module = fx.build(self._graph, numbers, again=again, traced=traced, runs=not traced)
        passed = [i for i in self._passed if self._graph_inputs[i] not in again]
        shares = self._watch_aliases and bool(_alias_key(inputs))
        return _Variant(
            self._call_backend(module, [inputs[i] for i in passed], True, shares), passed
        )

    def _given_again(self, inputs: Sequence[Any]) -> dict[_C.Value, _C.Value]:
        """The inputs that are the tensor of an earlier input, where the graph writes to tensors.

        AOTAutograd fails if such a tensor is passed twice (torch 2.13).
        """
        if not self._watch_aliases:
            return {}
        values = self._graph_inputs
        return {values[i]: values[first] for i, _, first, *_ in _alias_key(inputs) if first != i}

    def _call_backend(
        self, module: torch.fx.GraphModule, examples: list[Any], may_run: bool, shares: bool
    ) -> Callable[..., Any]:
        """Compiles a module. ``may_run``: it runs uncompiled where AOTAutograd cannot trace it.

        ``shares``: the graph writes to tensors, and inputs share memory. Not every compiler can do that.
        """
        try:
            with _one_compilation(), _exact_results(), fx.entry_state(self._graph.entry_state):
                compiled = self._function(module, examples)
        except Exception as error:
            if (fails := _assumption_in(error)) is not None:
                raise fails from error
            if shares:
                log.warning(
                    "backend %r: %s. The graph runs uncompiled where its inputs share memory.",
                    self._name,
                    error,
                )
                return module
            if may_run and _is_of_tracer(error):
                told = f"{type(error).__name__}: {error}"
                log.warning("backend %r: %s. The graph runs uncompiled.", self._name, told)
                return module
            raise BackendError(could_not_compile(self._name, error)) from error
        if not callable(compiled):
            raise BackendError(
                f"the backend {self._name!r} returned {type(compiled).__name__}; "
                "it must return a callable that takes the graph's inputs"
            )
        return compiled

    def _checked(self, results: Any) -> list[Any]:
        is_row = isinstance(results, tuple | list)
        given = list(results) if is_row else [results]
        if len(given) != len(self._given):
            names = ", ".join(f"%{value.name}" for value in self._given)
            raise BackendError(
                f"the backend {self._name!r} gave {counted(len(given), 'result') if is_row else 'one result'}, the "
                f"graph has {len(self._given)}: {names}; the callable that it returns must give a tuple with one "
                "value for each"
            )
        return given

    def run_plain(self, *inputs: Any) -> list[Any]:
        """Runs the graph op by op, for inputs that no compiled form takes."""
        return list(self._plain_module()(*inputs))

    def _run_again(self, *inputs: Any) -> list[Any]:
        with fx.entry_state(self._graph.entry_state):
            return self.run_plain(*inputs)

    def _plain_module(self) -> torch.fx.GraphModule:
        if self._plain is None:
            self._plain = fx.build(self._graph, {}, runs=True)
        return self._plain

    def _warn_once(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "backend %r: a graph was compiled for %d sets of numbers or shared inputs; further "
                "ones run uncompiled. Pass numbers that change often as tensors.",
                self._name,
                MAX_VARIANTS,
            )


class _Variant(NamedTuple):
    """The form compiled for fixed sizes, and the inputs that it takes."""

    run: Callable[..., Any]
    passed: list[int]


class _OpenVariant:
    """The form compiled for symbols, and the conditions for its use."""

    def __init__(
        self,
        run: Callable[..., Any],
        passed: list[int],
        as_tensors: list[_C.Value],
        baked: dict[int, Hashable],
        shared: Hashable,
    ) -> None:
        self.run = run
        self.passed = passed
        self.as_tensors = as_tensors
        self.shared = shared
        self._baked = baked
        self._condition: Condition = lambda inputs: True

    def under(self, condition: Condition) -> _OpenVariant:
        self._condition = condition
        return self

    def fits(self, inputs: Sequence[Any]) -> bool:
        for index, key in self._baked.items():
            if number_key(inputs[index]) != key:
                return False
        return self._condition(inputs)


def _saving_is_watched() -> bool:
    """Whether hooks compare the tensors that ops save, as the forward pass of ``torch.utils.checkpoint`` does.

    A compiled form saves other tensors than the ops of the graph, which Python runs in the recomputation.
    """
    return torch.is_grad_enabled() and _top_hooks(False) is not None


_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks


def _assumption_in(error: BaseException | None) -> AssumptionFails | None:
    """Compilers put what is raised while they trace into exceptions of their own."""
    while error is not None and not isinstance(error, AssumptionFails):
        error = error.__cause__ or error.__context__
    return error


def _same_as(inputs: Sequence[Any], is_open: Sequence[bool]) -> Condition:
    """Whether the tensors that are open have the very sizes and strides of these."""

    def form(values: Sequence[Any]) -> list[Any]:
        return [
            (value.size(), value.stride(), value.storage_offset())
            for value, open_ in zip(values, is_open, strict=True)
            if open_ and isinstance(value, torch.Tensor)
        ]

    wanted = form(inputs)
    return lambda values: form(values) == wanted


def _writes_list(node: _C.Node) -> bool:
    """Whether the op writes to tensors of a list, one after the other."""
    if not node.writes:
        return False
    arguments = fx.target_of(node.op)._schema.arguments
    return any(a.alias_info and a.alias_info.is_write and "List" in str(a.type) for a in arguments)


def _alias_key(inputs: Sequence[Any]) -> tuple[tuple[int, ...], ...]:
    """Returns the tensors that share memory with an earlier input, the owner.

    An entry has the index of the tensor, the index of the owner, the first index that has the same tensor, and the
    offsets of both.
    """
    first: dict[int, int] = {}
    first_place: dict[int, int] = {}
    shared = []
    for index, tensor in enumerate(inputs):
        if not isinstance(tensor, torch.Tensor):
            continue
        try:
            storage = tensor.untyped_storage()._cdata
        except (RuntimeError, NotImplementedError):  # sparse tensors have none
            storage = id(tensor)
        owner = first.setdefault(storage, index)
        if owner != index:
            other = inputs[owner]
            offsets = tensor.storage_offset(), other.storage_offset()
            shared.append((index, owner, first_place.get(id(tensor), index), *offsets))
        first_place.setdefault(id(tensor), index)
    return tuple(shared)
