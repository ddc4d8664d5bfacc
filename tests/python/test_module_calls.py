"""nn.Module.__call__ is crossed in two steps (frame_eval/module_calls.cc): what is recorded is what interpretation gives."""

from __future__ import annotations

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


def recorded(name: str, train: bool) -> list[str]:
    """Segments with their guards, in words, of a second recording: the first one imports what is imported late."""
    case = MODELS[name]
    model = case.build().train(train)
    inputs = case.inputs(2)
    texts = []
    for _ in range(2):
        frametap.reset()
        captured = frametap.compile(model)
        captured(**inputs)
        texts = [
            *(segment.text() for segment in frametap.explain(captured).segments),
            *map(str, frametap.guards(captured)),
        ]
    return texts


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["mlp", "resnet18", "encoder", "bert", "gpt2", "t5"])
def test_nothing_differs_from_interpretation(name: str, train: bool) -> None:
    if MODELS[name].package is not None:
        pytest.importorskip(MODELS[name].package)
    torch.manual_seed(0)
    with crossing(False):
        interpreted = recorded(name, train)
    torch.manual_seed(0)
    with crossing(True):
        crossed = recorded(name, train)
    assert interpreted
    assert crossed == interpreted


def test_calls_of_modules_are_crossed() -> None:
    """The functions of torch are those that the way through them was written for."""
    with crossing(True):
        assert frametap._C.cross_module_calls(True)
