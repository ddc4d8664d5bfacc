"""nn.Module.__call__ is crossed in two steps (frame_eval/record/fast_paths/module_calls.cc): what is recorded is what interpretation gives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from fixtures.models import MODELS
from fixtures.subject import frametap


@contextmanager
def crossing(on: bool) -> Iterator[None]:
    was = frametap._C.cross_module_calls(on)
    try:
        yield
    finally:
        frametap._C.cross_module_calls(was)


HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
OF_THE_CLASS = ("_compiled_call_impl", "_call_impl", "forward")


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
        self.guards = [(g.source, g.predicate, g.position) for g in frametap.guards(captured)]

    def without_calls(self) -> tuple[list[tuple[str, str, str]], set[str]]:
        """The guards that do not speak of how a module is called, and the modules that are called without hooks."""
        parts = {f"absent {name!r}" for name in OF_THE_CLASS}
        others, called, modules = [], [], set()
        for source, predicate, position in self.guards:
            if predicate == "no hooks":
                modules.add(source)
                continue
            of_class = predicate in parts and "_call_impl:" in position
            of_hooks = source.endswith(HOOKS) and "module._global" not in source
            if of_class or of_hooks:
                called.append((source, predicate))
            else:
                others.append((source, predicate, position))
        for source, predicate in called:
            if predicate == "absent 'forward'":
                dicts = [f"{source}.{name}" for name in HOOKS]
                assert all((at, "len 0") in called for at in dicts)
                assert all((source, part) in called for part in parts)
                modules.add(source)
        return others, modules


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["mlp", "resnet18", "encoder", "bert", "gpt2", "t5"])
def test_nothing_differs_from_interpretation(name: str, train: bool) -> None:
    """But for the guards on how modules are called: one for each in place of eleven."""
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
    assert len(crossed.guards) < len(interpreted.guards)
    others, modules = interpreted.without_calls()
    assert modules
    assert crossed.without_calls() == (others, modules)


def test_calls_of_modules_are_crossed() -> None:
    """The functions of torch are those that the way through them was written for."""
    with crossing(True):
        assert frametap._C.cross_module_calls(True)
