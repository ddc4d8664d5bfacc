"""The backends under which programs are compared with plain Python.

`FRAMETAP_TEST_BACKENDS=eager,aot_eager` names the backends of a run. Without it every program runs under the default backends, and a
sample of the programs under `eager` and `aot_eager` of torch.compile.

Laws
  K1  Under a backend of ours everything is compared. A compiler runs a graph as a whole, so `NOT_COMPARED` is left out.
  K2  A program that differs under a compiler is a row of `compilers.toml` with its reason. It must differ: the list can
      only shrink.
"""

from __future__ import annotations

import functools
import os
import tomllib
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures.subject import EAGER, frametap

from .harness import Program, Run, compare, plain

# Parts of a tensor that the autograd and the views of a compiled graph decide.
NOT_COMPARED = {
    "eager": frozenset(),
    "aot_eager": frozenset(
        {
            "grad_fn",  # the whole graph is one node
            "version",  # an input is written once, and results count no writes
            "view",  # a result may be a view of a tensor that no program holds
            "_dynamo_propagated_dynamic_indices",  # an attribute for torch.compile
        }
    ),
}
ONE_OF = 30  # programs of the sample


def _named() -> list[str]:
    return [name for name in os.environ.get("FRAMETAP_TEST_BACKENDS", "").split(",") if name]


@functools.cache
def _reasons() -> dict[tuple[str, str], str]:
    """Returns the reason for each backend and program that differs."""
    text = (Path(__file__).parent / "compilers.toml").read_text()
    rows = tomllib.loads(text).get("difference", [])
    return {
        (backend, program): row["reason"]
        for row in rows
        for backend in row["backends"]
        for program in row["programs"]
    }


def cases(names: Sequence[str], default: Sequence[str]) -> Callable[[Any], Any]:
    """Runs a test for each name and each of its backends. `default` are the backends of all names."""
    given = []
    for name in names:
        drawn = [b for b in NOT_COMPARED if zlib.crc32(f"{b} {name}".encode()) % ONE_OF == 0]
        for backend in ["native"] if EAGER else _named() or [*default, *drawn]:
            reason = _reasons().get((backend, name))
            marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
            given.append(pytest.param(name, backend, marks=marks, id=f"{name}-{backend}"))
    return pytest.mark.parametrize(("name", "backend"), given)


def compare_under(backend: str, program: Program) -> tuple[Run, Run]:
    capture = plain if EAGER else functools.partial(frametap.compile, backend=backend)
    return compare(program, capture, unseen=NOT_COMPARED.get(backend, ()))
