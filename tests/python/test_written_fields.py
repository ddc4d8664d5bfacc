"""Fields of CPython that are written to (frame_eval/cpython/written_fields.h): tested at the import, left alone if they fail."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
import torch

from fixtures.subject import EAGER, frametap

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is captured")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    frametap._C.leave_fields_alone(signals=False, collector=False)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_both_have_their_effect_here() -> None:
    assert frametap._C.fallbacks() == []


def test_nothing_is_recorded_on_the_main_thread_where_signals_cannot_be_held_back() -> None:
    frametap._C.leave_fields_alone(signals=True, collector=False)
    captured = frametap.compile(double)
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(captured(x), x * 2)
    told = frametap.explain(captured)
    assert told.segments == []
    assert "signals cannot be held back" in str(told.aborts[0])
    assert (
        str(told).count("signals cannot be held back") == 2
    )  # once for the call, once for the process
    thread = threading.Thread(target=captured, args=(x,))
    thread.start()
    thread.join()
    assert len(frametap.explain(captured).segments) == 1
    frametap._C.leave_fields_alone(signals=False, collector=False)
    assert torch.equal(captured(x), x * 2)
    assert frametap.explain(captured).hits == 1


def test_the_collector_runs_in_recordings_where_it_cannot_be_paused() -> None:
    counts: list[int] = []

    def counting(x: torch.Tensor) -> torch.Tensor:
        counts.append(gc.get_count()[0])
        return x * 2

    x = torch.ones(2)
    frametap._C.leave_fields_alone(signals=False, collector=True)
    captured = frametap.compile(counting)
    assert torch.equal(captured(x), x * 2)
    assert torch.equal(captured(x), x * 2)
    assert min(counts) >= 0
    assert "garbage is collected during recordings" in str(frametap.explain(captured))
