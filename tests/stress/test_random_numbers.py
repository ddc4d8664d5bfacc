"""A few of the random programs over numbers; `python tests/stress/random_numbers.py` runs as many as one likes."""

from __future__ import annotations

import pytest

from .random_numbers import fault


@pytest.mark.parametrize(
    ("seeds", "options"),
    [
        (range(150), {}),
        (range(150, 170), {"backend": "reference"}),
    ],
    ids=["native", "reference"],
)
def test_random_programs_over_numbers_are_plain_python(
    seeds: range, options: dict[str, object]
) -> None:
    faults = [text for seed in seeds if (text := fault(seed, **options))]
    assert not faults, "\n\n".join(faults)
