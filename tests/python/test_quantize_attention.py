"""Attention in int8 models: products of bfloat16 where the processor has them, or float32 by request."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap
from fixtures.instruction_sets import INSTRUCTION_SETS, output_of
from fixtures.quantized import least, sqnr
from fixtures.subject import needs_capture
from frametap import _C

pytestmark = needs_capture

WIDTH, HEADS = 32, 4
HIDDEN = torch.finfo(torch.float32).min
needs_bfloat16 = pytest.mark.skipif(
    not _C.bfloat16_products(), reason="the processor has no products of bfloat16"
)


def heads_of(x: Tensor, count: int = HEADS) -> Tensor:
    return x.view(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


class Attends(nn.Module):
    """Three layers, attention, and a layer."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.qkv, self.narrow = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH // 2)
        self.norm = nn.LayerNorm(WIDTH)
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self, x)


def separate(m: Attends, x: Tensor, **options: Any) -> Tensor:
    q, k, v = heads_of(m.q(x)), heads_of(m.k(x)), heads_of(m.v(x))
    return m.out(joined(F.scaled_dot_product_attention(q, k, v, **options)))


def fused(m: Attends, x: Tensor) -> Tensor:
    q, k, v = (heads_of(part) for part in m.qkv(x).split(WIDTH, dim=-1))
    return m.out(joined(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


def packed(m: Attends, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
    return m.out(joined(F.scaled_dot_product_attention(q, k, v)))


def grouped(m: Attends, x: Tensor) -> Tensor:
    q, k, v = heads_of(m.q(x)), heads_of(m.narrow(x), 2), heads_of(m.narrow(x).tanh(), 2)
    return m.out(joined(F.scaled_dot_product_attention(q, k, v, enable_gqa=True)))


def rotated(m: Attends, x: Tensor) -> Tensor:
    angle = torch.arange(x.shape[1])[:, None] * torch.ones(WIDTH // HEADS)
    q, k = (heads_of(y) * angle.cos() for y in (m.q(x), m.k(x)))
    return m.out(joined(F.scaled_dot_product_attention(q, k, heads_of(m.v(x)))))


def cached(m: Attends, x: Tensor) -> Tensor:
    k, v = (torch.cat([torch.ones_like(y), y], dim=2) for y in (heads_of(m.k(x)), heads_of(m.v(x))))
    return m.out(joined(F.scaled_dot_product_attention(heads_of(m.q(x)), k, v)))


def twice(m: Attends, x: Tensor) -> Tensor:
    """The result of attention is the query of another."""
    q, k, v = heads_of(m.q(x)), heads_of(m.k(x)), heads_of(m.v(x))
    once = F.scaled_dot_product_attention(q, k, v)
    return m.out(joined(F.scaled_dot_product_attention(once, k, v)))


def read_again(m: Attends, x: Tensor) -> Tensor:
    """The query and the result are read by float ops as well."""
    q = m.q(x)
    out = joined(F.scaled_dot_product_attention(heads_of(q), heads_of(m.k(x)), heads_of(m.v(x))))
    return m.out(out) + m.norm(out) + q


def normed(m: Attends, x: Tensor) -> Tensor:
    q, k, v = heads_of(m.q(x)), heads_of(m.k(x)), heads_of(m.v(x))
    return m.out(m.norm(joined(F.scaled_dot_product_attention(q, k, v))))


def masked(make: Callable[[int], Tensor]) -> Callable[[Attends, Tensor], Tensor]:
    return lambda m, x: separate(m, x, attn_mask=make(x.shape[1]))


def upper(n: int, value: float) -> Tensor:
    return torch.full((n, n), value).triu(1)


PROGRAMS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "separate": separate,
    "fused": fused,
    "packed": packed,
    "grouped": grouped,
    "scale": lambda m, x: separate(m, x, scale=0.3),
    "mask of minus infinity": masked(lambda n: upper(n, -math.inf)),
    "mask of the least number": masked(lambda n: upper(n, HIDDEN)),
    "mask of bools": masked(lambda n: torch.ones(n, n, dtype=torch.bool).tril()),
    "mask by key": masked(lambda n: (torch.arange(n) > 0)[None, None, None]),
    "query without keys": masked(lambda n: torch.arange(n)[:, None].expand(n, n) > 1),
    "rotated": rotated,
    "cached": cached,
    "twice": twice,
    "read again": read_again,
    "normed": normed,
}


def quantized(name: str, **options: Any) -> tuple[Attends, Any, Tensor]:
    torch.manual_seed(3)
    model = Attends(PROGRAMS[name]).eval()
    data = [torch.randn(2, length, WIDTH) for length in (9, 4, 17, 9)]
    return model, frametap.quantize(model, data, progress=False, **options), data[0]


def graphs_of(int8: Any) -> Any:
    """Returns the graphs of its first segment: ``reference`` and ``lowered``."""
    return _C.quant_of(frametap.segments(int8)[0].executable)["quantized"]


def running(int8: Any, scheme: str) -> str:
    """Returns the graph that its first segment runs, as text."""
    if scheme == "static":
        return str(graphs_of(int8).lowered)
    return str(_C.freeze_of(frametap.segments(int8)[0].executable)["graph"])


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_results_are_as_near_as_in_float32_for_any_batch_and_length(name: str, scheme: str) -> None:
    model, int8, _ = quantized(name, scheme=scheme)
    _, exact, _ = quantized(name, scheme=scheme, float_dtype=torch.float32)
    for sizes in [(2, 9), (1, 9), (2, 17), (5, 4), (2, 9)]:
        x = torch.randn(*sizes, WIDTH)
        with torch.no_grad():
            want, got, beside = model(x), int8(x), exact(x)
        assert got.dtype == torch.float32
        assert sqnr(want, got) > min(sqnr(want, beside) - 1, 40), sizes


@needs_bfloat16
@pytest.mark.parametrize("name", PROGRAMS)
def test_attention_is_of_bfloat16_where_the_processor_is(name: str) -> None:
    _, int8, _ = quantized(name)
    graphs = graphs_of(int8)
    assert not graphs.lowering_note
    assert "aten.scaled_dot_product_attention" not in str(graphs.lowered)
    [reason, *_] = (row["reason"] for row in int8.report if "scaled_dot" in row["op"])
    assert reason.startswith("in bfloat16")


HALVES = {  # values that are stored in bfloat16
    "separate": 3 * 3 + 3,  # the layers with their reshapes; attention with its own
    "rotated": 3,  # v
    "read again": 2 * 3,  # k, v
    "normed": 3 * 3,
}


@needs_bfloat16
@pytest.mark.parametrize("name", HALVES)
def test_values_that_attention_alone_reads_are_stored_in_bfloat16(name: str) -> None:
    lowered = graphs_of(quantized(name)[1]).lowered
    made = [line.split(" = ")[0] for line in str(lowered).splitlines() if " = " in line]
    copies = str(lowered).count("aten._to_copy")
    assert sum(": bf16" in value for value in made) - copies == HALVES[name]


@pytest.mark.parametrize(
    "option", [{"float_dtype": torch.float32}, {"float_ops": ["aten.scaled_dot_product_attention"]}]
)
@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_float32_by_request(scheme: str, option: dict[str, Any]) -> None:
    model, int8, x = quantized("separate", scheme=scheme, **option)
    int8(x)
    assert "bfloat16" not in running(int8, scheme)
    assert sqnr(model(x), int8(x)) > least(28)


@needs_bfloat16
@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_bfloat16_by_default(scheme: str) -> None:
    _, int8, x = quantized("separate", scheme=scheme)
    int8(x)
    assert "frametap.bfloat16_attention" in running(int8, scheme)


def test_results_depend_on_the_dtype() -> None:
    _, exact, x = quantized("mask by key", float_dtype=torch.float32)
    _, rounded, _ = quantized("mask by key", float_dtype=torch.bfloat16)
    assert not torch.equal(exact(x), rounded(x))


def test_bfloat16_by_request_on_any_processor() -> None:
    model, int8, x = quantized("mask of the least number", float_dtype=torch.bfloat16)
    assert "bfloat16_attention" in str(graphs_of(int8).reference)
    assert sqnr(model(x), int8(x)) > least(28)


@pytest.mark.parametrize("dtype", [torch.float16, "bfloat16", 16, torch.int8])
def test_another_float_dtype_is_refused(dtype: Any) -> None:
    with pytest.raises(
        frametap.QuantizationError,
        match=r"float_dtype must be torch.float32, torch.bfloat16 or None, not",
    ):
        quantized("separate", float_dtype=dtype)


@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_autocast_is_left_alone(scheme: str) -> None:
    def attend(m: Attends, x: Tensor) -> Tensor:
        q, k, v = heads_of(m.q(x)), heads_of(m.k(x)), heads_of(m.v(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = F.scaled_dot_product_attention(q, k, v)
        return m.out(joined(out).float())

    torch.manual_seed(3)
    model, x = Attends(attend).eval(), torch.randn(2, 9, WIDTH)
    int8 = frametap.quantize(model, [x], scheme=scheme, progress=False)
    assert sqnr(model(x), int8(x)) > least(28)
    assert "frametap.bfloat16_attention" not in running(int8, scheme)


@pytest.mark.parametrize("scheme", ["static", "dynamic", "auto"])
@pytest.mark.parametrize("name", ["separate", "mask of the least number", "rotated"])
def test_saved_models_attend_as_before(name: str, scheme: str, tmp_path: Path) -> None:
    _, int8, x = quantized(name, scheme=scheme)
    want = int8(x)
    frametap.save(int8, tmp_path / "model")
    loaded = frametap.load(tmp_path / "model")
    assert torch.equal(loaded(x), want)


PROGRAM = """
import sys
sys.path[:0] = ["tests", "tests/python"]
import test_quantize_attention as t, torch
for name in t.PROGRAMS:
    model, int8, x = t.quantized(name, float_dtype=torch.bfloat16)
    graphs = t.graphs_of(int8)
    assert not graphs.lowering_note, graphs.lowering_note
    with torch.no_grad():
        print(name, t.sqnr(model(x), int8(x)), sep="\\t")
"""


@pytest.mark.parametrize("isa", INSTRUCTION_SETS)
def test_each_instruction_set_attends(isa: str) -> None:
    rows = [line.split("\t") for line in output_of(PROGRAM, ONEDNN_MAX_CPU_ISA=isa).splitlines()]
    assert len(rows) == len(PROGRAMS)
    assert [row for row in rows if float(row[1]) < 28 - 6] == []  # 7 bits without VNNI
