"""Puts tests/ itself on sys.path (pytest does so for a conftest's folder), so that tests share `fixtures` and `same`.

Everything under test checks itself against the real frame and the real objects (frame_eval/self_check.h).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

os.environ.setdefault("FRAMETAP_SELF_CHECK", "1")


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """One thread, the same random state, and no captured segment of the test before.

    Tests that need neither torch nor the extension (layout, tables) must run without them.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.manual_seed(0)
    yield
    assert sys.exc_info()[1] is None, "an exception is still being handled after the test"
    frametap = sys.modules.get("frametap")
    if reset := getattr(frametap, "reset", None):
        reset()
