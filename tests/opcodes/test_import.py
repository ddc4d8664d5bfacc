"""Imports."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import contextlib
import io
import sys
import types

import pytest

from opcodes.harness import Program, check, programs


def program_import():
    import collections.abc
    import os.path as p
    from math import floor as f
    from math import pi

    return p.basename("a/b"), f(pi), collections.abc.Sized.__name__


def program_import_missing_module():
    import no_such_module  # noqa: F401


def program_import_missing_name():
    from math import no_such_name  # noqa: F401


def program_import_missing_submodule():
    from os import no_such_name  # noqa: F401


def program_import_star():
    space = {}
    exec("from string import *", space)
    return sorted(k for k in space if k != "__builtins__")


def program_import_star_without_all():
    module = types.ModuleType("loose")
    module.a, module._hidden = 1, 2
    sys.modules["loose"] = module
    try:
        space = {}
        exec("from loose import *", space)
    finally:
        del sys.modules["loose"]
    return "a" in space, "_hidden" in space


def program_import_star_bad_all():
    module = types.ModuleType("loose")
    module.__all__ = [3]
    sys.modules["loose"] = module
    try:
        exec("from loose import *", {})
    except TypeError as e:
        return str(e)
    finally:
        del sys.modules["loose"]


def program_import_star_missing_name():
    module = types.ModuleType("loose")
    module.__all__ = ["absent"]
    sys.modules["loose"] = module
    try:
        exec("from loose import *", {})
    except AttributeError as e:
        return str(e)
    finally:
        del sys.modules["loose"]


def program_circular_import():
    module = types.ModuleType("partial")
    sys.modules["partial"] = module
    sys.modules["partial.sub"] = 7
    try:
        exec("from partial import sub; found = sub", space := {})
        return space["found"]
    finally:
        del sys.modules["partial"], sys.modules["partial.sub"]


def program_own_import_function():
    log = []

    def own(name, globals=None, locals=None, fromlist=(), level=0):
        log.append((name, fromlist, level))
        return __import__(name, globals, locals, fromlist, level)

    exec("import math; from os import path", {"__builtins__": {"__import__": own}})
    return log


def program_no_import_function():
    exec("import math", {"__builtins__": {}})


def program_fresh_import():
    saved = sys.modules.pop("this", None)
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    if saved:
        sys.modules["this"] = saved
    return len(this.d)


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
