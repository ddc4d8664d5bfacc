"""Law 4: n breaks make n + 1 graphs, wherever they are. The programs come from `tools/bench/breaks.py`.

A call runs n + 1 graphs; no more are kept, and fewer where rounds of a loop share one.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.subject import frametap, needs_capture

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools" / "bench"))
import breaks

pytestmark = needs_capture


@pytest.mark.parametrize("n", range(breaks.MOST_BREAKS + 1))
@pytest.mark.parametrize("shape", sorted(breaks.SHAPES))
def test_n_breaks_make_n_plus_one_graphs(shape: str, n: int) -> None:
    run, kept = breaks.our_graphs(shape, n)
    assert run == n + 1
    assert kept <= n + 1


def segments_after(text: str, rounds: int) -> int:
    """Segments of `f(x, n)` after three calls."""
    names: dict[str, Any] = {"torch": torch}
    exec(text, names)  # noqa: S102
    plain = names["f"]
    captured = frametap.compile(plain)
    for _ in range(3):
        x, y = torch.ones(2), torch.ones(2)
        with contextlib.redirect_stdout(io.StringIO()):
            assert torch.equal(captured(x, rounds), plain(y, rounds))
    return len(frametap.segments(captured))


LOOPS = {
    "range": "for i in range(n):",
    "list": "for row in [torch.ones(2)] * n:",
    "enumerate": "for i, row in enumerate([torch.ones(2)] * n):",
    "zip": "for a, b in zip([torch.ones(2)] * n, range(n)):",
    "items": "for k, v in {str(i): 1 for i in range(n)}.items():",
    "reversed": "for i in reversed(range(n)):",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_a_loop_with_a_break_in_each_round_needs_few_segments(loop: str) -> None:
    text = f"""
def f(x, n):
    {LOOPS[loop]}
        x = torch.sin(x)
        print()
        x = torch.cos(x)
    return x
"""
    # To the first break, from one to the next, from the last one to the end.
    assert segments_after(text, 100) == 3


def test_plan_of_einsum_is_left_to_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner (opt_einsum has one) decides on sizes, and runs code that cannot be recorded."""

    def contract_path(equation: str, *operands: torch.Tensor, optimize: Any) -> Any:
        smallest = min(map(frozenset, itertools.combinations([o.numel() for o in operands], 2)))
        first = sum(smallest) // 7 % 2
        return [(first, 2), (0, 1)], None

    planner = types.SimpleNamespace(contract_path=contract_path)
    module = torch.backends.opt_einsum.m
    monkeypatch.setattr(module, "_opt_einsum", planner)
    monkeypatch.setattr(module, "is_available", lambda: True)
    monkeypatch.setattr(module, "enabled", True)

    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.einsum("ab,bc,cd->ad", a * 2, b, c) + 1

    captured = frametap.compile(f)
    for n in (4, 4, 5, 6, 7, 8, 9):
        inputs = torch.ones(n, 3), torch.ones(3, 5), torch.ones(5, 2)
        assert torch.equal(captured(*inputs), f(*inputs))
    report = frametap.explain(captured)
    assert [b.reason for b in report.breaks] == ["unknown_callable"]
    assert report.recordings <= 4, str(report)
