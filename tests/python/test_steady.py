"""``frametap.assert_no_recording``: what would be recorded is an error, and nothing is recorded."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import traceback
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.subject import frametap, needs_capture

pytestmark = [needs_capture]


def scaled(x: Tensor, mode: str = "relu") -> Tensor:
    y = x * 2
    return y.relu() if mode == "relu" else y


def broken(x: Tensor) -> Tensor:
    y = x + 1
    print(end="")
    return y * 3


def in_steady_state(f: Any, *args: Any) -> Any:
    with frametap.assert_no_recording():
        return f(*args)


def test_what_was_recorded_is_replayed() -> None:
    f = frametap.compile(scaled)
    f(torch.ones(2))
    for size in (2, 3):
        assert torch.equal(in_steady_state(f, torch.ones(size)), torch.full((size,), 2.0))
    assert frametap.explain(f).recordings == 1


def test_a_first_call_is_refused() -> None:
    f = frametap.compile(scaled)
    with pytest.raises(frametap.RecordingError) as caught:
        in_steady_state(f, torch.ones(2))
    error = caught.value
    line = inspect.getsourcelines(scaled)[1] + 1
    assert isinstance(error, frametap.FrametapError)
    assert (error.reason, error.function, error.miss) == ("not_recorded", "scaled", None)
    assert error.position.startswith(f"scaled:{line}")
    for part in ("assert_no_recording", "scaled", __file__, error.advice):
        assert part in str(error)
    assert frametap.segments(f) == []
    f(torch.ones(2))
    assert frametap.explain(f).recordings == 1


def test_a_miss_is_told_in_words() -> None:
    f = frametap.compile(scaled)
    f(torch.ones(2))
    with pytest.raises(frametap.RecordingError) as caught:
        in_steady_state(f, torch.ones(2, dtype=torch.float64))
    error = caught.value
    assert error.reason == "miss"
    assert (error.miss.segment, error.miss.source) == ("scaled#0", "L.x")
    assert "f32" in error.miss.want
    assert "f64" in error.miss.got
    assert "dtype" in error.miss.why
    for part in ("L.x", "want", "got", error.advice):
        assert part in str(error)
    with pytest.raises(frametap.RecordingError) as caught:
        in_steady_state(f, torch.ones(2), "tanh")
    line = inspect.getsourcelines(scaled)[1] + 2
    assert caught.value.miss.position.startswith(f"scaled:{line}")
    assert "'relu'" in str(caught.value)
    assert len(frametap.segments(f)) == 1


def test_the_limit_of_segments() -> None:
    f = frametap.compile(scaled, options={"segment_limit": 1})
    f(torch.ones(2))
    f(torch.ones(2), "tanh")
    with pytest.raises(frametap.RecordingError) as caught:
        in_steady_state(f, torch.ones(2), "tanh")
    assert caught.value.reason == "segment_limit"
    assert "segment_limit" in caught.value.advice


def test_breaks_are_fine_where_the_rest_is_replayed() -> None:
    f = frametap.compile(broken)
    f(torch.ones(2))
    assert torch.equal(in_steady_state(f, torch.ones(2)), torch.full((2,), 6.0))


def test_behind_a_break_it_is_raised_in_the_middle() -> None:
    done = []

    def two_ways(x: Tensor, flag: list[bool]) -> Tensor:
        x = x + 1
        done.append(1)
        print(end="")
        return x * 2 if flag[0] else x * 3

    f = frametap.compile(two_ways)
    f(torch.ones(2), [True])
    done.clear()
    with pytest.raises(frametap.RecordingError) as caught:
        in_steady_state(f, torch.ones(2), [False])
    assert done == [1]
    line = inspect.getsourcelines(two_ways)[1] + 3  # after the call, before the next instruction
    assert f"two_ways:{line}" in caught.value.position
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert ("two_ways", line) in [(frame.name, frame.lineno) for frame in frames]


def test_blocks_are_left_and_nobody_swallows_it() -> None:
    left = []

    def guarded(x: Tensor, flag: list[bool]) -> Tensor | None:
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(left.append, "with")
                print(end="")
                return x * 2 if flag[0] else x * 3
        except Exception:  # noqa: BLE001  the program's own way to go on
            left.append("except")
            return None
        finally:
            left.append("finally")

    f = frametap.compile(guarded)
    f(torch.ones(2), [True])
    left.clear()
    with pytest.raises(frametap.RecordingError):
        in_steady_state(f, torch.ones(2), [False])
    assert left == ["with", "except", "finally"]


def test_it_nests_and_is_over_at_its_end() -> None:
    f = frametap.compile(scaled)
    with frametap.assert_no_recording():
        with frametap.assert_no_recording():
            pass
        with pytest.raises(frametap.RecordingError):
            f(torch.ones(2))
    with contextlib.suppress(ValueError), frametap.assert_no_recording():
        raise ValueError
    f(torch.ones(2))
    assert len(frametap.segments(f)) == 1


def test_as_a_decorator() -> None:
    f = frametap.compile(scaled)

    @frametap.assert_no_recording()
    def serve(x: Tensor, again: bool = True) -> Tensor:
        return serve(x, False) if again else f(x)

    for _ in range(2):
        with pytest.raises(frametap.RecordingError):
            serve(torch.ones(2))
    f(torch.ones(2))
    assert torch.equal(serve(torch.ones(2)), torch.full((2,), 2.0))


def test_it_holds_for_its_own_thread_and_context() -> None:
    f = frametap.compile(scaled)
    seen = []
    with frametap.assert_no_recording():
        thread = threading.Thread(target=lambda: seen.append(f(torch.ones(2))))
        thread.start()
        thread.join()
        contextvars.Context().run(f, torch.ones(2, dtype=torch.float64))
        with pytest.raises(frametap.RecordingError):
            f(torch.ones(2, dtype=torch.int64))
    assert len(seen) == 1
    assert len(frametap.segments(f)) == 2


def test_tasks_of_an_event_loop() -> None:
    f = frametap.compile(scaled)

    async def strict(entered: asyncio.Event, recorded: asyncio.Event) -> str:
        with frametap.assert_no_recording():
            entered.set()
            await recorded.wait()
            f(torch.ones(3))
            with pytest.raises(frametap.RecordingError):
                f(torch.ones(2, dtype=torch.int64))
        return "strict"

    async def relaxed(entered: asyncio.Event, recorded: asyncio.Event) -> str:
        await entered.wait()
        f(torch.ones(2))
        recorded.set()
        return "relaxed"

    async def both() -> list[str]:
        events = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(strict(*events), relaxed(*events))

    assert asyncio.run(both()) == ["strict", "relaxed"]


def test_inside_of_a_captured_function() -> None:
    inner = frametap.compile(scaled)

    def outer(x: Tensor) -> Tensor:
        x = x + 1
        with frametap.assert_no_recording():
            x = inner(x)
        return x

    f = frametap.compile(outer)
    inner(torch.ones(2))
    f(torch.ones(2))
    for size in (2, 3):
        assert torch.equal(f(torch.ones(size)), outer(torch.ones(size)))


def test_modules() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    f = frametap.compile(model)
    x = torch.ones(1, 2)
    with pytest.raises(frametap.RecordingError) as caught:
        in_steady_state(f, x)
    assert "forward" in caught.value.function
    f(x)
    assert torch.equal(in_steady_state(f, x), model(x))
