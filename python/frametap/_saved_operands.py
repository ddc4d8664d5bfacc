"""Operands of segments as operands of a program: the inputs of a graph, and the values that follow from it.

Not here: where the objects are (``_settled_objects.py``), which operands a block has (``_save.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from frametap import _C
from frametap import _program as prog
from frametap._errors import refuse_segment
from frametap._guards import is_plain
from frametap._saved_objects import name_of
from frametap._settled_objects import UNKNOWN, Settled, SettledObjects

__all__ = ["SegmentView", "input_of"]


def input_of(
    segment: _C.Segment,
    row: _C.InputRow,
    objects: SettledObjects,
    environment: Mapping[str, Any],
) -> prog.Operand:
    """Returns the operand of an input of the segment's graph."""
    where = objects.resolve(row["path"], environment)
    if isinstance(where, prog.Ref):
        return where
    value = where.value
    if value is UNKNOWN and row["weight"] is not None:  # another tensor in the weight's memory
        value = objects.tensor_like(row["weight"])
    if isinstance(value, torch.Tensor):
        return objects.weight(value, row["source"])
    if is_plain(value):
        return prog.Const(value)
    refuse_segment(
        segment.name, f"the input {row['source']} cannot be found again", "make it an argument"
    )


@dataclass(frozen=True)
class SegmentView:
    """A segment at its end: its locals, and the operands of its effects and its exit."""

    segment: _C.Segment
    objects: SettledObjects
    environment: Mapping[str, Any]  # settled locals
    slots: frozenset[str]  # open ones
    values: Mapping[str, prog.Operand]  # by name of a graph value

    def settled(self, operand: Mapping[str, Any]) -> Settled | None:
        """Returns the object if it is settled and no file could hold it, else None."""
        kind = operand["kind"]
        if kind == "null":
            return Settled(UNKNOWN)
        if kind == "const" and not is_plain(operand["constant"]):
            return Settled(operand["constant"])
        if kind == "source":
            where = self.objects.resolve(operand["path"], self.environment)
            if isinstance(where, Settled) and not (
                isinstance(where.value, torch.Tensor) or is_plain(where.value)
            ):
                return where
        return None

    def operand(
        self, operand: Mapping[str, Any], what: str, labels: set[int] | None = None
    ) -> prog.Operand:
        """Returns the operand of the program. `what` names it in an error.

        `labels`: of the objects that are complete; None where no objects may be, which is outside of results.
        """
        if labels is not None and operand["label"] >= 0:
            made = self._unlabelled(operand, what, labels)
            labels.add(operand["label"])
            return prog.Labelled(operand["label"], made)
        return self._unlabelled(operand, what, labels)

    def _unlabelled(
        self, operand: Mapping[str, Any], what: str, labels: set[int] | None
    ) -> prog.Operand:
        kind, items = operand["kind"], operand.get("items", ())

        def parts(of: Sequence[Mapping[str, Any]]) -> tuple[prog.Operand, ...]:
            return tuple(self.operand(item, what, labels) for item in of)

        if kind == "value":
            return self.values[operand["value"]]
        if kind == "const" and is_plain(operand["constant"]):
            return prog.Const(operand["constant"])
        if kind == "source":
            where = self.objects.resolve(operand["path"], self.environment)
            owner_in = self.objects.function.owner_in
            if where == prog.Ref(owner_in):
                refuse_segment(
                    self.segment.name,
                    f"{what} is or holds *{owner_in}, and so the model itself",
                    "return single arguments instead of all of them",
                    self.segment.exit["position"],
                )
            if isinstance(where, prog.Ref):
                return where
            if isinstance(where.value, torch.Tensor):
                return self.objects.weight(where.value, operand["source"])
            if is_plain(where.value):
                return prog.Const(where.value)
        if kind == "tuple":
            return prog.Tuple(parts(items))
        if kind == "list":
            return prog.List(parts(items))
        if kind == "dict" and all(
            key["kind"] == "const" and is_plain(key["constant"]) for key in items[::2]
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
                        name_of(cls),
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
        refuse_segment(
            self.segment.name,
            f"{what} is or holds {description}, which cannot be saved",
            "use tensors, numbers, strings, and tuples, lists or dicts of them",
            self.segment.exit["position"],
        )


def _fields(cls: type) -> tuple[str, ...]:
    """Returns the names of a named tuple's items."""
    names = getattr(cls, "_fields", ()) if issubclass(cls, tuple) else ()
    is_named = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
    return names if is_named else ()
