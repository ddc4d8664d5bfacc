"""The quick form of the fault sweeps; `tools/dev stress` runs them all."""

from __future__ import annotations

import pytest

from fixtures.subject import EAGER

from .sweep import finished, pieces, program_names, quick_faults

pytestmark = pytest.mark.skipif(EAGER, reason="there is nothing to force")


def test_faults_change_nothing() -> None:
    problems = {
        pair: problem
        for sweep in finished(pieces(program_names(), quick_faults))
        for pair, problem in sweep.problems.items()
    }
    assert not problems, "\n".join(
        f"--- {fault} {name}\n{problem}" for (fault, name), problem in problems.items()
    )


def test_memory_that_ends_while_an_effect_is_made() -> None:
    """Nothing else is made after that: a constructor called with the exception pending raises SystemError."""
    for sweep in finished(pieces(["one_tensor_in_a_cache"], lambda _: ["alloc:12", "alloc:24"])):
        assert not sweep.problems
