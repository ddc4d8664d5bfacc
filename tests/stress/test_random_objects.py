"""A few of the random programs over objects; `python tests/stress/random_objects.py` runs as many as one likes."""

from __future__ import annotations

import pytest

from .random_objects import fault


@pytest.mark.parametrize(
    ("seeds", "options"),
    [
        (range(90), {}),
        (range(90, 110), {"backend": "reference"}),
        (range(110, 120), {"backend": "eager"}),
    ],
    ids=["native", "reference", "eager"],
)
def test_random_programs_over_objects_are_plain_python(
    seeds: range, options: dict[str, object]
) -> None:
    faults = [text for seed in seeds if (text := fault(seed, **options))]
    assert not faults, "\n\n".join(faults)
