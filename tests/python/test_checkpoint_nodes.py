"""torch.utils.checkpoint as a node that runs recorded ops (frame_eval/record/trace/checkpoint_nodes.h)."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import frametap


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        y = self.second(self.drop(self.norm(self.first(x)).relu()))
        return x + (y if scale is None else y * scale)


def by_module(block: Block, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


def by_closure(block: Block, x: Tensor) -> Tensor:
    def run(*args: Tensor) -> Tensor:
        return block(*args)

    return checkpoint(run, x, x.mean(), use_reentrant=False)


def by_partial(block: Block, x: Tensor) -> Tensor:
    call = partial(checkpoint, use_reentrant=False, preserve_rng_state=True)
    return call(partial(block.__call__, scale=x.sigmoid()), x)


def by_keyword(block: Block, x: Tensor) -> Tensor:
    return checkpoint(block, x, scale=x * 2, use_reentrant=False)


class Model(nn.Module):
    """Blocks of one class, each called through `way`."""

    def __init__(self, way: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.way(block, x)
        return x.sum()


def step(model: Any, module: nn.Module, seed: int) -> list[Tensor]:
    """Return what a training step leaves behind."""
    torch.manual_seed(seed)
    module.zero_grad()
    x = torch.randn(3 + seed % 3, 4, requires_grad=True)
    loss = model(x)
    loss.backward()
    grads = [t.grad for t in (x, *module.parameters())]
    buffers = [b.clone() for b in module.buffers()]
    return [loss.detach(), *[g for g in grads if g is not None], *buffers, torch.rand(2)]


@pytest.mark.parametrize("way", [by_module, by_closure, by_partial, by_keyword])
def test_one_graph_and_equal_gradients(way: Any) -> None:
    """Gradients, running statistics and random numbers are as in plain Python, for other sizes as well."""
    plain, ours = Model(way), Model(way)
    compiled = frametap.compile(ours)
    for seed in range(6):
        got, want = step(compiled, ours, seed), step(plain, plain, seed)
        assert len(got) == len(want)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True)), seed
    told = frametap.explain(compiled)
    assert not told.breaks
    assert (told.recordings, told.graph_count, told.hits) == (1, 1, 5)
    assert "frametap.checkpoint" in frametap.graph(compiled).text()


def test_what_is_recomputed_is_not_kept() -> None:
    """A replay keeps no more tensors for backward than plain Python does."""

    def f(x: Tensor) -> Tensor:
        return checkpoint(lambda a: a.exp().sin().exp().sin(), x * 1, use_reentrant=False)

    compiled = frametap.compile(f)
    counts = []
    for function in (f, compiled, compiled, compiled):
        x = torch.ones(1000, requires_grad=True)
        gc.collect()
        before = sum(1 for o in gc.get_objects() if isinstance(o, Tensor))
        y = function(x)
        counts.append(sum(1 for o in gc.get_objects() if isinstance(o, Tensor)) - before)
        y.sum().backward()
    assert max(counts[1:]) <= counts[0]


def test_the_module_and_its_inputs_are_let_go() -> None:
    """Neither the segment nor a finished call keeps what was checkpointed."""
    model = Model(by_closure)
    compiled = frametap.compile(model)
    for seed in range(3):
        step(compiled, model, seed)
    x = torch.randn(3, 4, requires_grad=True)
    held = weakref.ref(x)
    compiled(x).backward()
    del x
    gc.collect()
    assert held() is None
    gone = weakref.ref(model.blocks[0])
    del model, compiled
    gc.collect()
    assert gone() is None


def test_compiling_backends_break() -> None:
    """A backend that compiles gets a graph before the call and one after it, and gradients are right."""
    plain, ours = Model(by_module), Model(by_module)
    compiled = frametap.compile(ours, backend="aot_eager")
    for seed in (0, 3, 6):
        got, want = step(compiled, ours, seed), step(plain, plain, seed)
        assert len(got) == len(want)
        assert all(torch.allclose(a, b) for a, b in zip(got, want, strict=True)), seed


def test_save_refuses(tmp_path: Path) -> None:
    """A file cannot hold the program's code, and the error says so."""

    def f(x: Tensor) -> Tensor:
        return checkpoint(torch.sin, x, use_reentrant=False) + checkpoint(
            lambda a: a.exp(), x, use_reentrant=False
        )

    def g(x: Tensor) -> Tensor:
        return checkpoint(lambda a: a.exp(), x, use_reentrant=False)

    compiled = frametap.compile(g)
    for _ in range(2):
        compiled(torch.ones(2))
        assert torch.equal(frametap.compile(f)(torch.ones(2)), f(torch.ones(2)))
    with pytest.raises(frametap.ArtifactError, match="checkpoint"):
        frametap.save(compiled, tmp_path / "f.zip")
