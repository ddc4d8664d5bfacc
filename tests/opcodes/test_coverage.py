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
