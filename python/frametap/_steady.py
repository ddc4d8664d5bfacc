"""``frametap.assert_no_recording``: what has been warmed up is replayed, or an error says why not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

__all__ = ["RECORDING_FORBIDDEN", "assert_no_recording"]

# Read by the extension where a recording would begin: replays do not look at it.
RECORDING_FORBIDDEN: ContextVar[bool] = ContextVar("frametap.assert_no_recording", default=False)


@contextlib.contextmanager
def assert_no_recording() -> Iterator[None]:
    """Inside of it, a call that would be recorded raises :class:`RecordingError` instead.

    A context manager, and a decorator, for programs in their steady state: whatever they call was
    recorded before, so that no call takes longer than the others. The error says which function would be
    recorded at which position and, where segments of it do not fit, which guard says no. Breaks are
    fine if what comes behind them is replayed; so is what frametap leaves to Python.

    The error is raised before anything is recorded, where the recording would begin. Behind a break that
    is in the middle of a call; what the call did before has been done.

    It may be nested, and holds for the context (:mod:`contextvars`) that entered it: for this thread, or
    for this task of an event loop. Other threads and tasks record as usual, but for tasks that are
    created inside of it.
    """
    token = RECORDING_FORBIDDEN.set(True)
    try:
        yield
    finally:
        RECORDING_FORBIDDEN.reset(token)
