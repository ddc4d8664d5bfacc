"""Architectures of `transformers` with small random weights: three calls in eval mode and two training steps are those of
plain Python to the bit. `python tests/zoo/runner.py` runs the whole list of tests/zoo/architectures.py."""

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

# Breaks where it asks whether its mask has any global attention: right, and no crash.
BROKEN = ["longformer"]
# Of these, led computes sizes with torch.div, and xlm compares lengths of texts with a size.
ONE_GRAPH = ["bert", "gpt2", "led", "t5", "vit", "xlm"]


def right_row(name: str) -> dict[str, Any]:
    row = run(name)
    assert "skipped" not in row, row
    assert row["outputs"] is True, row
    assert row["gradients"] is True, row
    assert row["given_up"] == [], row
    return row


@pytest.mark.parametrize("name", BROKEN)
def test_right_with_breaks(name: str) -> None:
    assert right_row(name)["hits"] > 0


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name: str) -> None:
    row = right_row(name)
    assert (row["graphs"], row["recordings"], row["hits"]) == (1, 1, 2), row
