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

    A context manager, and a decorator, for programs in their steady state: all their code was
    recorded before, so no call takes longer than the others. The error names the function and the
    position that would be recorded. Where segments do not fit, it names the guard that fails.
    Breaks are fine if the code after them is replayed, and so is code that frametap leaves to
    Python.

    The error is raised before anything is recorded, where the recording would begin. Behind a break that
    is in the middle of a call; what the call did before has been done.

    It may be nested, and holds for the context (:mod:`contextvars`) that entered it: for this
    thread, or for this task of an event loop. Other threads and tasks record as usual, except tasks
    that are created inside of it.
    """
    token = RECORDING_FORBIDDEN.set(True)
    try:
        yield
    finally:
        RECORDING_FORBIDDEN.reset(token)
