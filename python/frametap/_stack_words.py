"""Names for values that have no name: those that wait on a frame's value stack where a segment begins.

A segment that begins in the middle of an expression reads them as ``S[0]`` (``S1[0]`` in the
caller's frame). The bytecode shows which instruction has pushed each one, and its position is an
expression of the user's source.
"""

from __future__ import annotations

import dis
import functools
import linecache
import types

__all__ = ["name_of_root", "pushed_by"]

_LONGEST = 40

# Instructions that leave no new value at the top of the stack, whatever they take.
_LEAVE_NO_VALUE = (
    "STORE_",
    "DELETE_",
    "POP_",
    "JUMP",
    "RETURN_",
    "RERAISE",
    "RAISE_",
    "LIST_A",
    "SET_A",
)


@functools.lru_cache(maxsize=256)
def _stacks(code: types.CodeType) -> dict[int, tuple[dis.Instruction, ...]]:
    """The instructions that have put the values of the stack there, by the offset that finds them so.

    Each instruction is visited once, in order. A stack that two ways lead to is the stack of the
    first one.
    """
    found: dict[int, tuple[dis.Instruction, ...]] = {}
    stack: list[dis.Instruction] | None = []
    for step in dis.get_instructions(code):
        if step.offset in found:
            stack = list(found[step.offset])
        if stack is None:  # a handler of exceptions
            continue
        found[step.offset] = tuple(stack)
        argument = step.arg if step.opcode >= dis.HAVE_ARGUMENT else None
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            taken = _after(stack, step, dis.stack_effect(step.opcode, argument, jump=True))
            found.setdefault(step.argval, tuple(taken))
        stack = _after(stack, step, dis.stack_effect(step.opcode, argument, jump=False))
        if step.opname in ("RETURN_VALUE", "RAISE_VARARGS", "RERAISE") or step.opname in (
            "JUMP_FORWARD",
            "JUMP_BACKWARD",
            "JUMP_BACKWARD_NO_INTERRUPT",
        ):
            stack = None
    return found


def _after(
    stack: list[dis.Instruction], step: dis.Instruction, effect: int
) -> list[dis.Instruction]:
    name = step.opname
    if name == "SWAP" and step.arg and step.arg <= len(stack):
        swapped = list(stack)
        swapped[-1], swapped[-step.arg] = swapped[-step.arg], swapped[-1]
        return swapped
    if name == "COPY" and step.arg and step.arg <= len(stack):
        return [*stack, stack[-step.arg]]
    depth = len(stack) + effect
    after = stack[: max(depth, 0)] + [step] * (depth - len(stack))
    # It has taken values, and has left one in their place.
    if after and effect <= 0 and not name.startswith(_LEAVE_NO_VALUE) and _takes(name):
        after[-1] = step
    return after


def _takes(name: str) -> bool:
    return name not in (
        "NOP",
        "RESUME",
        "CACHE",
        "PRECALL",
        "KW_NAMES",
        "EXTENDED_ARG",
        "MAKE_CELL",
    )


def pushed_by(code: types.CodeType, offset: int, slot: int) -> dis.Instruction | None:
    """The instruction that has put value `slot` (bottom first) on the stack that `offset` finds."""
    stack = _stacks(code).get(offset, ())
    return stack[slot] if 0 <= slot < len(stack) else None


def name_of_root(root: tuple[str, object], frames: list[tuple[types.CodeType, int]]) -> str:
    """The expression that a root of sources stands for: "`range(3)`", or "" if it has a name of its own.

    `root`: the first step of a guard's path. `frames`: code and offset of the entry frame and its callers.
    """
    accessor, index = root
    if accessor != "stack" or not isinstance(index, int):
        return ""
    frame, slot = index >> 32, index & 0x7FFFFFFF
    if frame >= len(frames):
        return ""
    code, offset = frames[frame]
    step = pushed_by(code, offset, slot)
    at = step.positions if step is not None else None
    if at is None or at.lineno is None:
        return ""
    text = _text(code.co_filename, at)
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 3] + "..."
    return f"`{text}`" if text else f"line {at.lineno}"


def _text(file: str, at: dis.Positions) -> str:
    """The first line of an expression or statement."""
    if at.lineno is None or at.col_offset is None:
        return ""
    line = linecache.getline(file, at.lineno).encode()  # columns count bytes
    end = at.end_col_offset if at.end_lineno == at.lineno else len(line)
    return line[at.col_offset : end].decode(errors="replace").strip()
