"""``frametap.save`` and ``frametap.load``: captured segments as a program that needs no model source.

Objects that the program's caller gives stay open, the rest is settled when it is saved.

S3  A segment that ends at a branch on a tensor becomes a block with two ways on, by the segments that
    begin there. Every other break, and what no file can hold, is refused by name.

Not here: the function and its parameters (``_saved_function.py``), open and settled objects (``_settled_objects.py``),
guards (``_saved_checks.py``), operands (``_saved_operands.py``), files (``_artifact.py``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from frametap import _C
from frametap import _program as prog
from frametap._artifact import load_program, save_program
from frametap._compile import compiled_of
from frametap._errors import ArtifactError, refuse_segment
from frametap._freeze import FrozenModel
from frametap._fused_attention import FUSED_ATTENTION_OFF
from frametap._loaded_program import LoadedProgram
from frametap._quantized_model import QuantizedModel
from frametap._saved_checks import check_states, checks_of
from frametap._saved_function import refuse_unrecorded, saved_function
from frametap._saved_operands import SegmentView, input_of
from frametap._settled_objects import UNKNOWN, Settled, SettledObjects, Where

__all__ = ["load", "save"]


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
        self.function = saved_function(self.compiled)
        code = self.function.plain.__code__
        self.segments = [s for s in _C.segments(self.compiled) if s.code is code]
        self.objects = SettledObjects(self.function)
        self.blocks: dict[str, prog.Block | None] = {}
        self.names: dict[tuple[Any, ...], str] = {}
        self.refused: list[str] = []  # guards on settled objects that said no
        self.kept: list[Any] = []  # objects whose identity is a key here

    def program(self) -> prog.Program:
        function, settled = self.function, self.function.environment
        name, qualname = function.plain.__name__, function.plain.__qualname__
        entries = [s for s in self.segments if s.entry.endswith("start")]
        if not entries:
            refuse_unrecorded(self.compiled, function.plain)
        self.objects.find_state(self.segments, settled)
        slots = frozenset(p.name for p in function.parameters if not p.is_fixed)
        names = [block for s in entries if (block := self._block(s, settled, slots)) is not None]
        if not names:
            raise ArtifactError(
                f"save: no segment of {qualname} holds for the model as it is now:\n  "
                + "\n  ".join(dict.fromkeys(self.refused))
                + "\n  call it once in the state in which it is to be saved"
            )
        check_states([s for s in entries if self._name(s, settled, slots) in names], qualname)
        weights = self.objects.weights
        return prog.Program(
            name=name,
            qualname=qualname,
            is_bound=function.owner is not None,
            owner_in_args=bool(function.owner_in),
            parameters=function.parameters,
            entry=tuple(names),
            blocks=tuple(block for block in self.blocks.values() if block is not None),
            weights=weights,
            require_grad=tuple(key for key, one in weights.items() if one.requires_grad),
            state=self.objects.initial,
            frozen=self.frozen,
            report=self.report,
            checks_finite=self.quantized is not None and self.quantized.checks_finite,
        )

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
        checks = checks_of(segment, self.objects, environment, self.refused)
        if checks is None:
            self.blocks[name] = None
            return None
        quantized = self.quantized.quantized_graph(segment) if self.quantized is not None else None
        graph = segment.graph if quantized is None else quantized.reference
        outputs = [f"%{value.name}" for value in segment.graph.outputs]
        _refuse_code_of_this_process(segment, graph)
        used = _used_names(graph)
        inputs: list[prog.Operand] = []
        values: dict[str, prog.Operand] = {}
        for value, row in zip(graph.inputs, segment.inputs, strict=True):
            if value.name in used:
                operand = input_of(segment, row, self.objects, environment)
            else:
                operand = self.objects.unused_weight()
            inputs.append(operand)
            values[row["name"]] = operand
        for value, slot in zip(segment.graph.outputs, outputs, strict=True):
            values[value.name] = prog.Ref(slot)
        view = SegmentView(segment, self.objects, environment, slots, values)
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
        """Returns the block with its branches on elements, whose tests are a block of their own."""
        rows = segment.decisions
        assert rows is not None
        decisions = prog.Block(
            name=f"{block.name}, branches on elements",
            graph_text=rows["graph"].text(),
            exit=prog.Return(prog.Const(None)),
            constants=tuple(tensor for _, tensor in rows["graph"].constants),
            inputs=tuple(
                input_of(segment, row, self.objects, environment) for row in rows["inputs"]
            ),
            outputs=tuple(f"%{value.name}" for value in rows["graph"].outputs),
        )
        self.blocks[decisions.name] = decisions
        return replace(block, decisions=decisions.name, outcomes=tuple(rows["outcomes"]))

    # -- exits --

    def _exit(self, view: SegmentView) -> prog.Return | prog.Branch:
        segment, exit = view.segment, view.segment.exit
        if exit["up"]:
            refuse_segment(
                segment.name,
                "the graph continues in the caller of its function",
                "save the function that is called first",
                exit["position"],
            )
        if exit["kind"] != "return" and exit["reason"] != "branch_on_tensor":
            detail = f" ({exit['detail']})" if exit["detail"] else ""
            refuse_segment(
                segment.name,
                f"the graph ends here because of {exit['reason']}{detail}; only a branch on a tensor's value "
                "can be saved",
                "frametap.explain(f) says how to avoid the break",
                exit["position"],
            )
        state = self._state_after(view)
        if exit["kind"] == "return":
            return prog.Return(view.operand(exit["result"], "the result", set()), state)
        tested, arms = _arms(segment, exit)
        on = view.operand(tested, "the tested value")
        jumps = [
            self._jump(view, exit, offset, stack, state, word)
            for (offset, stack), word in zip(arms, ("true", "false"), strict=True)
        ]
        return prog.Branch(on, *jumps)

    def _state_after(self, view: SegmentView) -> dict[str, prog.Operand]:
        state: dict[str, prog.Operand] = {slot: prog.Ref(slot) for slot in self.objects.initial}
        for effect in view.segment.effects:
            if effect["kind"] == "state" and view.segment.exit["kind"] != "return":
                continue  # the next graph brings its own
            if effect["kind"] in ("ask", "lookup"):
                continue  # the cache belongs to the process that has recorded
            owner: Where = Settled(UNKNOWN)
            if effect["target"]["kind"] == "source":
                owner = self.objects.resolve(effect["target"]["path"], view.environment)
            slot = self.objects.slot_of(effect, owner)
            if isinstance(owner, prog.Ref) and self._dies_with_the_call(owner, view.segment.exit):
                continue
            if slot is None:
                refuse_segment(
                    view.segment.name,
                    f"it {_change(effect)}, and a program keeps only numbers, strings and tensors that are "
                    "attributes of the model, its buffers, or items of its dicts",
                    "call the model once before you save it if this fills a cache; else return the value instead of storing it",
                    effect["position"],
                )
            state[slot] = view.operand(effect["value"], f"the new value of {slot}")
        return state

    def _dies_with_the_call(self, owner: prog.Ref, exit: Mapping[str, Any]) -> bool:
        """Returns whether a change of this object cannot be observed: it is the call's own
        ``**kwargs``.
        """

        def mentioned(operand: Mapping[str, Any]) -> bool:
            return operand.get("local") == owner.name or any(map(mentioned, operand["items"]))

        return (
            exit["kind"] == "return"
            and owner == prog.Ref(self.function.keywords)
            and not mentioned(exit["result"])
        )

    def _jump(
        self,
        view: SegmentView,
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
            settled = view.settled(operand)
            slots.pop(name, None)
            environment.pop(name, None)
            if settled is None:
                slots[name] = view.operand(operand, f"'{name}'")
            else:
                environment[name] = settled.value
        candidates = [s for s in self.segments if s.entry_offset == offset]
        known = frozenset(slots)
        names = [
            name for s in candidates if (name := self._block(s, environment, known)) is not None
        ]
        if not names:
            refuse_segment(
                view.segment.name,
                f"what follows when the branch is {word} was not captured",
                f"call the function once so that the branch is {word}, then save"
                if not candidates
                else "call it once in the state in which it is to be saved",
                exit["position"],
            )
        return prog.Jump(tuple(names), {**slots, **state})


def _arms(
    segment: _C.Segment, exit: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[tuple[int, list[Mapping[str, Any]]]]]:
    """Returns the tested operand, and the arms for true and for false.

    An arm is the place where the code continues, and the stack there.
    """
    frame = exit["frames"][0]
    test = _C.truth_test(segment.code, frame["resume_offset"])
    if len(exit["frames"]) == 1 and test is not None and frame["stack"]:
        stack, below, tested = frame["stack"], frame["stack"][:-1], frame["stack"][-1]
        if test["negates"]:
            answers = ({"kind": "const", "constant": value} for value in (False, True))
            return tested, [(test["if_true"], [*below, answer]) for answer in answers]
        return tested, [
            (test["if_true"], stack if test["keeps_true"] else below),
            (test["if_false"], stack if test["keeps_false"] else below),
        ]
    refuse_segment(
        segment.name,
        "the branch on a tensor is not in this function itself, or not an 'if', 'while', 'and', 'or', "
        "'not' of it",
        "write the test as 'if' in the captured function, or use torch.where",
        exit["position"],
    )


def _refuse_code_of_this_process(segment: _C.Segment, graph: _C.Graph) -> None:
    """Refuses a graph with ops that call Python functions, which no file can hold."""
    if any(node.op in ("frametap.apply", "frametap.apply_") for node in graph.nodes):
        refuse_segment(
            segment.name,
            "it calls forward of a torch.autograd.Function, which is code of this process",
            "call ops instead where gradients are not wanted",
        )
    if any(node.op in ("frametap.checkpoint", "frametap.checkpoint_") for node in graph.nodes):
        refuse_segment(
            segment.name,
            "it calls torch.utils.checkpoint, which is code of this process",
            "call the function itself where gradients are not wanted",
        )
    for node in graph.nodes:
        if _has_kernel_in_python(node.op):
            refuse_segment(
                segment.name,
                f"the kernel of {node.op} is Python code, which is code of this process",
                "register a kernel in C++, or call other ops",
            )
    if any(node.op.startswith("frametap.numpy") for node in graph.nodes):
        refuse_segment(
            segment.name,
            "it calls NumPy on arrays, which is code of this process",
            "use the torch function instead, or convert outside of the captured function",
        )


def _has_kernel_in_python(op: str) -> bool:
    """Returns whether torch.library has a kernel of the program for it. Those of torch's own ops come with torch."""
    namespace, _, name = op.partition(".")
    if namespace in ("aten", "prims"):
        return False
    kernels = torch.library._impls  # names such as "namespace/op.overload/key"
    return any(kernel.startswith(f"{namespace}/{name}/") for kernel in kernels)


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
