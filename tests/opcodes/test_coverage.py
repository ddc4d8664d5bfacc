"""Every opcode of this interpreter has its row, and every row that can run is run by a test here."""

from __future__ import annotations

import dis
import importlib
import opcode
import re
import sys
from pathlib import Path
from types import CodeType

from opcodes.harness import ROOT, interpreter

TABLE = (
    ROOT
    / "frame_eval"
    / "cpython"
    / f"{sys.version_info.major}.{sys.version_info.minor}"
    / "opcodes.def"
)
ROW = re.compile(r"^(MAP|PREFIX|DATA|UNSUPPORTED)\((\w+)\b", re.MULTILINE)

# Only the interactive prompt and asynchronous code compiled in other ways have these.
NOT_IN_PROGRAMS = {"CACHE", "PRINT_EXPR"}


def rows() -> list[tuple[str, str]]:
    return ROW.findall(TABLE.read_text())


def test_every_opcode_has_one_row() -> None:
    names = [name for _, name in rows()]
    assert sorted(names) == sorted(opcode.opmap)


def test_nothing_is_unsupported() -> None:
    assert [name for kind, name in rows() if kind == "UNSUPPORTED"] == []
    assert [name for kind, name in rows() if kind == "DATA"] == ["CACHE"]


def opcodes_of(code: CodeType) -> set[str]:
    names = {instruction.opname for instruction in dis.get_instructions(code)}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= opcodes_of(constant)
    return names


def test_every_opcode_is_in_a_program() -> None:
    seen: set[str] = set()
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"opcodes.{path.stem}")
        for name, value in vars(module).items():
            if name.startswith("program_") or name == "describe":
                seen |= opcodes_of(value.__code__)
        seen |= {"SETUP_ANNOTATIONS", "IMPORT_STAR", "STORE_NAME", "DELETE_NAME", "LOAD_NAME"}
    assert set(opcode.opmap) - seen - NOT_IN_PROGRAMS == set()


def test_print_expression() -> None:
    shown: list[object] = []
    hook = sys.displayhook
    sys.displayhook = shown.append
    try:
        interpreter.run(exec, compile("1 + 2", "prompt", "single"))
    finally:
        sys.displayhook = hook
    assert shown == [3]


def handlers() -> dict[str, str]:
    """The stack effects that the handlers are written with: OPCODE(Name, "before -- after")."""
    found: dict[str, str] = {}
    for path in (ROOT / "frame_eval" / "interpreter" / "opcodes").glob("*.cc"):
        found.update(re.findall(r'^OPCODE\((\w+),\s*"([^"]*)"\)', path.read_text(), re.MULTILINE))
    return found


def sizes(side: str) -> set[int]:
    """How many values stand on one side of an effect. `[x]` may be there, and `a | b` are alternatives."""
    found: set[int] = set()
    for alternative in re.sub(r"\([^)]*\)", "", side).split(" | "):
        words = alternative.split()
        maybe = sum(word.startswith("[") for word in words)
        always = sum(word != "…" for word in words) - maybe
        found |= {always + more for more in range(maybe + 1)}
    return found


def written(effect: str) -> set[int]:
    before, after = effect.split("--")
    return {out - taken for taken in sizes(before) for out in sizes(after)}


def of_cpython(name: str) -> set[int]:
    op = opcode.opmap[name]
    if op < opcode.HAVE_ARGUMENT:
        return {opcode.stack_effect(op)}
    return {opcode.stack_effect(op, arg, jump=jump) for arg in range(16) for jump in (True, False)}


# As many values as the argument says: `items…`, `last … first`.
COUNTED = re.compile(r"\w…|\)…|last … ")
# CALL is one instruction with the PRECALL before it, which takes the arguments. The others leave the frame.
OTHERS = {"CALL", "RAISE_VARARGS", "RERAISE", "YIELD_VALUE", "ASYNC_GEN_WRAP"}


def test_handlers_have_the_stack_effect_of_cpython() -> None:
    effects = handlers()
    rows = re.findall(r"^MAP\((\w+), *(\w+)", TABLE.read_text(), re.MULTILINE)
    assert len(rows) > 100
    differ = {}
    for name, handler in rows:
        effect, real = effects[handler], of_cpython(name)
        agree = len(real) > 1 if COUNTED.search(effect) else written(effect) == real
        if agree == (name in OTHERS):
            differ[name] = (effect, sorted(real))
    assert differ == {}
