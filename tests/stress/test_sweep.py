"""The quick form of the fault sweeps; `tools/dev stress` runs them all."""

from __future__ import annotations

import pytest

from fixtures.subject import EAGER

from .sweep import Sweep, program_names, quick_work

pytestmark = pytest.mark.skipif(EAGER, reason="there is nothing to force")


def test_faults_change_nothing() -> None:
    sweep = Sweep(quick_work(program_names()))
    sweep.run()
    assert not sweep.problems, "\n".join(
        f"--- {fault} {name}\n{problem}" for (fault, name), problem in sweep.problems.items()
    )
