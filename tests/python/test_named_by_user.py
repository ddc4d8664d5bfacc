"""A function that the user names is captured, wherever its file lies. Code that is left to Python is reported."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.signal.windows
import torch.utils.data

from fixtures.subject import EAGER, frametap

pytestmark = [] if not EAGER else [pytest.mark.skip(reason="asks about frametap's segments")]


def cells_of_torch_ao() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Nothing where torch.ao is missing."""
    try:
        from torch.ao.nn.quantizable import LSTMCell
    except ImportError:
        return []
    return [(LSTMCell(2, 3), (torch.ones(1, 2),))]


@pytest.mark.parametrize(
    ("named", "args"),
    [
        (torch.signal.windows.hann, (5,)),
        (torch.signal.windows.gaussian, (5,)),
        (torch.functional.meshgrid, (torch.ones(2), torch.ones(3))),
        *cells_of_torch_ao(),
        (torch.nn.utils.parameters_to_vector, ([torch.ones(2), torch.ones(3)],)),
        (torch.utils.data.default_collate, ([torch.ones(2), torch.ones(2)],)),
        (torch._prims_common.is_same_shape, ((1, 2), (1, 2))),
        (statistics.mean, ([1, 2, 3],)),
        (collections.Counter("abca").most_common, (1,)),
        (torch.distributions.Normal(0.0, 1.0).log_prob, (torch.ones(2),)),
    ],
    ids=lambda value: getattr(value, "__qualname__", type(value).__name__),
)
def test_named_is_captured(named: Callable[..., Any], args: tuple[Any, ...]) -> None:
    captured = frametap.compile(named)
    want = named(*args)
    for _ in range(3):
        got = captured(*args)
        assert repr(got) == repr(want)
    explanation = frametap.explain(captured)
    assert explanation.segments or explanation.breaks or explanation.aborts
    assert "call it once" not in str(explanation)


def test_library_function_is_one_graph() -> None:
    captured = frametap.compile(torch.signal.windows.hann, fullgraph=True)
    for n in (5, 5, 6, 5):
        assert torch.equal(captured(n), torch.signal.windows.hann(n))
    assert frametap.explain(captured).hits >= 1


def test_break_in_a_library_function_goes_on_in_it() -> None:
    """Behind the break the function that was named is captured again."""
    x = torch.ones(3)
    captured = frametap.compile(torch.functional.unique_consecutive)
    for _ in range(3):
        assert torch.equal(captured(x), torch.unique_consecutive(x))


def test_call_that_leaves_nothing_says_why() -> None:
    """A frame that nothing could be captured of is not silent."""

    def calls_only_library(xs: list[Any]) -> Any:
        return xs

    captured = frametap.compile(calls_only_library)
    assert "call it once" in str(frametap.explain(captured))
    captured([1])
    assert "call it once" not in str(frametap.explain(captured))


def test_tensor_helper_of_site_packages() -> None:
    import numpy

    captured = frametap.compile(numpy.broadcast_shapes)
    assert captured((1, 2), (2,)) == (1, 2)
    assert "call it once" not in str(frametap.explain(captured))
