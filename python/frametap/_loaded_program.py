"""A saved program that can be called, without capture and without the source code of the model.

A call binds its arguments to slots, named as the parameters. Then it repeats these steps:

1.  It takes the first block of the candidates whose checks hold.
2.  The block's graph runs on the slots in `inputs`, and its results are the slots in `outputs`.
3.  A `Return` builds the result. A `Jump` or `Branch` leads to the next candidates, with new slots.

A3  A call is refused, with the argument's name, unless it is one of those that the checks describe.
A4  Slots do not outlive a jump except those that it assigns; `state` slots outlive the call.

Not here: blocks and checks as data (``_program.py``), binding of arguments (``_loaded_signature.py``), graphs
(``_loaded_graphs.py``), the file (``_artifact.py``).
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from frametap import _C
from frametap import _saved_objects as objects
from frametap._errors import ArtifactError, QuantizationError, not_finite
from frametap._loaded_graphs import frozen_graphs, graph_of
from frametap._loaded_signature import FIXED, binder, signature_of
from frametap._program import (
    NODES,
    Again,
    Block,
    Branch,
    Const,
    Dict,
    Jump,
    Labelled,
    List,
    Operand,
    Program,
    Ref,
    Relates,
    Return,
    Same,
    Tuple,
    described,
)

__all__ = ["LoadedProgram"]


class LoadedProgram:
    """A program that can be called: ``program(*args, **kwargs)`` as the captured function was."""

    def __init__(self, program: Program, classes: Mapping[str, type] | None = None) -> None:
        self.program = program
        self._classes = dict(classes or {})
        self._blocks = {block.name: block for block in program.blocks}
        self._signature = signature_of(program)
        self._bind = binder(program, self._signature)
        _check_names(program)
        self._flagged = {name: _flagged(program.weights[name]) for name in program.require_grad}
        self._state = {name: self._value(first, {}) for name, first in program.state.items()}
        self._frozen = frozen_graphs(program)
        native = _C.native_backend()
        self._compiled = {
            block.name: _C.compile(
                native,
                self._frozen.get(block.name)
                or graph_of(block, program.checks_finite, gradients=False),
            )
            for block in program.blocks
        }
        self._with_gradients: dict[
            str, _C.Executable
        ] = {}  # made at the first call that asks for it

    def __repr__(self) -> str:
        return f"<frametap program {self.program.name}{self._signature}>"

    @property
    def __signature__(self) -> inspect.Signature:
        return self._signature

    def graphs(self) -> dict[str, str]:
        """The text of each block's graph."""
        return {block.name: block.graph_text for block in self.program.blocks}

    def frozen_graphs(self) -> dict[str, _C.Graph]:
        """The graph that runs for each block of a frozen model; empty for another program."""
        return dict(self._frozen)

    @property
    def report(self) -> list[dict[str, Any]]:
        """The rows of a quantized or frozen model as it was when it was saved; none of another program."""
        return [dict(row) for row in self.program.report.rows]

    @property
    def output_sqnr(self) -> dict[str, float]:
        """dB by output, as :class:`QuantizedModel` has it; empty if it was not measured before the model was saved."""
        return dict(self.program.report.output_sqnr)

    def report_text(self) -> str:
        """The table of a quantized or frozen model as it was when it was saved."""
        return self.program.report.text

    def state_dict(self) -> dict[str, Any]:
        """Weights, and what else persists between calls."""
        return {**self.program.weights, **self._state}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        arguments = self._bind(*args, **kwargs)
        for parameter in self.program.parameters:
            name = parameter.name
            if parameter.is_fixed and arguments.pop(name) is not FIXED:
                raise ArtifactError(
                    f"{self.program.name}: argument {name} is fixed in the saved program, which has the object "
                    "that was its default; leave it out"
                )
        slots = {**self._state, **arguments}
        block = self._choose(self.program.entry, slots, "the call")
        while True:
            try:
                results = self._run(block, slots)
            except Exception as error:
                given = ", ".join(f"{k}: {described(v)}" for k, v in arguments.items())
                raise ArtifactError(
                    f"{self.program.name}: the graph of block {block.name!r} does not take these "
                    f"arguments ({given}): {error}"
                ) from error
            if self.program.checks_finite and (place := _C.take_not_finite()):
                raise QuantizationError(f"{self.program.name}: {not_finite(place)}")
            slots.update(zip(block.outputs, results, strict=True))
            way_out = block.exit
            if isinstance(way_out, Return):
                result = self._value(way_out.result, slots, {})
                self._state.update(
                    {name: self._value(operand, slots) for name, operand in way_out.state.items()}
                )
                return result
            if isinstance(way_out, Branch):
                way_out = way_out.if_true if self._value(way_out.on, slots) else way_out.if_false
            kept = {name: slots[name] for name in self._state}
            slots = kept | {
                name: self._value(operand, slots) for name, operand in way_out.slots.items()
            }
            block = self._choose(way_out.blocks, slots, f"what follows block {block.name!r}")

    def _run(self, block: Block, slots: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the results of the graph. Gradients reach arguments that require them, and never the weights."""
        inputs = [self._value(operand, slots) for operand in block.inputs]
        has_gradients = torch.is_grad_enabled() and any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in inputs
        )
        if block.name not in self._frozen:
            for i, operand in enumerate(block.inputs):
                if isinstance(operand, Ref) and operand.weight and not operand.path:
                    flagged = self._flagged.get(operand.name)
                    if flagged is not None:  # a gradient of a weight is dropped with its alias
                        inputs[i] = _flagged(flagged) if has_gradients else flagged
        graph = self._differentiable(block) if has_gradients else self._compiled[block.name]
        return graph.run(inputs)

    def _differentiable(self, block: Block) -> _C.Executable:
        if block.name in self._frozen:
            return self._compiled[block.name]
        made = self._with_gradients.get(block.name)
        if made is None:
            graph = graph_of(block, self.program.checks_finite)
            made = self._with_gradients[block.name] = _C.compile(_C.native_backend(), graph)
        return made

    def _choose(self, names: Sequence[str], slots: Mapping[str, Any], where: str) -> Block:
        refusals = []
        for name in names:
            refusal = self._first_refusal(self._blocks[name], slots)
            if refusal is None:
                return self._blocks[name]
            if refusal not in refusals:
                refusals.append(refusal)
        detail = "".join(f"\n  {refusal}" for refusal in refusals)
        raise ArtifactError(
            f"{self.program.name}: {where} differs from each call that was saved:{detail}\n"
            "  call the original with such arguments before saving it, or change the arguments"
        )

    def _first_refusal(self, block: Block, slots: Mapping[str, Any]) -> str | None:
        for check in block.checks:
            want = check.want
            try:
                value = self._value(check.of, slots)
                if isinstance(want, Same):
                    if (value is self._value(want.other, slots)) != want.same:
                        return f"argument {check.of}: {want} expected"
                    continue
                if isinstance(want, Relates):
                    numbers = [value, *(self._value(other, slots) for other in want.others)]
                    if not want.holds(numbers):
                        return f"argument {check.of}: {want} expected, got {numbers}"
                    continue
            except (AttributeError, IndexError, KeyError, TypeError):
                return f"argument {check.of}: {want} expected, and there is none"
            got = want.refusal(value)
            if got is not None:
                return f"argument {check.of}: {want} expected, got {got}"
        if not block.decisions:
            return None
        decisions = self._blocks[block.decisions]
        results = self._run(decisions, slots)
        if [bool(result) for result in results] == list(block.outcomes):
            return None
        given = ", ".join(dict.fromkeys(o.name for o in decisions.inputs if isinstance(o, Ref)))
        return f"a branch on elements of {given} goes another way"

    def _value(
        self, operand: Operand, slots: Mapping[str, Any], labelled: dict[int, Any] | None = None
    ) -> Any:
        """`labelled`: objects of this result that occur again, which grows."""

        def make(item: Operand) -> Any:
            return self._value(item, slots, labelled)

        if isinstance(operand, Ref):
            value = (self.program.weights if operand.weight else slots)[operand.name]
            return operand.follow(value) if operand.path else value
        if isinstance(operand, (Const, Tuple, List, Dict)):
            return operand.made(make)
        if labelled is None:
            raise ArtifactError(f"{self.program.name}: an object is not in a result")
        if isinstance(operand, Again):
            return labelled[operand.label]
        if isinstance(operand, Labelled):
            labelled[operand.label] = make(operand.of)
            return labelled[operand.label]
        content = None if operand.content is None else make(operand.content)
        attributes = dict(zip(operand.names, map(make, operand.values), strict=True))
        return objects.make(
            self._classes, operand.class_name, operand.kind, content, attributes, operand.fields
        )


def _flagged(weight: torch.Tensor) -> torch.Tensor:
    """Returns an alias that requires gradients. at::matmul chooses a kernel by that, also in torch.no_grad."""
    return weight.detach().requires_grad_()


def _check_names(program: Program) -> None:
    """Blocks and weights that are referred to exist. Slots are known only when it runs."""
    blocks = {block.name for block in program.blocks}
    if len(blocks) != len(program.blocks):
        raise ArtifactError("two blocks have the same name")
    for name in program.require_grad:
        weight = program.weights.get(name)
        if weight is None or not (weight.is_floating_point() or weight.is_complex()):
            raise ArtifactError(f"the weight {name!r} cannot require gradients")

    def follow(item: Any, where: str) -> None:
        targets = item.blocks if isinstance(item, Jump) else ()
        for name in targets:
            if name not in blocks:
                raise ArtifactError(f"{where} continues at block {name!r}, which does not exist")
        if isinstance(item, Block) and item.decisions and item.decisions not in blocks:
            raise ArtifactError(f"{where} needs block {item.decisions!r}, which does not exist")
        if isinstance(item, Ref) and item.weight and item.name not in program.weights:
            raise ArtifactError(f"{where} uses the weight {item.name!r}, which does not exist")
        if isinstance(item, Mapping):
            item = tuple(item.values())
        if isinstance(item, tuple):
            for part in item:
                follow(part, where)
        elif isinstance(item, NODES):
            for part in dataclasses.fields(item):
                follow(getattr(item, part.name), where)

    follow(Jump(program.entry), "the entry")
    follow(program.state, "the state")
    for block in program.blocks:
        follow(block, f"block {block.name!r}")
