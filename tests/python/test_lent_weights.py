"""Weights that a segment finds once and uses at each call: whichever they are, and whatever becomes of them meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import frametap, needs_capture

CALLS = 4  # after the first: weights are lent from the second or third hit on


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.first(x)) + self.shift


def another_parameter(net: Net) -> None:
    net.first.weight = nn.Parameter(torch.randn(4, 4))


def another_module(net: Net) -> None:
    net.first = nn.Linear(4, 4)


def another_memory(net: Net) -> None:
    net.first.weight.data = torch.randn(4, 4)


def written(net: Net) -> None:
    with torch.no_grad():
        net.first.weight.mul_(2)


def swapped(net: Net) -> None:
    torch.utils.swap_tensors(net.first.weight, nn.Parameter(torch.randn(4, 4)))


def another_dtype(net: Net) -> None:
    net.double()
    net.float()


def another_buffer(net: Net) -> None:
    net.shift = torch.full((4,), 3.0)


def shared(net: Net) -> None:
    net.norm.bias = net.norm.weight


def frozen(net: Net) -> None:
    net.requires_grad_(not net.first.weight.requires_grad)


def loaded(net: Net) -> None:
    net.load_state_dict({k: v + 1 for k, v in net.state_dict().items()}, assign=True)


CHANGES = [
    another_parameter,
    another_module,
    another_memory,
    written,
    swapped,
    another_dtype,
    another_buffer,
    shared,
    frozen,
    loaded,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_each_call_uses_the_weights_of_that_moment(
    change: Callable[[Net], None], grad: bool
) -> None:
    net, x = Net(), torch.randn(3, 4)
    f = frametap.compile(net)
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            for _ in range(CALLS):
                assert torch.equal(f(x), net(x))
            change(net)
        assert torch.equal(f(x), net(x))


@needs_capture
def test_a_model_dies_though_its_weights_were_lent() -> None:
    net, x = Net(), torch.randn(3, 4)

    @frametap.compile
    def run(model: nn.Module, x: Tensor) -> Tensor:
        return model(x)

    with torch.no_grad():
        for _ in range(CALLS):
            run(net, x)
    alive = [weakref.ref(p) for p in net.parameters()] + [weakref.ref(net)]
    del net
    gc.collect()
    assert [ref() for ref in alive] == [None] * len(alive)
    other = Net()  # perhaps at the same addresses
    with torch.no_grad():
        for _ in range(CALLS):
            assert torch.equal(run(other, x), other(x))


def test_no_reference_is_left_behind() -> None:
    net, x = Net(), torch.randn(3, 4)
    f = frametap.compile(net)
    counts = [p._use_count() for p in net.parameters()]
    with torch.no_grad():
        for _ in range(CALLS):
            f(x)
    assert [p._use_count() for p in net.parameters()] == counts
    with pytest.raises(RuntimeError), torch.no_grad():
        f(torch.ones(2, 5))
    assert [p._use_count() for p in net.parameters()] == counts


def test_a_weight_that_is_the_result_outlives_its_model() -> None:
    class Gives(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.arange(4.0))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.table, x + self.table

    net = Gives()
    f = frametap.compile(net)
    for _ in range(CALLS):
        table, _ = f(torch.ones(4))
        assert table is net.table
    del f, net
    gc.collect()
    assert torch.equal(table, torch.arange(4.0))


def test_a_segment_runs_within_itself() -> None:
    """An op that is Python code calls what it is part of."""
    net, x = Net(), torch.randn(3, 4)
    compiled = [frametap.compile(net)]  # emptied: torch keeps kernels in Python for ever
    depth = 0

    def nested(t: Tensor) -> Tensor:
        nonlocal depth
        if depth == 2:
            return t
        depth += 1
        try:
            return compiled[0](t)
        finally:
            depth -= 1

    library = torch.library.Library("frametap_lent", "DEF")
    library.define("nested(Tensor x) -> Tensor")
    library.impl("nested", lambda t: nested(t).clone(), "CPU")

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def forward(self, x: Tensor) -> Tensor:
            return torch.ops.frametap_lent.nested(self.inner(x)) * 2

    outer = Outer()
    g = frametap.compile(outer)
    try:
        with torch.no_grad():
            for _ in range(CALLS):
                assert torch.equal(g(x), outer(x))
    finally:
        compiled.clear()


def test_threads_that_run_while_another_replaces_weights() -> None:
    net, x = Net(), torch.randn(64, 4)
    f = frametap.compile(net)
    with torch.no_grad():
        for _ in range(CALLS):
            f(x)
    stop = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with torch.no_grad():
                while not stop.is_set():
                    assert f(x).isfinite().all()
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        another_parameter(net)
        another_buffer(net)
        gc.collect(0)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    with torch.no_grad():
        assert torch.equal(f(x), net(x))
