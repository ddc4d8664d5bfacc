"""Tensors made of Python data are new ones at each replay, under every backend and in exported or saved programs."""

from __future__ import annotations

import copy
import functools
import pickle
import re
from pathlib import Path

import pytest
import torch

import frametap
from frametap import fx
from same.harness import Program, Run, compare, compare_runs, perform, plain, read_programs

PROGRAMS = read_programs(Path(__file__).parent.parent / "same" / "fresh_constants.txt")


def own_backend(gm, examples):
    return gm.forward


def interpreted(gm, examples):
    return torch.fx.Interpreter(gm).run


@pytest.mark.parametrize("backend", ["eager", own_backend, interpreted])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_as_plain_under_callable_backends(program: Program, backend: object) -> None:
    for run in compare(program, functools.partial(frametap.compile, backend=backend)):
        run.close()


# Facts of a returned tensor that AOTAutograd makes again, under torch.compile as well.
AOT_MAKES_ANEW = re.compile(r" (version \d+|view|is_leaf|storage \S+|inference)\b")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_values_under_aot_eager(program: Program) -> None:
    want = perform(Run(program, plain))
    got = perform(Run(program, functools.partial(frametap.compile, backend="aot_eager")))
    for run in (want, got):
        for seen in run.observations:
            seen.lines = [AOT_MAKES_ANEW.sub("", line) for line in seen.lines]
    compare_runs(want, got)
    want.close()
    got.close()


def written(x):
    v = torch.tensor([1.0, 2.0])
    v += 1
    return x + v


def test_inductor():
    f = frametap.compile(written, backend="inductor")
    assert [f(torch.zeros(2)).tolist() for _ in range(3)] == [[2, 3]] * 3


@pytest.mark.parametrize(
    "again", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_exported_module(again):
    f = frametap.compile(written)
    f(torch.zeros(2))
    module = again(fx.to_fx(frametap.graph(f)))
    for _ in range(3):
        assert module(torch.zeros(2))[0].tolist() == [2, 3]


def test_saved_program(tmp_path):
    def f(x):
        v = torch.tensor([1.0, 2.0])
        v += 1
        return x + v, v, torch.tensor(7)

    g = frametap.compile(f)
    g(torch.zeros(2))
    frametap.save(g, tmp_path / "p")
    loaded = frametap.load(tmp_path / "p")
    for _ in range(3):
        results = loaded(torch.zeros(2))
        assert [r.tolist() for r in results] == [[2, 3], [2, 3], 7]
        for r in results:
            r.zero_()
