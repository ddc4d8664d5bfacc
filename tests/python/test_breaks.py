"""Law 4: n breaks make n + 1 graphs, wherever they are. The programs are those of `tools/bench/breaks.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fixtures.subject import needs_capture

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "bench"))
import breaks

pytestmark = needs_capture


@pytest.mark.parametrize("n", range(breaks.MOST_BREAKS + 1))
@pytest.mark.parametrize("shape", ["nested call, three deep", "while", "try", "with"])
def test_n_breaks_make_n_plus_one_graphs(shape: str, n: int) -> None:
    assert breaks.our_graphs(shape, n) == n + 1
