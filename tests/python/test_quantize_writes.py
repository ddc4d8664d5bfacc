"""Values that a program writes to in place: layers before and after the write are int8, and read what the program reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.quantized import sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture


class Writing(nn.Module):
    def __init__(self, f: Callable[..., Tensor]) -> None:
        super().__init__()
        self.f = f
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
        self.register_buffer("rows", torch.tensor([0, 2, 2]))

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self, x)


def _shift(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    out = torch.zeros_like(h)
    out[1:] = h[:-1]
    return m.b(out)


def _interleave(m: Any, x: Tensor) -> Tensor:
    out = torch.empty(2 * len(x), 16)
    out[::2] = m.a(x)
    out[1::2] = x
    return m.b(out.view(-1, 2, 16))


def _sum_of_rows(m: Any, x: Tensor) -> Tensor:
    return m.b(torch.zeros(4, 16).index_add_(0, m.rows, m.a(x)[:3]))


def _masked_result(m: Any, x: Tensor) -> Tensor:
    y = m.b(m.a(x))
    y[:, 3] = -100.0
    return y


def _before_and_after(m: Any, x: Tensor) -> Tensor:
    h = torch.cat([x, -x])
    before = m.a(h)
    h[:, :8] = 5.0
    return before + m.b(h * 0.5)


def _a_result_before_and_after(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    before = m.b(h)
    h[:, :8] = 5.0
    return before - m.b(h)


def _a_view(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    before = m.b(h[:2])
    h.t()[:8] = 5.0
    return before + m.b(h)[:2]


def _the_input(m: Any, x: Tensor) -> Tensor:
    x[:, :4] = 1.0
    return m.b(m.a(x).relu())


def _part_of_zeros(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, :8] = m.a(x)[:, :8]
    return m.b(out)


def _read_between_writes(m: Any, x: Tensor) -> Tensor:
    out = torch.empty(2, *x.shape)
    out[0] = x
    out[1] = 20 * m.a(out[0])
    first = m.b(out[1])
    out[:, 1:3, 4:] = first[:2, 4:]
    return m.b(out)


def _flipped_twice(m: Any, x: Tensor) -> Tensor:
    h = x.clone()
    for _ in range(2):
        h[:, ::2] = m.a(h.flip(0))[:, ::2]
    return m.b(h.t().t())


# How many of the layers are int8.
PROGRAMS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "a shift": (_shift, 2),
    "interleaved": (_interleave, 2),
    "a sum of rows": (_sum_of_rows, 2),
    "a masked result": (_masked_result, 2),
    "read before and after": (_before_and_after, 2),
    "a result that is read before and after": (_a_result_before_and_after, 3),
    "a view": (_a_view, 3),
    "the input": (_the_input, 2),
    "a part of zeros": (_part_of_zeros, 2),
    "read between writes": (_read_between_writes, 3),
    "in turns": (_flipped_twice, 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_layers_around_a_write(name: str) -> None:
    f, count = PROGRAMS[name]
    torch.manual_seed(3)
    model, data = Writing(f).eval(), [torch.randn(5, 16) for _ in range(4)]
    quantized = frametap.quantize(model, data, progress=False)
    layers = [row["decision"] for row in quantized.report if row["op"] == "aten.linear"]
    assert layers.count("int8") == count
    assert "not lowered" not in quantized.report_text()
    with torch.no_grad():
        for x in data:
            given = x.clone()
            want, got = model(x.clone()), quantized(given)
            assert sqnr(want, got) > 30
            assert (f is _the_input) != torch.equal(given, x)
