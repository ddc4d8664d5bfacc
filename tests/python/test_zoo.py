"""Architectures of `transformers` with small random weights: three calls in eval mode and two training steps are as in
plain Python to the bit. `python tests/zoo/runner.py` runs the whole list of tests/zoo/architectures.py.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from fixtures.subject import needs_capture
from zoo.runner import run

pytestmark = [
    needs_capture,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
    ),
]

# Breaks where it splits by sizes that are in a tensor: right, and no crash.
BROKEN = ["jetmoe"]
# Led computes sizes with torch.div, and longformer decides on a mask that it fills. Xlm compares lengths of texts with
# a size. Dinov3_vit has a tensor in a cache, which the plain run has filled.
ONE_GRAPH = ["bert", "dinov3_vit", "gpt2", "led", "longformer", "t5", "vit", "xlm"]


def right_row(name: str) -> dict[str, Any]:
    row = run(name)
    assert "skipped" not in row, row
    assert row["outputs"] is True, row
    assert row["gradients"] is True, row
    return row


@pytest.mark.parametrize("name", BROKEN)
def test_right_with_breaks(name: str) -> None:
    assert right_row(name)["hits"] > 0


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name: str) -> None:
    row = right_row(name)
    assert row["given_up"] == [], row
    assert (row["graphs"], row["recordings"], row["hits"]) == (1, 1, 2), row
