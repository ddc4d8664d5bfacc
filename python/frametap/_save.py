"""``frametap.save`` and ``frametap.load``: captured segments as a program that needs no model source.

Objects that the program's caller gives stay open, the rest is settled when it is saved:

S1  Each object that a segment names is either **open** (reached from an argument, or a result of a graph)
    or **settled** (the model, its parts, globals). Guards on open objects become checks of the program;
    those on settled ones are evaluated now, and a segment for which one fails is left out.
S2  A parameter or buffer is settled as a weight. An attribute that a segment assigns a number to (a
    counter) is open: a state slot of the program.
S3  A segment that ends at a branch on a tensor becomes a block with two ways on, by the segments that
    begin there. Every other break, and what no file can hold, is refused by name.

Not here: programs as data (``_program.py``), their files (``_artifact.py``), calls of them (``_loaded_program.py``).
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import os
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import torch

from frametap import _C
from frametap import _program as prog
from frametap import _saved_objects as objects
from frametap._artifact import load_program, save_program
from frametap._compile import CompiledModule, compiled_of
from frametap._errors import ArtifactError
from frametap._freeze import FrozenModel
from frametap._fused_attention import FUSED_ATTENTION_OFF
from frametap._guards import PLAIN_TYPES, UNREAD, value_of
from frametap._loaded_program import LoadedProgram
from frametap._quantized_model import QuantizedModel
from frametap._records import reasons_text

__all__ = ["load", "save"]

Path: TypeAlias = list[tuple[str, Any]]


@dataclass(frozen=True)
class _Constant:
    """An object that is known when the program is saved."""

    value: Any


Where: TypeAlias = prog.Ref | _Constant

_UNKNOWN = (
    object()
)  # an object that cannot be found again by its path; the recorder knows it by identity
_EMPTY = "<unused>"  # the weight that stands for inputs that an int8 graph ignores


def save(f: Any, path: str | os.PathLike[str]) -> None:
    """Writes what was captured of `f` to a file that :func:`load` runs without the model's source.

    `f` is a result of ``frametap.compile``, ``frametap.quantize`` or ``frametap.freeze``, after calls that took all paths
    that the program shall contain. Weights and counters are saved with their present values. The mode
    (training or not) and all facts that the guards hold about the model itself are saved, too.

    Raises :class:`ArtifactError` if nothing was captured, or if a segment cannot be saved: it names the
    segment, the line and what to do.
    """
    converter = _Converter(f)
    is_converted = converter.quantized is not None or converter.frozen is not None
    with FUSED_ATTENTION_OFF if is_converted else contextlib.nullcontext():
        program = converter.program()
    save_program(path, program)


def load(path: str | os.PathLike[str], *, classes: Iterable[type] = ()) -> LoadedProgram:
    """The saved program, to be called with the arguments of the captured function.

    `classes`: classes of the objects in its results, such as ``transformers``' ``BaseModelOutput``. A file
    holds no code, and no class is looked up by its name. An object whose class is not given is a stand-in
    with the same content and attributes, and without methods; its ``saved_class`` is the name of the class.
    Classes that ops of torch return, as ``x.max(0)`` does, need not be given.

    Raises :class:`ArtifactError` for a file that is absent, damaged, foreign or made for another torch,
    and later for a call that the saved segments do not cover.
    """
    return load_program(path, classes)


class _Converter:
    def __init__(self, f: Any) -> None:
        self.frozen = _frozen_form(f) if isinstance(f, FrozenModel) else None
        self.quantized = f if isinstance(f, QuantizedModel) else None
        self.report = (
            _report_of(f) if isinstance(f, (FrozenModel, QuantizedModel)) else prog.Report()
        )
        self.compiled = compiled_of(f, "save")
        self.owner, self.function = _entry_function(self.compiled)
        self.code = self.function.__code__
        self.segments = [s for s in _C.segments(self.compiled) if s.code is self.code]
        self.keywords = next(
            (
                parameter.name
                for parameter in inspect.signature(
                    self.function, follow_wrapped=False
                ).parameters.values()
                if parameter.kind is inspect.Parameter.VAR_KEYWORD
            ),
            "",
        )
        self.owner_in = ""  # the ``*args`` whose first item is the model itself
        self.weights: dict[str, torch.Tensor] = {}
        self.weight_names: dict[int, str] = {}
        self.by_memory: dict[tuple[Any, ...], torch.Tensor] = {}
        self.state: dict[tuple[int, str], str] = {}  # (id(object), attribute) -> slot
        self.initial: dict[str, prog.Const | prog.Ref] = {}
        self.blocks: dict[str, prog.Block | None] = {}
        self.names: dict[tuple[Any, ...], str] = {}
        self.refused: list[str] = []  # guards on settled objects that said no
        self.kept: list[Any] = []  # objects whose identity is a key here
        if isinstance(self.owner, torch.nn.Module):
            for name, tensor in _named_tensors(self.owner):
                self.weight_names.setdefault(id(tensor), name)
                if tensor.layout is torch.strided:
                    self.by_memory.setdefault(_memory(tensor), tensor)

    def program(self) -> prog.Program:
        entries = [s for s in self.segments if s.entry.endswith("start")]
        if not entries:
            _refuse_unrecorded(self.compiled, self.function)
        environment, parameters = self._parameters()
        self._find_state(environment)
        slots = frozenset(p.name for p in parameters if not p.is_fixed)
        names = [name for s in entries if (name := self._block(s, environment, slots)) is not None]
        if not names:
            raise ArtifactError(
                f"save: no segment of {self.function.__qualname__} holds for the model as it is now:\n  "
                + "\n  ".join(dict.fromkeys(self.refused))
                + "\n  call it once in the state in which it is to be saved"
            )
        self._check_states([s for s in entries if self._name(s, environment, slots) in names])
        return prog.Program(
            name=self.function.__name__,
            qualname=self.function.__qualname__,
            is_bound=self.owner is not None,
            owner_in_args=bool(self.owner_in),
            parameters=tuple(parameters),
            entry=tuple(names),
            blocks=tuple(block for block in self.blocks.values() if block is not None),
            weights=self.weights,
            require_grad=tuple(name for name, one in self.weights.items() if one.requires_grad),
            state=self.initial,
            frozen=self.frozen,
            report=self.report,
            checks_finite=self.quantized is not None and self.quantized.checks_finite,
        )

    # -- what is settled --

    def _parameters(self) -> tuple[dict[str, Any], list[prog.Parameter]]:
        """The settled locals at the entry, and the parameters of the program."""
        environment: dict[str, Any] = {}
        parameters: list[prog.Parameter] = []
        signature = inspect.signature(self.function, follow_wrapped=False)
        for position, parameter in enumerate(signature.parameters.values()):
            default = parameter.default
            if position == 0 and self.owner is not None:
                if parameter.kind is inspect.Parameter.VAR_POSITIONAL:  # of a decorator's function
                    self.owner_in = parameter.name
                    parameters.append(prog.Parameter(parameter.name, parameter.kind.name))
                else:
                    environment[parameter.name] = self.owner
            elif default is inspect.Parameter.empty:
                parameters.append(prog.Parameter(parameter.name, parameter.kind.name))
            elif (constant := _constant(default)) is not None:
                parameters.append(prog.Parameter(parameter.name, parameter.kind.name, constant))
            else:
                # An object: the program has only this one. The parameter keeps its place.
                environment[parameter.name] = default
                parameters.append(
                    prog.Parameter(parameter.name, parameter.kind.name, is_fixed=True)
                )
        for name, cell in zip(self.code.co_freevars, self.function.__closure__ or (), strict=True):
            try:
                environment[name] = cell.cell_contents
            except ValueError:
                continue
        return environment, parameters

    def _find_state(self, environment: Mapping[str, Any]) -> None:
        for segment in self.segments:
            for effect in segment.effects:
                if effect["target"]["kind"] != "source":
                    continue
                owner = self._resolve(effect["target"]["path"], environment)
                if not isinstance(owner, _Constant) or (key := _slot_key(effect)) is None:
                    continue
                self._add_slot(owner.value, effect["kind"], key, effect["target"]["source"])

    def _add_slot(self, owner: Any, kind: str, key: Any, source: str) -> None:
        """A state slot for an attribute, or for an item of a dict (a buffer is one of its module's)."""
        if isinstance(owner, torch.Tensor) and key == "data":
            return  # ops read the tensor, not the slot
        if kind == "setattr":
            now = getattr(owner, key, _UNKNOWN)
            others = [getattr(owner, "__dict__", owner)]
        else:
            now = owner.get(key, _UNKNOWN) if isinstance(owner, dict) else _UNKNOWN
            others = [module for module in self._modules() if module._buffers is owner]
        slot = self.state.get(
            (id(owner), key), f"{source.removeprefix('L.').removesuffix('._buffers')}.{key}"
        )
        if isinstance(now, torch.Tensor):
            self.weights[slot] = now
            self.initial[slot] = prog.Ref(slot, weight=True)
        elif _is_plain(now):
            self.initial[slot] = prog.Const(now)
        else:
            return  # set when its block is made
        for place in (owner, *others):
            self.state[id(place), key] = slot

    def _modules(self) -> Iterator[torch.nn.Module]:
        if isinstance(self.owner, torch.nn.Module):
            yield from self.owner.modules()

    def _resolve(self, path: Path, environment: Mapping[str, Any]) -> Where:
        kind, key = path[0]
        here: Where
        if kind in ("local", "cell", "stack"):
            slot = f"S[{key}]" if kind == "stack" else key
            here = _Constant(environment[slot]) if slot in environment else prog.Ref(slot)
        elif kind == "function":
            here = _Constant(self.function)
        else:
            here = _Constant(key)
        for accessor, key in path[1:]:
            here = self._step(here, accessor, key)
        return here

    def _step(self, here: Where, accessor: str, key: Any) -> Where:
        if isinstance(here, prog.Ref):
            if accessor == "item" and key == 0 and here == prog.Ref(self.owner_in):
                return _Constant(self.owner)
            if accessor in ("attr", "module_attr"):
                step = ("attr", key)
            elif accessor in ("item", "key"):
                step = ("item", key if accessor == "item" else _literal(key))
            elif accessor in ("size", "stride", "length"):
                step = (accessor, 0 if accessor == "length" else key)
            elif accessor == "dict":
                return here  # its attributes are reached by their names
            else:
                return _Constant(_UNKNOWN)
            return prog.Ref(here.name, (*here.path, step), here.weight)
        value = here.value
        if value is _UNKNOWN:
            return here
        name = _literal(key) if accessor == "key" else key
        if accessor in ("attr", "module_attr", "key") and (id(value), name) in self.state:
            return prog.Ref(self.state[id(value), name])
        try:
            found = _SETTLED_STEPS[accessor](value, name)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            found = _UNKNOWN
        self.kept.append(found)
        return _Constant(found)

    def _weight(self, tensor: torch.Tensor, name: str) -> prog.Ref:
        known = self.weight_names.get(id(tensor))
        if known is None:
            taken = {*self.weight_names.values(), *self.weights}
            known = base = name.removeprefix("L.")
            for n in itertools.count(1):
                if known not in taken:
                    break
                known = f"{base}.{n}"
            self.weight_names[id(tensor)] = known
        self.weights[known] = tensor
        self.kept.append(tensor)
        return prog.Ref(known, weight=True)

    # -- blocks --

    def _name(
        self, segment: _C.Segment, environment: Mapping[str, Any], slots: frozenset[str]
    ) -> str:
        settled = tuple(sorted((name, id(value)) for name, value in environment.items()))
        key = (segment, settled, slots)
        if key not in self.names:
            self.kept.append(dict(environment))
            variant = sum(known[0] == segment for known in self.names)
            self.names[key] = f"{segment.name}.{variant}" if variant else segment.name
        return self.names[key]

    def _block(
        self, segment: _C.Segment, environment: Mapping[str, Any], slots: frozenset[str]
    ) -> str | None:
        """Returns the name of the segment's block, or None if the segment does not hold for the
        settled objects.
        """
        name = self._name(segment, environment, slots)
        if name in self.blocks:
            return name if self.blocks[name] is not None else None
        checks = self._checks(segment, environment)
        if checks is None:
            self.blocks[name] = None
            return None
        quantized = self.quantized.quantized_graph(segment) if self.quantized is not None else None
        graph = segment.graph if quantized is None else quantized.reference
        outputs = [f"%{value.name}" for value in segment.graph.outputs]
        if any(node.op in ("frametap.apply", "frametap.apply_") for node in graph.nodes):
            _refuse(
                segment,
                "it calls forward of a torch.autograd.Function, which is code of this process",
                "call ops instead where gradients are not wanted",
            )
        if any(node.op in ("frametap.checkpoint", "frametap.checkpoint_") for node in graph.nodes):
            _refuse(
                segment,
                "it calls torch.utils.checkpoint, which is code of this process",
                "call the function itself where gradients are not wanted",
            )
        for node in graph.nodes:
            if _has_kernel_in_python(node.op):
                _refuse(
                    segment,
                    f"the kernel of {node.op} is Python code, which is code of this process",
                    "register a kernel in C++, or call other ops",
                )
        if any(node.op.startswith("frametap.numpy") for node in graph.nodes):
            _refuse(
                segment,
                "it calls NumPy on arrays, which is code of this process",
                "use the torch function instead, or convert outside of the captured function",
            )
        used = _used_names(graph)
        inputs: list[prog.Operand] = []
        values: dict[str, prog.Operand] = {}
        for value, row in zip(graph.inputs, segment.inputs, strict=True):
            if value.name in used:
                operand = self._input(segment, row, environment)
            else:
                self.weights[_EMPTY] = torch.empty(0)
                operand = prog.Ref(_EMPTY, weight=True)
            inputs.append(operand)
            values[row["name"]] = operand
        for value, slot in zip(segment.graph.outputs, outputs, strict=True):
            values[value.name] = prog.Ref(slot)
        view = _SegmentView(segment, environment, slots, values)
        # Lowering reads sizes: with the same ones, the loaded graph has the same kernels.
        is_converted = self.quantized is not None or self.frozen is not None
        block = prog.Block(
            name=name,
            graph_text=graph.text(symbols=not is_converted),
            exit=prog.Return(prog.Const(None)),
            constants=tuple(tensor for _, tensor in graph.constants),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            checks=tuple(checks),
            int8=quantized is not None,
        )
        if segment.decisions is not None:
            block = self._with_decisions(block, segment, environment)
        self.blocks[name] = block  # a loop comes back to it
        self.blocks[name] = replace(block, exit=self._exit(view))
        return name

    def _with_decisions(
        self, block: prog.Block, segment: _C.Segment, environment: Mapping[str, Any]
    ) -> prog.Block:
        """With its branches on elements, whose tests are a block of their own."""
        rows = segment.decisions
        assert rows is not None
        decisions = prog.Block(
            name=f"{block.name}, branches on elements",
            graph_text=rows["graph"].text(),
            exit=prog.Return(prog.Const(None)),
            constants=tuple(tensor for _, tensor in rows["graph"].constants),
            inputs=tuple(self._input(segment, row, environment) for row in rows["inputs"]),
            outputs=tuple(f"%{value.name}" for value in rows["graph"].outputs),
        )
        self.blocks[decisions.name] = decisions
        return replace(block, decisions=decisions.name, outcomes=tuple(rows["outcomes"]))

    def _input(
        self, segment: _C.Segment, row: _C.InputRow, environment: Mapping[str, Any]
    ) -> prog.Operand:
        where = self._resolve(row["path"], environment)
        if isinstance(where, prog.Ref):
            return where
        value = where.value
        if value is _UNKNOWN and row["weight"] is not None:  # another tensor in the weight's memory
            value = self.by_memory.setdefault(_memory(row["weight"]), row["weight"])
        if isinstance(value, torch.Tensor):
            return self._weight(value, row["source"])
        if _is_plain(value):
            return prog.Const(value)
        _refuse(segment, f"the input {row['source']} cannot be found again", "make it an argument")

    def _checks(
        self, segment: _C.Segment, environment: Mapping[str, Any]
    ) -> list[prog.Check] | None:
        checks: list[prog.Check] = []
        for row in segment.guard_rows:
            predicate = row["predicate"]
            if not predicate or row["is_decision"]:
                continue
            where = self._resolve(row["path"], environment)
            if isinstance(where, _Constant):
                if not self._holds(segment, row, where.value, environment):
                    self.refused.append(
                        f"{segment.name}: {row['source']} : {predicate}  @ {row['position']['text']}"
                    )
                    return None
                continue
            if row["other"] is not None:
                other = self._resolve(row["other"], environment)
                checks += self._same(segment, where, other, row)
                continue
            wants = _wants(row)
            if (related := self._relates(row, where, environment)) is not None:
                checks.append(related)
                continue
            if wants is None:
                _refuse(
                    segment,
                    f"the check '{row['source']} : {predicate}' has no form in a file",
                    "make the argument a tensor, a number or a container of these",
                    row["position"],
                )
            for step, want in wants:
                of = prog.Ref(where.name, (*where.path, *step), where.weight)
                checks.append(prog.Check(of, want))
        return checks

    def _relates(
        self, row: _C.GuardRow, where: prog.Ref, environment: Mapping[str, Any]
    ) -> prog.Check | None:
        """The check of a formula over numbers, the first of which is at `where`."""
        if row["formula"] is None:
            return None
        others = [self._resolve(path, environment) for path in row["formula"]["paths"][1:]]
        if not all(isinstance(other, prog.Ref) for other in others):
            return None
        return prog.Check(where, prog.Relates(row["formula"]["text"], tuple(others)))

    def _same(
        self, segment: _C.Segment, one: prog.Ref, other: Where, row: _C.GuardRow
    ) -> list[prog.Check]:
        same = row["kind"] == "is"
        if isinstance(other, _Constant):
            if isinstance(other.value, torch.Tensor):
                other = self._weight(other.value, row["source"])
            elif not same:
                return []  # an argument of the program is not one of the model's own objects
            else:
                _refuse(
                    segment,
                    f"the check '{row['source']} : {row['predicate']}' has no form in a file",
                    "do not pass the model's own objects to it",
                    row["position"],
                )
        return [] if one == other and same else [prog.Check(one, prog.Same(other, same))]

    def _holds(
        self,
        segment: _C.Segment,
        row: _C.GuardRow,
        value: Any,
        environment: Mapping[str, Any],
    ) -> bool:
        """Whether a guard on a settled object holds now. An object that cannot be found again is guarded by identity."""
        if value is _UNKNOWN:
            return True
        if row["other"] is not None:
            found = self._resolve(row["other"], environment)
            if isinstance(found, _Constant):
                return found.value is _UNKNOWN or (value is found.value) == (row["kind"] == "is")
            return row["kind"] == "is not"
        wants = _wants(row)
        if wants is None or not isinstance(value, torch.Tensor):
            answer = segment.guard_holds(row["number"], value)
            if answer is not None:
                return answer
        for step, want in wants or ():
            found = value
            try:
                for accessor, key in step:
                    found = _SETTLED_STEPS[accessor](found, key)
            except (AttributeError, IndexError, KeyError, TypeError):
                return False
            if want.refusal(found) is not None:
                return False
        return True

    def _check_states(self, segments: Sequence[_C.Segment]) -> None:
        """Two calls that differ only in the thread's state (autocast) would be one call of the program."""
        states = {
            tuple(f"{k}({v})" for k, v in s.state.items() if k != "grad_mode"): s for s in segments
        }
        if len(states) > 1:
            lines = "".join(f"\n  {s.name}: {', '.join(state)}" for state, s in states.items())
            raise ArtifactError(
                f"save: segments of {self.function.__qualname__} were recorded under different states of "
                f"the thread:{lines}\n  frametap.reset(f), call it under the one to be saved, save again"
            )

    # -- exits --

    def _exit(self, view: _SegmentView) -> prog.Return | prog.Branch:
        segment, exit = view.segment, view.segment.exit
        if exit["up"]:
            _refuse(
                segment,
                "the graph continues in the caller of its function",
                "save the function that is called first",
                exit["position"],
            )
        if exit["kind"] != "return" and exit["reason"] != "branch_on_tensor":
            detail = f" ({exit['detail']})" if exit["detail"] else ""
            _refuse(
                segment,
                f"the graph ends here because of {exit['reason']}{detail}; only a branch on a tensor's value "
                "can be saved",
                "frametap.explain(f) says how to avoid the break",
                exit["position"],
            )
        state = self._state_after(view)
        if exit["kind"] == "return":
            return prog.Return(self._operand(view, exit["result"], "the result", set()), state)
        tested, arms = self._arms(segment, exit)
        on = self._operand(view, tested, "the tested value")
        jumps = [
            self._jump(view, exit, offset, stack, state, word)
            for (offset, stack), word in zip(arms, ("true", "false"), strict=True)
        ]
        return prog.Branch(on, *jumps)

    def _state_after(self, view: _SegmentView) -> dict[str, prog.Operand]:
        state: dict[str, prog.Operand] = {slot: prog.Ref(slot) for slot in self.initial}
        for effect in view.segment.effects:
            if effect["kind"] == "state" and view.segment.exit["kind"] != "return":
                continue  # the next graph brings its own
            if effect["kind"] in ("ask", "lookup"):
                continue  # the cache belongs to the process that has recorded
            owner: Where = _Constant(_UNKNOWN)
            if effect["target"]["kind"] == "source":
                owner = self._resolve(effect["target"]["path"], view.environment)
            slot = None
            if isinstance(owner, _Constant) and (key := _slot_key(effect)) is not None:
                slot = self.state.get((id(owner.value), key))
            if isinstance(owner, prog.Ref) and self._dies_with_the_call(owner, view.segment.exit):
                continue
            if slot is None:
                _refuse(
                    view.segment,
                    f"it {_change(effect)}, and a program keeps only numbers, strings and tensors that are "
                    "attributes of the model, its buffers, or items of its dicts",
                    "call the model once before you save it if this fills a cache; else return the value instead of storing it",
                    effect["position"],
                )
            state[slot] = self._operand(view, effect["value"], f"the new value of {slot}")
        return state

    def _dies_with_the_call(self, owner: prog.Ref, exit: Mapping[str, Any]) -> bool:
        """Returns whether a change of this object cannot be observed: it is the call's own
        ``**kwargs``.
        """

        def mentioned(operand: Mapping[str, Any]) -> bool:
            return operand.get("local") == owner.name or any(map(mentioned, operand["items"]))

        return (
            exit["kind"] == "return"
            and owner == prog.Ref(self.keywords)
            and not mentioned(exit["result"])
        )

    def _arms(
        self, segment: _C.Segment, exit: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], list[tuple[int, list[Mapping[str, Any]]]]]:
        """The tested operand; for true and for false, the place where the code continues, and with
        which stack.
        """
        frame = exit["frames"][0]
        test = _C.truth_test(self.code, frame["resume_offset"])
        if len(exit["frames"]) == 1 and test is not None and frame["stack"]:
            stack, below, tested = frame["stack"], frame["stack"][:-1], frame["stack"][-1]
            if test["negates"]:
                answers = ({"kind": "const", "constant": value} for value in (False, True))
                return tested, [(test["if_true"], [*below, answer]) for answer in answers]
            return tested, [
                (test["if_true"], stack if test["keeps_true"] else below),
                (test["if_false"], stack if test["keeps_false"] else below),
            ]
        _refuse(
            segment,
            "the branch on a tensor is not in this function itself, or not an 'if', 'while', 'and', 'or', "
            "'not' of it",
            "write the test as 'if' in the captured function, or use torch.where",
            exit["position"],
        )

    def _jump(
        self,
        view: _SegmentView,
        exit: Mapping[str, Any],
        offset: int,
        stack: Sequence[Mapping[str, Any]],
        state: Mapping[str, prog.Operand],
        word: str,
    ) -> prog.Jump:
        # A local that the exit does not name stays in the frame as it is: what follows may look at it.
        kept = [name for name in sorted(view.slots) if not name.startswith("S[")]
        environment = {n: v for n, v in view.environment.items() if not n.startswith("S[")}
        slots: dict[str, prog.Operand] = {name: prog.Ref(name) for name in kept}
        live = {
            **exit["frames"][0]["locals"],
            **{f"S[{i}]": operand for i, operand in enumerate(stack)},
        }
        for name, operand in live.items():
            if operand["kind"] == "cell":
                operand = operand["items"][0]
            settled = self._settled(view, operand)
            slots.pop(name, None)
            environment.pop(name, None)
            if settled is None:
                slots[name] = self._operand(view, operand, f"'{name}'")
            else:
                environment[name] = settled.value
        candidates = [s for s in self.segments if s.entry_offset == offset]
        known = frozenset(slots)
        names = [
            name for s in candidates if (name := self._block(s, environment, known)) is not None
        ]
        if not names:
            _refuse(
                view.segment,
                f"what follows when the branch is {word} was not captured",
                f"call the function once so that the branch is {word}, then save"
                if not candidates
                else "call it once in the state in which it is to be saved",
                exit["position"],
            )
        return prog.Jump(tuple(names), {**slots, **state})

    # -- operands --

    def _settled(self, view: _SegmentView, operand: Mapping[str, Any]) -> _Constant | None:
        """The object, if it is settled and no file could hold it."""
        kind = operand["kind"]
        if kind == "null":
            return _Constant(_UNKNOWN)
        if kind == "const" and not _is_plain(operand["constant"]):
            return _Constant(operand["constant"])
        if kind == "source":
            where = self._resolve(operand["path"], view.environment)
            if isinstance(where, _Constant) and not (
                isinstance(where.value, torch.Tensor) or _is_plain(where.value)
            ):
                return where
        return None

    def _operand(
        self,
        view: _SegmentView,
        operand: Mapping[str, Any],
        what: str,
        labels: set[int] | None = None,
    ) -> prog.Operand:
        """`labels`: of the objects that are complete; None where no objects may be, which is outside of results."""
        if labels is not None and operand["label"] >= 0:
            made = self._unlabelled(view, operand, what, labels)
            labels.add(operand["label"])
            return prog.Labelled(operand["label"], made)
        return self._unlabelled(view, operand, what, labels)

    def _unlabelled(
        self, view: _SegmentView, operand: Mapping[str, Any], what: str, labels: set[int] | None
    ) -> prog.Operand:
        kind, items = operand["kind"], operand.get("items", ())

        def parts(of: Sequence[Mapping[str, Any]]) -> tuple[prog.Operand, ...]:
            return tuple(self._operand(view, item, what, labels) for item in of)

        if kind == "value":
            return view.values[operand["value"]]
        if kind == "const" and _is_plain(operand["constant"]):
            return prog.Const(operand["constant"])
        if kind == "source":
            where = self._resolve(operand["path"], view.environment)
            if where == prog.Ref(self.owner_in):
                _refuse(
                    view.segment,
                    f"{what} is or holds *{self.owner_in}, and so the model itself",
                    "return single arguments instead of all of them",
                    view.segment.exit["position"],
                )
            if isinstance(where, prog.Ref):
                return where
            if isinstance(where.value, torch.Tensor):
                return self._weight(where.value, operand["source"])
            if _is_plain(where.value):
                return prog.Const(where.value)
        if kind == "tuple":
            return prog.Tuple(parts(items))
        if kind == "list":
            return prog.List(parts(items))
        if kind == "dict" and all(
            key["kind"] == "const" and _is_plain(key["constant"]) for key in items[::2]
        ):
            return prog.Dict(
                tuple(prog.Const(key["constant"]) for key in items[::2]), parts(items[1::2])
            )
        if labels is not None:
            if kind == "shared" and operand["index"] in labels:
                return prog.Again(operand["index"])
            if kind == "new" and (form := operand["form"]):
                first = len(items) - len(operand["names"])
                if first == (form != "object"):  # otherwise it has slots
                    cls = operand["constant"]
                    content = parts(items[:first])
                    return prog.Made(
                        objects.name_of(cls),
                        form,
                        content[0] if content else None,
                        tuple(operand["names"]),
                        parts(items[first:]),
                        _fields(cls),
                    )
        description = {
            "source": f"the object {operand.get('source')}",
            "const": f"the object {operand.get('constant')!r:.60}",
            "new": f"an object of type {getattr(operand.get('constant'), '__name__', '?')}",
            "shared": "an object that occurs twice",
        }.get(kind, f"a {kind}")
        _refuse(
            view.segment,
            f"{what} is or holds {description}, which cannot be saved",
            "use tensors, numbers, strings, and tuples, lists or dicts of them",
            view.segment.exit["position"],
        )


@dataclass(frozen=True)
class _SegmentView:
    segment: _C.Segment
    environment: Mapping[str, Any]  # settled locals
    slots: frozenset[str]  # open ones
    values: Mapping[str, prog.Operand]  # by name of a graph value


def _fields(cls: type) -> tuple[str, ...]:
    """The names of a named tuple's items."""
    names = getattr(cls, "_fields", ()) if issubclass(cls, tuple) else ()
    is_named = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
    return names if is_named else ()


# -- the captured function --


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _report_of(model: FrozenModel | QuantizedModel) -> prog.Report:
    measured = model.measured_sqnr if isinstance(model, QuantizedModel) else None
    return prog.Report(model.report, model.report_text(), measured or {})


def _frozen_form(model: FrozenModel) -> prog.Frozen:
    left_out = [name for name in ("float_ops", "float_scopes") if model.options.get(name)]
    if left_out:
        raise ArtifactError(
            f"save: {' and '.join(left_out)} of the dynamic scheme cannot be saved, since a file does not know the "
            "modules that ops came from; save a model that was quantized without"
        )
    return prog.Frozen(model.products, model.options.get("activation_bits", 0))


def _entry_function(compiled: _C.CompiledFunction) -> tuple[Any, types.FunctionType]:
    owner, function = compiled.__self__, compiled._function
    if isinstance(owner, CompiledModule):
        owner = type(owner)._orig_mod
    if isinstance(owner, torch.nn.Module) and function is type(owner).__call__:
        bound = owner.forward
        function = getattr(bound, "__func__", bound)
    if isinstance(function, _C.CompiledFunction):
        function = function._function
    if not isinstance(function, types.FunctionType):
        raise ArtifactError(
            f"save: {function!r:.60} is not a Python function, so nothing of it was captured"
        )
    return owner, function


def _refuse_unrecorded(compiled: _C.CompiledFunction, function: types.FunctionType) -> NoReturn:
    reasons = reasons_text(compiled)
    if _C.segments(compiled) and reasons:
        raise ArtifactError(
            f"save: no graph begins at the start of {function.__qualname__}, since plain Python runs before its "
            f"first graph, and a file holds no Python:{reasons}"
        )
    if _C.segments(compiled):
        raise ArtifactError(
            f"save: nothing was captured from the start of {function.__qualname__}; hooks of a module, or a "
            "__call__ of its own, cannot be saved: remove them, call it once, save again"
        )
    raise ArtifactError(
        f"save: nothing of {function.__qualname__} was captured yet; call it at least once before saving{reasons}"
    )


def _refuse(
    segment: _C.Segment, what: str, advice: str, position: Mapping[str, Any] | None = None
) -> NoReturn:
    where = f" at {position['text']}" if position is not None and position["line"] else ""
    raise ArtifactError(
        f"save: segment {segment.name}{where} cannot be saved: {what}\n  advice  {advice}"
    )


def _has_kernel_in_python(op: str) -> bool:
    """Whether torch.library has a kernel of the program for it. Those of torch's own ops come with torch."""
    namespace, _, name = op.partition(".")
    if namespace in ("aten", "prims"):
        return False
    kernels = torch.library._impls  # names such as "namespace/op.overload/key"
    return any(kernel.startswith(f"{namespace}/{name}/") for kernel in kernels)


def _named_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _used_names(graph: _C.Graph) -> set[str]:
    used = {value.name for value in graph.outputs}

    def follow(item: Any) -> None:
        if isinstance(item, _C.Value):
            used.add(item.name)
        elif isinstance(item, list):
            for part in item:
                follow(part)

    for node in graph.nodes:
        follow(node.args)
    return used


def _slot_key(effect: Mapping[str, Any]) -> Any:
    """The attribute or key that the effect gives a new value; None of other effects."""
    if effect["kind"] == "setattr":
        return effect["name"]
    key = effect["key"]
    if (
        effect["kind"] == "setitem"
        and key["kind"] == "const"
        and type(key["constant"]) in (str, int)
    ):
        return key["constant"]
    return None


def _change(effect: Mapping[str, Any]) -> str:
    """Describes the effect of a line of the program, in the words of its source."""
    of = effect["target"].get("source", "an object").removeprefix("L.")
    name, key = effect["name"], effect["key"].get("constant", effect["key"].get("source", "..."))
    where = (
        f"{of.removesuffix('._buffers')}.{key}" if of.endswith("._buffers") else f"{of}[{key!r}]"
    )
    return {
        "setattr": f"assigns {of}.{name}"
        if "source" in effect["target"]
        else f"assigns the attribute {name} of an object that it makes",
        "delattr": f"deletes {of}.{name}",
        "setitem": f"assigns {where}",
        "delitem": f"deletes {where}",
        "call": f"calls {of}.{name}",
        "setglobal": f"assigns the global {name}",
        "setcell": f"assigns {of}, a variable of an outer function",
        "state": f"leaves {name} of torch switched",
        "advance": f"takes items from the iterator {of}",
        "yield": f"continues the generator {of}",
    }.get(effect["kind"], f"changes {of}")


def _constant(
    value: Any, depth: int = 16
) -> prog.Const | prog.Tuple | prog.List | prog.Dict | None:
    """The operand that makes such a default; None if no file can hold it."""
    if _is_plain(value):
        return prog.Const(value)
    if depth == 0 or type(value) not in (tuple, list, dict):
        return None
    parts = list(value.values()) if type(value) is dict else list(value)
    items = [_constant(part, depth - 1) for part in parts]
    if not all(items) or (type(value) is dict and not all(map(_is_plain, value))):
        return None
    if type(value) is dict:
        return prog.Dict(tuple(prog.Const(key) for key in value), tuple(items))
    return prog.Tuple(tuple(items)) if type(value) is tuple else prog.List(tuple(items))


def _is_plain(value: Any) -> bool:
    return type(value) in PLAIN_TYPES


def _literal(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _item_of_dict(value: Any, key: Any) -> Any:
    """The item that is stored. A ``__getitem__`` of a subclass may make another one of it."""
    return dict.__getitem__(value, key) if isinstance(value, dict) else value[key]


_SETTLED_STEPS: dict[str, Any] = {
    "attr": getattr,
    "module_attr": getattr,
    "item": lambda value, key: value[key],
    "key": lambda value, key: _item_of_dict(value, key),
    "global": lambda value, key: getattr(value, "__globals__", value)[key],
    "dict": lambda value, _: value.__dict__,
    "closure": lambda value, key: value.__closure__[key].cell_contents,
    "default": lambda value, key: value.__defaults__[key],
    "kw_default": lambda value, key: value.__kwdefaults__[key],
    "self": lambda value, _: value.__self__,
    "func": lambda value, _: value.__func__,
    "size": lambda value, key: value.size(key),
    "stride": lambda value, key: value.stride(key),
    "length": lambda value, _: len(value),
    "grad": lambda value, _: value.grad,
    "key_at": lambda value, key: list(value)[key],
}


# -- guards as checks --

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_NUMBERS = ("int", "float", "bool")

Steps: TypeAlias = tuple[tuple[str, Any], ...]


def _wants(row: _C.GuardRow) -> list[tuple[Steps, Any]] | None:
    """Returns the equal checks, each with steps from the object; None if a file has none."""
    kind, argument = row["kind"], row["argument"]
    if kind == "tensor":
        return _tensor_wants(argument)
    if kind == "no hooks":
        own = [
            ((), prog.Has(name, False)) for name in ("_compiled_call_impl", "_call_impl", "forward")
        ]
        kinds = ("_backward", "_backward_pre", "_forward", "_forward_pre")
        empty = [((("attr", f"{k}_hooks"), ("length", 0)), prog.EqualTo(0)) for k in kinds]
        return [*own, *empty]
    if kind == "len":
        return [((("length", 0),), prog.EqualTo(argument))]
    if kind == "type":
        name = argument.rpartition(".")[2]
        return [((), prog.Number(name) if name in _NUMBERS else prog.Type(name))]
    value = value_of(row)
    if value is UNREAD:
        return None
    if kind == "keys":
        return [((), prog.Keys(tuple(value)))]
    if kind in ("has", "absent"):
        return [((), prog.Has(value, kind == "has"))]
    if kind == "==":
        return [((), prog.EqualTo(value))]
    op = kind.removeprefix("not ")
    if op in _OPPOSITE and isinstance(value, (int, float)):
        return [((), prog.Relation(op if op == kind else _OPPOSITE[op], value))]
    return None


def _tensor_wants(facts: Mapping[str, Any]) -> list[tuple[Steps, Any]] | None:
    if facts["has_offset"]:
        return None
    want = prog.TensorLike(facts["dtype"], facts["shape"], facts["device"])
    strides = enumerate(facts["strides"] or ())
    return [((), want), *(((("stride", i),), prog.EqualTo(stride)) for i, stride in strides)]
