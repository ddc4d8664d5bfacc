"""Guards of segments as checks of a program.

S4  Guards on open objects become checks of the program. Guards on settled ones are evaluated now, and a segment
    for which one fails is left out.

Not here: checks as data, and their words (``_program.py``); which objects are settled (``_settled_objects.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch

from frametap import _C
from frametap import _program as prog
from frametap._errors import ArtifactError, refuse_segment
from frametap._guards import UNREAD, value_of
from frametap._settled_objects import SETTLED_STEPS, UNKNOWN, Settled, SettledObjects, Where

__all__ = ["check_states", "checks_of"]

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_NUMBERS = ("int", "float", "bool")

Steps: TypeAlias = tuple[tuple[str, Any], ...]


def checks_of(
    segment: _C.Segment,
    objects: SettledObjects,
    environment: Mapping[str, Any],
    refused: list[str],
) -> list[prog.Check] | None:
    """Returns the checks of a segment, or None if a guard on a settled object fails. `refused` gets the text of that guard."""
    checks: list[prog.Check] = []
    for row in segment.guard_rows:
        if not row["predicate"] or row["is_decision"]:
            continue
        where = objects.resolve(segment.guard_path(row["number"]), environment)
        if isinstance(where, Settled):
            if not _holds(segment, row, where.value, objects, environment):
                refused.append(
                    f"{segment.name}: {_text(segment, row)}  @ {row['position']['text']}"
                )
                return None
            continue
        if row["other"] is not None:
            other = objects.resolve(row["other"], environment)
            checks += _same(segment, where, other, row, objects)
            continue
        wants = _wants(row)
        if (related := _relates(row, where, objects, environment)) is not None:
            checks.append(related)
            continue
        if wants is None:
            refuse_segment(
                segment.name,
                f"the check '{_text(segment, row)}' has no form in a file",
                "make the argument a tensor, a number or a container of these",
                row["position"],
            )
        for step, want in wants:
            of = prog.Ref(where.name, (*where.path, *step), where.weight)
            checks.append(prog.Check(of, want))
    return checks


def _text(segment: _C.Segment, row: _C.GuardRow) -> str:
    return f"{segment.guard_source(row['number'])} : {row['predicate']}"


def _relates(
    row: _C.GuardRow, where: prog.Ref, objects: SettledObjects, environment: Mapping[str, Any]
) -> prog.Check | None:
    """Returns the check of a formula over numbers, the first of which is at `where`."""
    if row["formula"] is None:
        return None
    others = [objects.resolve(path, environment) for path in row["formula"]["paths"][1:]]
    if not all(isinstance(other, prog.Ref) for other in others):
        return None
    return prog.Check(where, prog.Relates(row["formula"]["text"], tuple(others)))


def _same(
    segment: _C.Segment, one: prog.Ref, other: Where, row: _C.GuardRow, objects: SettledObjects
) -> list[prog.Check]:
    same = row["kind"] == "is"
    if isinstance(other, Settled):
        if isinstance(other.value, torch.Tensor):
            other = objects.weight(other.value, segment.guard_source(row["number"]))
        elif not same:
            return []  # an argument of the program is not one of the model's own objects
        else:
            refuse_segment(
                segment.name,
                f"the check '{_text(segment, row)}' has no form in a file",
                "do not pass the model's own objects to it",
                row["position"],
            )
    return [] if one == other and same else [prog.Check(one, prog.Same(other, same))]


def _holds(
    segment: _C.Segment,
    row: _C.GuardRow,
    value: Any,
    objects: SettledObjects,
    environment: Mapping[str, Any],
) -> bool:
    """Returns whether a guard on a settled object holds now. An object that cannot be found again is guarded by identity."""
    if value is UNKNOWN:
        return True
    if row["other"] is not None:
        found = objects.resolve(row["other"], environment)
        if isinstance(found, Settled):
            return found.value is UNKNOWN or (value is found.value) == (row["kind"] == "is")
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
                found = SETTLED_STEPS[accessor](found, key)
        except (AttributeError, IndexError, KeyError, TypeError):
            return False
        if want.refusal(found) is not None:
            return False
    return True


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


def check_states(segments: Sequence[_C.Segment], function: str) -> None:
    """Raises if the segments were recorded under different states of the thread (autocast).

    Two calls that differ only in that would be one call of the program.
    """
    states = {
        tuple(f"{k}({v})" for k, v in s.state.items() if k != "grad_mode"): s for s in segments
    }
    if len(states) > 1:
        lines = "".join(f"\n  {s.name}: {', '.join(state)}" for state, s in states.items())
        raise ArtifactError(
            f"save: segments of {function} were recorded under different states of "
            f"the thread:{lines}\n  frametap.reset(f), call it under the one to be saved, save again"
        )
