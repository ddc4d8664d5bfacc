"""Several threads call one compiled function while it is being recorded, replayed, reset.

`FRAMETAP_THREAD_SECONDS` changes the duration of each test. A nightly run gives them ten minutes.
"""

from __future__ import annotations

import _thread
import asyncio
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap

SECONDS = float(os.environ.get("FRAMETAP_THREAD_SECONDS", "5"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor, name: str, how: int = 0) -> dict[str, Any]:
        h = self.lin(x) * len(name)
        if how == 1:
            print(end="")  # the segment ends, another begins
        elif how == 2 and h.sum() > 0:
            h = -h
        elif how == 3:
            raise ValueError(name)
        return {"h": h.relu(), "rows": x.shape[0]}


def in_threads(count: int, work: Callable[[int, int], None], seconds: float = SECONDS) -> int:
    """`work(thread, round)` over and over in each thread; gives the rounds done, raises what a thread raised."""
    raised: list[BaseException] = []
    done = [0] * count
    end = time.monotonic() + seconds

    def loop(thread: int) -> None:
        try:
            while time.monotonic() < end and not raised:
                work(thread, done[thread])
                done[thread] += 1
        except BaseException as error:  # noqa: BLE001 - a thread's exception would be lost
            raised.append(error)

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]
    assert all(done)
    return sum(done)


def call_and_compare(f: Any, net: Net, thread: int, round_: int) -> None:
    x = torch.randn(1 + (thread + round_) % 3, 4, dtype=torch.float32)
    name = "n" * (1 + round_ % 7)
    how = (thread + round_) % 4
    if how == 3:
        with pytest.raises(ValueError, match=name):
            f(x, name, how)
        return
    with torch.set_grad_enabled(round_ % 2 == 0):
        got, want = f(x, name, how), net(x, name, how)
    assert torch.equal(got["h"], want["h"])
    assert got["h"].requires_grad == want["h"].requires_grad
    assert got["rows"] == want["rows"]


def test_a_thread_that_begins_with_a_captured_call() -> None:
    """No Python frame is below the call: the thread has run no Python code at all."""
    ends: list[Tensor] = []

    def double_and_tell(x: Tensor) -> None:
        ends.append(x * 2)

    f = frametap.compile(double_and_tell)
    for calls in range(1, 4):
        _thread.start_new_thread(f, (torch.ones(2),))
        end = time.monotonic() + 60
        while len(ends) < calls and time.monotonic() < end:
            time.sleep(0.001)
    assert [x.tolist() for x in ends] == [[2.0, 2.0]] * 3
    if not EAGER:
        assert frametap.segments(f)


@pytest.mark.slow
def test_two_threads_record_and_replay_one_function() -> None:
    net = Net()
    f = frametap.compile(net)
    in_threads(2, lambda thread, round_: call_and_compare(f, net, thread, round_))


@pytest.mark.slow
def test_threads_record_while_others_forget() -> None:
    """`reset` in one thread while others run the segments that it forgets."""
    net = Net()
    f = frametap.compile(net)

    def work(thread: int, round_: int) -> None:
        if thread == 2 and not EAGER:
            frametap.reset(f)
            frametap.explain(f)
            time.sleep(0.001)
        else:
            call_and_compare(f, net, thread, round_)

    in_threads(3, work)


@pytest.mark.slow
def test_a_thread_without_capture_is_left_alone() -> None:
    """One thread records new functions all the time; what another runs in plain Python is not recorded."""
    net = Net()

    def fresh(x: Tensor) -> Tensor:
        return net.lin(x).relu() + 1

    def work(thread: int, round_: int) -> None:
        x = torch.randn(2, 4)
        if thread == 0:
            f = frametap.compile(fresh)
            assert torch.equal(f(x), fresh(x))
            if not EAGER:
                ops = [node.op for node in frametap.graph(f).nodes]
                assert [op.split(".")[1] for op in ops] == ["linear", "relu", "add"]
        else:
            y = x.clone().mul_(2)
            assert torch.equal(y, x * 2)

    in_threads(2, work, SECONDS / 2)


@pytest.mark.slow
def test_eight_threads_capture_call_and_forget_one_function() -> None:
    """Each thread captures the function again, calls what others have captured, and makes all of them forget."""
    net = Net()
    made = [frametap.compile(net)]

    def work(thread: int, round_: int) -> None:
        f = made[round_ % len(made)]
        if round_ % 50 == thread:
            made[thread % len(made) :] = [frametap.compile(net.forward), frametap.compile(net)]
        elif round_ % 20 == thread and not EAGER:
            frametap.reset(f if thread % 2 else None)
        call_and_compare(f, net, thread, round_)

    in_threads(8, work, float(os.environ.get("FRAMETAP_THREAD_SECONDS", "20")))


@pytest.mark.slow
def test_tasks_of_event_loops_on_eight_threads() -> None:
    """A call is over before another task runs: tasks differ from plain calls in their context variables only."""
    net = Net()
    f = frametap.compile(net)

    async def task(thread: int, round_: int) -> None:
        for i in range(3):
            call_and_compare(f, net, thread, round_ + i)
            await asyncio.sleep(0)

    async def tasks(thread: int, round_: int) -> None:
        await asyncio.gather(*(task(thread, round_ + i) for i in range(4)))

    in_threads(8, lambda thread, round_: asyncio.run(tasks(thread, round_)))
