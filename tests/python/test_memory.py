"""A recording keeps no more objects alive than the call itself does."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from fixtures.subject import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is recorded")


@pytest.mark.parametrize(
    "model",
    [
        "nn.Sequential(*(Layer() for _ in range(20)))",
        "Keywords()",
        "Residual(nn.Sequential(*(Residual(Layer()) for _ in range(10))))",
        "nn.Sequential(*(Unflattened() for _ in range(10)))",
        "nn.Sequential(*(Bound() for _ in range(10)))",
        "nn.Sequential(*(Wrapped() for _ in range(10)))",
        "nn.Sequential(*(Iterated() for _ in range(10)))",
    ],
    ids=["chain", "keywords", "residual", "unflattened", "bound", "wrapped", "iterated"],
)
def test_results_of_layers_end_with_their_last_use(model: str) -> None:
    """Each layer gives 40 MiB, too much for the heap; kept until the end, they would be 800 MiB and more."""
    script = f"""
        import resource
        import torch
        from torch import nn
        import frametap

        class Layer(nn.Module):
            def forward(self, x):
                return x + 1

        class Unflattened(nn.Module):  # by super() in a method of torch.Tensor
            def forward(self, x):
                return (x + 1).unflatten(0, (2, -1)).flatten() * 2

        class Bound(nn.Module):
            def forward(self, x):
                add = (x + 1).add
                return add(1)

        class Output:
            def __init__(self, value):
                self.value = value

        class Wrapped(nn.Module):
            def forward(self, x):
                return Output(x + 1).value + 1

        class Iterated(nn.Module):
            def forward(self, x):
                return next(iter([x + 1, 2])) + next(zip([x + 1], [2]))[0]

        class Residual(nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return self.inner(x) + x

        class Keywords(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList(Layer() for _ in range(20))

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x=x)
                return x

        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

        model = frametap.compile({model}.eval())
        with torch.no_grad():
            model(torch.zeros(8))
            frametap.reset(model)
            x = torch.zeros(10 << 20)
            before = peak()
            model(x)
        print(peak() - before, len(frametap.segments(model)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "FRAMETAP_SELF_CHECK": ""},  # it keeps what it compares with
    )
    growth, segments = map(int, done.stdout.split())
    assert segments == 1
    assert growth < 300
