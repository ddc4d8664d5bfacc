"""nn.Module.__call__ is crossed in two steps (frame_eval/record/fast_paths/module_calls.cc): what is recorded is what interpretation gives."""

from __future__ import annotations

import dis
import re
import sys
import types
from collections.abc import Sequence
from contextlib import AbstractContextManager

import pytest
import torch

from fixtures.models import MODELS
from fixtures.subject import frametap
from fixtures.switches import switched
from fixtures.tree import ROOT


def crossing(on: bool) -> AbstractContextManager[None]:
    return switched(on, frametap._C.cross_module_calls)


OWN_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")


class Recorded:
    """Returns segments without guards, and guards. They come from a second recording, as the first one does late
    imports.
    """

    def __init__(self, name: str, train: bool) -> None:
        case = MODELS[name]
        model = case.build().train(train)
        inputs = case.inputs(2)
        for _ in range(2):
            frametap.reset()
            captured = frametap.compile(model)
            captured(**inputs)
        segments = [s.text() for s in frametap.explain(captured).segments]
        self.graphs = [re.sub(r"(?s)  guard \{.*?\n  \}\n", "", text) for text in segments]
        # Interpretation reads dicts of hooks as a program does. In a module that is a global, it guards which they are.
        self.guards = [
            (g.source, g.predicate, g.position)
            for g in frametap.guards(captured)
            if not g.source.endswith(OWN_HOOKS) or "module._global" in g.source
        ]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["mlp", "resnet18", "encoder", "bert", "gpt2", "t5"])
def test_nothing_differs_from_interpretation(name: str, train: bool) -> None:
    if MODELS[name].package is not None:
        pytest.importorskip(MODELS[name].package)
    torch.manual_seed(0)
    with crossing(False):
        interpreted = Recorded(name, train)
    torch.manual_seed(0)
    with crossing(True):
        crossed = Recorded(name, train)
    assert interpreted.guards
    assert crossed.graphs == interpreted.graphs
    assert crossed.guards == interpreted.guards
    assert any(predicate == "no hooks" for _, predicate, _ in crossed.guards)


def test_calls_of_modules_are_crossed() -> None:
    """The functions of torch are those that the way through them was written for."""
    with crossing(True):
        assert frametap._C.cross_module_calls(True)


# ---- the code that is crossed ---------------------------------------------------------------------------------------

HEADER = ROOT / "frame_eval" / "record" / "fast_paths" / "module_call_code.h"
GLOBAL_HOOKS = (
    *("_global_backward_pre_hooks", "_global_backward_hooks"),
    *("_global_forward_hooks", "_global_forward_pre_hooks"),
)


def digest(code: types.CodeType) -> int:
    """FNV-1a of the instructions, the names they use, and the names of the variables."""
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    names = [*code.co_names, *code.co_varnames, *cells, *code.co_freevars]
    value = 0xCBF29CE484222325
    for byte in code.co_code + b"".join(name.encode() + b"\0" for name in names):
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


class Code:
    def __init__(self, function: types.FunctionType) -> None:
        self.code = function.__code__
        self.instructions = list(dis.get_instructions(function))

    def places(self, opname: str, argval: object = None) -> list[int]:
        return [
            i
            for i, one in enumerate(self.instructions)
            if one.opname == opname and argval in (None, one.argval)
        ]

    def offset(self, opname: str, argval: object = None, at: int = 0, behind: int = 0) -> int:
        return self.instructions[self.places(opname, argval)[at] + behind].offset


def header() -> str:
    wrapped = Code(torch.nn.Module._wrapped_call_impl)
    call = Code(torch.nn.Module._call_impl)

    def row(kind: str, name: str, value: object) -> str:
        return f"constexpr {kind} {name} = {value};\n"

    def hooks(name: str, opname: str, names: Sequence[str], behind: int) -> str:
        offsets = ", ".join(str(call.offset(opname, one, behind=behind)) for one in names)
        return f"constexpr int {name}[] = {{{offsets}}};\n"

    # The call without a hook is the first one of _call_impl, and the second one of _wrapped_call_impl.
    return (
        "// The two functions of torch.nn.Module.__call__ that module_calls.cc crosses: a digest of each, and offsets in it.\n"
        "// `python tests/python/test_module_calls.py --accept` writes this file for CPython 3.11 and torch 2.13. Before you\n"
        "// accept another one, read torch's code beside module_calls.cc.\n"
        "#pragma once\n\n#include <cstdint>\n\nnamespace frametap::module_call {\n\n"
        "// _wrapped_call_impl\n"
        + row("uint64_t", "kWrappedDigest", f"{digest(wrapped.code):#018x}")
        + row("int", "kReadCompiled", wrapped.offset("LOAD_ATTR", "_compiled_call_impl"))
        + row("int", "kReadCallImpl", wrapped.offset("LOAD_ATTR", "_call_impl"))
        + row("int", "kMergeWrapped", wrapped.offset("DICT_MERGE", at=1))
        + row("int", "kPassOnWrapped", wrapped.offset("CALL_FUNCTION_EX", at=1))
        + "\n// _call_impl\n"
        + row("uint64_t", "kCallDigest", f"{digest(call.code):#018x}")
        + row("int", "kCellCount", len(call.places("MAKE_CELL")))
        + row("int", "kReadTorch", call.offset("LOAD_GLOBAL", "torch"))
        + row("int", "kReadC", call.offset("LOAD_ATTR", "_C"))
        + row("int", "kReadGetTracingState", call.offset("LOAD_METHOD", "_get_tracing_state"))
        + row("int", "kGetTracingState", call.offset("CALL"))
        + row("int", "kReadForward", call.offset("LOAD_ATTR", "forward"))
        + hooks("kReadHooks", "LOAD_ATTR", OWN_HOOKS, 0)
        + hooks("kAskHooks", "LOAD_ATTR", OWN_HOOKS, 1)
        + hooks("kReadGlobalHooks", "LOAD_GLOBAL", GLOBAL_HOOKS, 0)
        + hooks("kAskGlobalHooks", "LOAD_GLOBAL", GLOBAL_HOOKS, 1)
        + row("int", "kMergeCall", call.offset("DICT_MERGE"))
        + row("int", "kPassOnCall", call.offset("CALL_FUNCTION_EX"))
        + "\n}  // namespace frametap::module_call\n"
    )


def test_the_code_is_that_of_this_torch() -> None:
    """If it is not, calls of modules are interpreted, and `explain` says so."""
    assert HEADER.read_text() == header(), (
        "torch.nn.Module.__call__ has changed: read it beside module_calls.cc, then run "
        "python tests/python/test_module_calls.py --accept"
    )
    assert frametap._C.fallbacks() == []


if __name__ == "__main__":
    if "--accept" in sys.argv:
        HEADER.write_text(header())
