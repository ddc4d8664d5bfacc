"""A few of the random programs; `python tests/stress/random_programs.py` runs as many as one likes."""

from __future__ import annotations

import pytest

from .random_programs import fault


@pytest.mark.parametrize(
    ("seeds", "options"),
    [
        (range(150), {}),
        (range(150, 200), {"dynamic": True}),
        (range(200, 230), {"dynamic": False}),
        (range(230, 260), {"backend": "reference"}),
        (range(260, 300), {"backend": "eager"}),
        (range(300, 306), {"backend": "aot_eager", "dynamic": True}),
    ],
    ids=["native", "dynamic", "static", "reference", "eager", "aot_eager"],
)
def test_random_programs_are_plain_python(seeds: range, options: dict[str, object]) -> None:
    faults = [text for seed in seeds if (text := fault(seed, **options))]
    assert not faults, "\n\n".join(faults)
