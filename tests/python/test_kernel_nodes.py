"""Ops whose kernel is Python code, as nodes that call the op again (frame_eval/record/trace/kernel_nodes.h)."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap

CALLS: list[Any] = []


@torch.library.custom_op("frametap_nodes::doubled", mutates_args=())
def doubled(x: Tensor) -> Tensor:
    return (x * 3).sub(x)


@doubled.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


doubled.register_autograd(
    lambda ctx, grad: grad * 2, setup_context=lambda ctx, inputs, output: None
)


@torch.library.custom_op("frametap_nodes::noted", mutates_args=())
def noted(x: Tensor) -> Tensor:
    CALLS.append(x.shape[0])
    if len(CALLS) % 3 == 0:
        raise ValueError(f"call {len(CALLS)}")
    return x + len(CALLS)


@torch.library.custom_op("frametap_nodes::says", mutates_args=())
def says(x: Tensor) -> Tensor:
    print("said although refused")
    return x.clone()


def test_one_node_calls_the_op() -> None:
    """The graph has the op, and not the ops of its kernel."""
    doubled(
        torch.ones(1)
    )  # torch imports its compiler when the first such op of a process is called
    f = frametap.compile(lambda x: doubled(x + 1) * 2)
    for _ in range(3):
        assert torch.equal(f(torch.ones(3)), torch.full((3,), 8.0))
    told = frametap.explain(f)
    assert (told.recordings, told.graph_count, told.hits) == (1, 1, 2)
    text = frametap.graph(f).text()
    assert "frametap_nodes.doubled" in text
    assert "aten.sub" not in text


def test_a_kernel_with_effects_runs_as_often_as_in_plain_python() -> None:
    """Exceptions and replays do not run it again."""

    def f(x: Tensor) -> Any:
        y = x * 2
        try:
            return (noted(y) + 1).tolist(), len(CALLS)
        except ValueError as error:
            return str(error)

    def run(function: Any) -> list[Any]:
        CALLS.clear()
        return [(function(torch.ones(2)), list(CALLS)) for _ in range(8)]

    assert run(f) == run(frametap.compile(f))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiling_backends(backend: str) -> None:
    """Such backends get a graph before the op and one after it."""

    def plain(x: Tensor) -> Tensor:
        return doubled(x * 1) + says(x).detach()

    f = frametap.compile(plain, backend=backend)
    for _ in range(3):
        x, y = (torch.arange(3.0, requires_grad=True) for _ in range(2))
        f(x).sum().backward()
        plain(y).sum().backward()
        assert x.grad is not None
        assert y.grad is not None
        assert torch.equal(x.grad, y.grad)


def test_another_kernel_under_the_same_key() -> None:
    """It is noticed, though torch.library's own tables do not change."""
    library = torch.library.Library("frametap_nodes", "FRAGMENT")
    library.define("exchanged(Tensor x) -> Tensor")
    library.impl("exchanged", lambda x: x + 1, "CPU")
    f = frametap.compile(lambda x: torch.ops.frametap_nodes.exchanged(x).shape[0])
    try:
        assert [f(torch.ones(2)) for _ in range(3)] == [2, 2, 2]
        for times in (2, 3, 4):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                library.impl("exchanged", lambda x, times=times: torch.cat([x] * times), "CPU")
            assert [f(torch.ones(2)) for _ in range(3)] == [2 * times] * 3
    finally:
        library._destroy()
    with pytest.raises(Exception, match="exchanged"):
        f(torch.ones(2))


def test_fullgraph_takes_kernels_that_it_can_follow(capsys: pytest.CaptureFixture[str]) -> None:
    """Another one is refused before it acts."""
    f = frametap.compile(lambda x: doubled(x) + 1, fullgraph=True)
    for _ in range(3):
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 3.0))
    g = frametap.compile(lambda x: says(x) + 1, fullgraph=True)
    with pytest.raises(frametap.FullGraphError):
        g(torch.ones(2))
    assert capsys.readouterr().out == ""


def test_kernels_are_no_recordings_of_their_own() -> None:
    """A replay in the middle of a call does not record the kernel's frames."""

    def f(x: Tensor) -> Tensor:
        y = doubled(x)
        print(end="")
        return doubled(y) + 1

    compiled = frametap.compile(f)
    for _ in range(4):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    assert frametap.explain(compiled).recordings == 2
    assert all("doubled" not in segment.function for segment in frametap.segments(compiled))


def test_save_refuses(tmp_path: Path) -> None:
    """A file cannot hold the program's code, and the error says so."""

    def f(x: Tensor) -> Tensor:
        return doubled(x)

    compiled = frametap.compile(f)
    for _ in range(2):
        compiled(torch.ones(2))
    with pytest.raises(frametap.ArtifactError, match=r"doubled.*Python code"):
        frametap.save(compiled, tmp_path / "f.zip")


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(doubled(self.first(x)).relu())


def test_quantize_leaves_the_op_in_float() -> None:
    """The op is named as a break, and the layers around it are int8."""
    torch.manual_seed(0)
    net = _Net().eval()
    batches = [torch.randn(4, 8) for _ in range(4)]
    quantized = frametap.quantize(net, batches)
    (found,) = frametap.explain(quantized).breaks
    assert found.reason == "python_kernel"
    assert "_Net.forward" in str(found.position)
    assert [row["decision"] for row in quantized.report if row["op"] == "aten.linear"] == [
        "int8"
    ] * 2
    with torch.no_grad():
        assert torch.allclose(quantized(batches[0]), net(batches[0]), atol=0.2)
