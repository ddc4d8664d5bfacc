"""A small sample of the fault sweeps; `sweep.py` runs them all."""

from __future__ import annotations

import pytest

from fixtures.subject import EAGER

from .sweep import run_child

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EAGER, reason="there is nothing to force"),
]


@pytest.mark.parametrize(
    "fault", ["abort:3", "abort:40", "exit:1", "exit:7", "miss:2", "alloc:5", "drop"]
)
def test_faults_change_nothing(fault: str) -> None:
    code, differing, output = run_child(fault, [])
    assert not differing, output[-4000:]
    assert code == 0, output[-4000:]


@pytest.mark.parametrize("fault", ["raise:1", "raise:4"])
def test_raised_ops_kill_nothing(fault: str) -> None:
    code, differing, output = run_child(fault, [])
    assert code == 0, (differing, output[-4000:])
