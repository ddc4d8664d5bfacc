"""An int in a class that changes between calls is recorded once more, and is then left open."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fixtures.subject import EAGER, frametap


@pytest.mark.skipif(EAGER, reason="there are recordings only where something is captured")
def test_a_counter_that_is_read_is_not_recorded_at_each_call() -> None:
    class Step:
        calls = 0

        def __call__(self, x: Tensor) -> Tensor:
            type(self).calls += 1
            return x * 2 if self.calls > 4 else x + 1

    step = Step()
    captured = frametap.compile(lambda x: step(x))
    results = [captured(torch.full((1,), 3.0)).item() for _ in range(12)]
    assert results == [4.0] * 4 + [6.0] * 8
    seen = frametap.explain(captured)
    assert seen.recordings <= 5, seen
