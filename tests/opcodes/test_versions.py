"""The folders of other versions of CPython are complete, and fit these versions.

frame_eval/cpython/3.x has a row for each opcode of numbers/3.x.txt, which has lines of name, number, and code
units of inline cache. Where PYTHON312 and PYTHON313 are paths of such interpreters, the numbers are compared with
theirs, the handlers with their stack effects, and 3.x/layout.h is compiled against their headers.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from opcodes.harness import ROOT
from opcodes.test_coverage import COUNTED, handlers, written

OTHERS = ["3.12", "3.13"]
ROW = re.compile(
    r"^(MAP|PREFIX|DATA|UNSUPPORTED|INSTRUMENTED)\((\w+)(?:, (\w+)(?:, ([^)]+))?)?", re.MULTILINE
)
ASKED = """
import json, opcode, sys, sysconfig
caches = opcode._inline_cache_entries
ops = {}
for name, op in opcode.opmap.items():
    if op > 255:
        continue
    effects = set()
    for arg in [None, *range(64)]:
        try:
            effects |= {opcode.stack_effect(op, arg, jump=jump) for jump in (True, False)}
        except ValueError:  # one that takes an argument, or none, or is not compiled
            pass
    ops[name] = {
        "number": op,
        "caches": caches.get(name, 0) if isinstance(caches, dict) else caches[op],
        "effects": sorted(effects),
    }
version = "%d.%d" % sys.version_info[:2]
print(json.dumps({"version": version, "headers": sysconfig.get_path("include"), "ops": ops}))
"""
ROLE = re.compile(r'{"(\w+)", Role::(\w+)}')
# Stack effects that differ though the meaning does not.
EFFECTS_DIFFER = {
    "3.12": {
        "RAISE_VARARGS": "leaves the frame",
        "RERAISE": "leaves the frame",
        "YIELD_VALUE": "pushes the value that is sent when the frame continues",
        "FOR_ITER": "CPython counts the END_FOR, which is never run",
    },
    "3.13": {
        "RETURN_GENERATOR": "the value that is sent first is on the stack when the frame continues",
        "RAISE_VARARGS": "leaves the frame",
        "RERAISE": "leaves the frame",
        "YIELD_VALUE": "pushes the value that is sent when the frame continues",
        "FOR_ITER": "CPython counts the END_FOR, which is never run",
    },
}


def folder(version: str) -> Path:
    return ROOT / "frame_eval" / "cpython" / version


def rows(version: str) -> list[tuple[str, str, str, str]]:
    """Returns kind, opcode, handler or plain opcode, and argument."""
    return ROW.findall((folder(version) / "opcodes.def").read_text())


def numbers(version: str) -> dict[str, tuple[int, int]]:
    text = (Path(__file__).parent / "numbers" / f"{version}.txt").read_text()
    lines = [line.split() for line in text.splitlines()]
    return {name: (int(number), int(caches)) for name, number, caches in lines}


@cache
def answers(version: str) -> dict[str, Any]:
    """Returns what the interpreter of this version says of itself. Skips the test if none is given."""
    variable = "PYTHON" + version.replace(".", "")
    python = sys.executable if version == "3.11" else os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} does not name an interpreter of Python {version}")
    done = subprocess.run([python, "-c", ASKED], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["version"] == version, f"{variable} names a Python {found['version']}"
    return found


def compile_errors(layout: str, opcodes: str, headers: str) -> str:
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler: set CXX")
    if not (Path(headers) / "internal" / "pycore_frame.h").exists():
        pytest.skip(f"{headers} lacks the private headers of CPython")
    done = subprocess.run(
        [
            *(compiler, "-std=c++20", "-fsyntax-only", "-Wno-deprecated-declarations"),
            *(f"-I{ROOT}", "-isystem", headers, "-isystem", f"{headers}/internal"),
            f'-DFRAMETAP_LAYOUT="frame_eval/cpython/{layout}/layout.h"',
            f'-DFRAMETAP_OPCODES="frame_eval/cpython/{opcodes}/opcodes.def"',
            str(Path(__file__).parent / "door_fits.cc"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr if done.returncode else ""


@pytest.mark.parametrize("version", OTHERS)
def test_every_opcode_has_one_row(version: str) -> None:
    assert sorted(name for _, name, *_ in rows(version)) == sorted(numbers(version))


@pytest.mark.parametrize("version", OTHERS)
def test_rows_lead_to_handlers(version: str) -> None:
    known, names = handlers(), {name for _, name, *_ in rows(version)}
    assert [row for row in rows(version) if row[0] == "MAP" and row[2] not in known] == []
    assert [row for row in rows(version) if row[0] == "INSTRUMENTED" and row[2] not in names] == []


@pytest.mark.parametrize("version", OTHERS)
def test_numbers_are_those_of_the_interpreter(version: str) -> None:
    real = answers(version)["ops"]
    assert numbers(version) == {name: (op["number"], op["caches"]) for name, op in real.items()}


@pytest.mark.parametrize("version", OTHERS)
def test_handlers_have_the_stack_effect(version: str) -> None:
    real, effects = answers(version)["ops"], handlers()
    differ = {}
    for kind, name, handler, argument in rows(version):
        if kind != "MAP":
            continue
        effect, found = effects[handler], real[name]["effects"]
        if COUNTED.search(effect):
            agrees = len(found) > 1
        elif argument.isdigit():  # the row takes one form of the handler
            agrees = written(effect) >= set(found)
        else:
            agrees = written(effect) == set(found)
        if agrees == (name in EFFECTS_DIFFER[version]):
            differ[name] = (effect, found)
    assert differ == {}


@pytest.mark.parametrize("version", ["3.11", *OTHERS])
def test_layout_fits_the_headers(version: str) -> None:
    if version == "3.11":
        # Its list has no INSTRUMENTED rows, and its numbers are compared in test_coverage.py.
        assert not any(kind == "INSTRUMENTED" for kind, *_ in rows(version))
    assert compile_errors(version, version, answers(version)["headers"]) == ""


@pytest.mark.parametrize("version", OTHERS)
def test_layout_of_another_version_does_not_fit(version: str) -> None:
    headers = answers("3.11")["headers"]
    assert "layout.h" in compile_errors(version, "3.11", headers)
    assert "opcodes.def" in compile_errors("3.11", version, headers)


def test_roles_have_opcodes_of_each_version() -> None:
    """No name of instruction_roles.cc is misspelt, and no version leaves a role without an opcode."""
    roles = ROLE.findall((folder("3.11").parent / "instruction_roles.cc").read_text())
    opcodes = {version: {row[1] for row in rows(version)} for version in ["3.11", *OTHERS]}
    assert {name for name, _ in roles} <= set().union(*opcodes.values())
    for version, names in opcodes.items():
        missing = {role for _, role in roles} - {role for name, role in roles if name in names}
        assert missing == set(), (version, missing)
