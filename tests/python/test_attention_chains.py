"""Attention that is spelt out is one op of frozen and int8 models. attention_chains/H1, attention_chains/H2, attention_chains/H3,
attention_ops/O1, attention_ops/O2."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.quantized import least, sqnr, tensors_of
from fixtures.subject import needs_capture
from frametap import _C

pytestmark = needs_capture

WIDTH, HEADS = 32, 4
SCALE = 1 / math.sqrt(WIDTH // HEADS)
HIDDEN = torch.finfo(torch.float32).min
needs_bfloat16 = pytest.mark.skipif(
    not _C.bfloat16_products(), reason="the processor has no products of bfloat16"
)


class Spelt(nn.Module):
    def __init__(self, function: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mha = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)

    def heads(self, x: Tensor) -> list[Tensor]:
        parts = self.qkv(x).split(WIDTH, dim=-1)
        return [y.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for y in parts]

    def joined(self, y: Tensor) -> Tensor:
        return self.out(y.transpose(1, 2).flatten(2))


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1)) * SCALE


def earlier(n: int) -> Tensor:
    return torch.ones(n, n).tril()


def spelt(
    change: Callable[[Tensor], Tensor] = lambda scores: scores,
) -> Callable[[Any, Tensor], Tensor]:
    def run(m: Spelt, x: Tensor) -> Tensor:
        q, k, v = m.heads(x)
        return m.joined(m.drop(change(scores_of(q, k)).softmax(dim=-1)) @ v)

    return run


def spelt_with_conversions(m: Spelt, x: Tensor) -> Tensor:
    """As `transformers` writes it. The conversions do nothing."""
    q, k, v = m.heads(x)
    weights = nn.functional.softmax(scores_of(q, k), dim=-1, dtype=torch.float32).to(q.dtype)
    return m.joined(weights @ v)


def rotated(m: Spelt, x: Tensor) -> Tensor:
    """Floats come to the products, and not results of layers."""
    q, k, v = m.heads(x)
    angles = torch.arange(x.shape[1])[:, None] * torch.linspace(0.1, 1, WIDTH // HEADS)
    q, k = (
        q * angles.cos() + q.flip(-1) * angles.sin(),
        k * angles.cos() + k.flip(-1) * angles.sin(),
    )
    return m.joined(scores_of(q, k).softmax(-1) @ v)


def divided(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.heads(x)
    scores = torch.matmul(q, k.mT) / math.sqrt(WIDTH // HEADS)
    return m.joined(torch.matmul(torch.softmax(scores, 3), v))


def scaled_factors(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.heads(x)
    scores = (q * SCALE**0.5) @ (k * SCALE**0.5).transpose(2, 3)
    return m.joined(scores.softmax(-1) @ v)


def permuted_key(m: Spelt, x: Tensor) -> Tensor:
    q, _, v = m.heads(x)
    k = m.qkv(x)[..., WIDTH : 2 * WIDTH].view(*x.shape[:2], HEADS, -1).permute(0, 2, 3, 1)
    return m.joined(((q @ k) * SCALE).softmax(-1) @ v)


def products_of_batches(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = (y.flatten(0, 1) for y in m.heads(x))
    weights = torch.softmax(torch.bmm(q, k.transpose(1, 2)) * SCALE, dim=-1)
    return m.joined(torch.bmm(weights, v).unflatten(0, (x.shape[0], HEADS)))


def mask_of_sums(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = (y.flatten(0, 1) for y in m.heads(x))
    mask = torch.zeros(x.shape[1], x.shape[1]).masked_fill(earlier(x.shape[1]) == 0, -math.inf)
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=SCALE)
    return m.joined(torch.bmm(scores.softmax(-1), v).unflatten(0, (x.shape[0], HEADS)))


def multi_head(**options: Any) -> Callable[[Any, Tensor], Any]:
    def run(m: Spelt, x: Tensor) -> Any:
        later = earlier(x.shape[1]) == 0
        given = {"attn_mask": later} if options.get("mask") else {}
        return m.out(m.mha(x, x, x, **given)[0])

    return run


def one_head(m: Spelt, x: Tensor) -> Tensor:
    """Three dimensions, where a mask has a dimension for the batch."""
    q, k, v = m.qkv(x).split(WIDTH, dim=-1)
    seen = torch.zeros(x.shape[0], 1, x.shape[1]).masked_fill(torch.arange(x.shape[1]) == 1, HIDDEN)
    return m.out((q @ k.transpose(1, 2) / 4 + seen).softmax(-1) @ v)


def one_head_of_keys(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.heads(x)
    return m.joined(scores_of(q, k[:, :1]).softmax(-1) @ v[:, :1])


def by_einsum(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.heads(x)
    weights = (torch.einsum("b h i d, b h j d -> b h i j", q, k) * SCALE).softmax(-1)
    return m.joined(torch.einsum("bhij,bhjd->bhid", weights, v))


def one_head_by_einsum(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.qkv(x).split(WIDTH, dim=-1)
    scores = torch.einsum("bid,bdj->bij", q, k.mT) / 4
    return m.out(torch.einsum("bij,bjd->bid", scores.softmax(-1), v))


def other_equations(m: Spelt, x: Tensor) -> Tensor:
    """Products over other dimensions."""
    q, k, v = m.qkv(x)[:, : WIDTH // 2].split(WIDTH, dim=-1)
    over_queries = torch.einsum("bid,bjd->bji", q, k).softmax(-1)
    of_columns = torch.einsum("bij,bdj->bid", over_queries, v.mT.contiguous())
    return m.out(of_columns + torch.einsum("bid,bid->bid", q, k).softmax(-1))


def key_is_read_again(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.heads(x)
    columns = k.transpose(-2, -1)
    return m.joined((q @ columns * SCALE).softmax(-1) @ v) + columns.sum()


CHAINS: dict[str, Callable[[Any, Tensor], Any]] = {
    "plain": spelt(),
    "rotated": rotated,
    "divided": divided,
    "converted": spelt_with_conversions,
    "scaled factors": scaled_factors,
    "permuted key": permuted_key,
    "bmm": products_of_batches,
    "baddbmm": mask_of_sums,
    "fill": spelt(lambda s: s.masked_fill(earlier(s.shape[-1]) == 0, -math.inf)),
    "fill with a number": spelt(lambda s: s.masked_fill(earlier(s.shape[-1]) == 0, -1e9)),
    "fill with a small number": spelt(lambda s: s.masked_fill(earlier(s.shape[-1]) == 0, -0.5)),
    "sum": spelt(lambda s: s + (1 - earlier(s.shape[-1])) * HIDDEN),
    "sum, the other way": spelt(lambda s: (1 - earlier(s.shape[-1])) * -1e4 + s),
    "fill in place": spelt(lambda s: s.masked_fill_(earlier(s.shape[-1]) == 0, -math.inf)),
    "sum in place": spelt(lambda s: s.add_((1 - earlier(s.shape[-1])) * -5)),
    "bias of a head": spelt(
        lambda s: s + torch.arange(HEADS).view(HEADS, 1, 1) * 0.1 * earlier(s.shape[-1])
    ),
    "multi-head": multi_head(),
    "multi-head, masked": multi_head(mask=True),
    "one head": one_head,
    "einsum": by_einsum,
    "einsum of one head": one_head_by_einsum,
    "key is read again": key_is_read_again,
    "one head of keys": one_head_of_keys,
}


def weights_are_returned(m: Spelt, x: Tensor) -> Any:
    y, weights = m.mha(x, x, x)
    return m.out(y), weights


def scores_are_read(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.heads(x)
    scores = scores_of(q, k)
    return m.joined(scores.softmax(-1) @ v) + scores.amax()


def over_queries(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.heads(x)
    return m.joined(scores_of(q, k).softmax(-2) @ v)


def written_value(m: Spelt, x: Tensor) -> Tensor:
    q, k, v = m.heads(x)
    weights = scores_of(q, k).softmax(-1)
    v[..., :3].mul_(2)
    return m.joined(weights @ v)


OTHERS: dict[str, Callable[[Any, Tensor], Any]] = {
    "weights are returned": weights_are_returned,
    "scores are read": scores_are_read,
    "over queries": over_queries,
    "written value": written_value,
    "other equations": other_equations,
    "scaled mask": spelt(lambda s: (s + earlier(s.shape[-1])) * 0.5),
    "two masks": spelt(
        lambda s: (s + earlier(s.shape[-1])).masked_fill(earlier(s.shape[-1]) == 0, -9.0)
    ),
    "limited": spelt(lambda s: 5 * torch.tanh(s / 5)),
    "in float64": spelt(lambda s: s.double().softmax(-1).float()),
}

SIZES = [(2, 6, WIDTH), (1, 40, WIDTH), (3, 2, WIDTH), (2, 6, WIDTH), (1, 1, WIDTH)]


def made(function: Callable[[Any, Tensor], Any]) -> Spelt:
    torch.manual_seed(5)
    return Spelt(function).eval()


def text_of(model: Any) -> str:
    return "".join(
        str(_C.freeze_of(segment.executable)["graph"]) for segment in frametap.segments(model)
    )


def compare(model: nn.Module, other: Any, decibels: float) -> None:
    torch.manual_seed(6)
    for sizes in SIZES:
        x = torch.randn(sizes)
        with torch.no_grad():
            for want, got in zip(tensors_of(model(x)), tensors_of(other(x)), strict=True):
                assert sqnr(want, got) > decibels, (sizes, sqnr(want, got))


@pytest.mark.parametrize("name", [*CHAINS, *OTHERS])
def test_float32_is_as_exact_as_before(name: str) -> None:
    model = made((CHAINS | OTHERS)[name])
    frozen = frametap.freeze(model)
    compare(model, frozen, 110)
    assert ("frametap.attention_chain" in text_of(frozen)) == (name in CHAINS)


@pytest.mark.parametrize("name", [*CHAINS, *OTHERS])
def test_bfloat16(name: str) -> None:
    model = made((CHAINS | OTHERS)[name])
    frozen = frametap.freeze(model, dtype=torch.bfloat16)
    compare(model, frozen, 36)
    is_one_op = "frametap.bfloat16_attention_chain" in text_of(frozen)
    assert is_one_op == (name in CHAINS and _C.bfloat16_products())


@pytest.mark.parametrize("scheme", ["static", "dynamic"])
@pytest.mark.parametrize("name", [*CHAINS, *OTHERS])
def test_int8(name: str, scheme: str, tmp_path: Path) -> None:
    model = made((CHAINS | OTHERS)[name])
    x = torch.randn(2, 6, WIDTH)
    int8 = frametap.quantize(model, [x, torch.randn(2, 6, WIDTH)], scheme=scheme, progress=False)
    with torch.no_grad():
        want, got = tensors_of(model(x)), tensors_of(int8(x))
    assert min(map(sqnr, want, got)) > least(26)
    frametap.save(int8, tmp_path / "model")
    again = tensors_of(frametap.load(tmp_path / "model")(x))
    assert all(map(torch.equal, got, again))


@needs_bfloat16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["fill", "sum of infinities", "fill with a number"])
def test_a_query_without_keys_is_as_in_the_program(name: str, dtype: torch.dtype) -> None:
    def change(scores: Tensor) -> Tensor:
        hidden = (torch.arange(scores.shape[-2]) == 1)[:, None].expand(scores.shape[-2:])
        if name == "sum of infinities":
            return scores + torch.zeros(hidden.shape).masked_fill(hidden, -math.inf)
        return scores.masked_fill(hidden, -math.inf if name == "fill" else -1e9)

    model = made(spelt(change))
    frozen = frametap.freeze(model, dtype=dtype)
    assert "attention_chain" in (frozen(torch.randn(2, 6, WIDTH)), text_of(frozen))[1]
    for queries in (1, 2, 6, 40):
        x = torch.randn(2, queries, WIDTH)
        with torch.no_grad():
            want, got = model(x), frozen(x)
        assert torch.equal(want.isnan(), got.isnan())
        assert bool(want.isnan().any()) == (queries > 1 and name != "fill with a number")
        assert sqnr(want.nan_to_num(), got.nan_to_num()) > 36


@needs_bfloat16
@pytest.mark.parametrize("op", ["aten.softmax", "aten.matmul"])
@pytest.mark.parametrize("scheme", ["static", "dynamic"])
def test_float32_by_request(op: str, scheme: str) -> None:
    model, x = made(CHAINS["plain"]), torch.randn(2, 6, WIDTH)

    def is_rounded(**options: Any) -> bool:
        int8 = frametap.quantize(model, [x], scheme=scheme, progress=False, **options)
        assert sqnr(model(x), int8(x)) > least(26)
        [segment] = frametap.segments(int8)
        kept = (
            _C.quant_of(segment.executable)
            if scheme == "static"
            else _C.freeze_of(segment.executable)
        )
        text = str(kept["quantized"].lowered if scheme == "static" else kept["graph"])
        return "bfloat16_attention" in text

    assert is_rounded()
    assert not is_rounded(float_ops=[op])
    assert not is_rounded(float_dtype=torch.float32)


def test_weights_that_are_dropped_are_not_computed() -> None:
    model = made(multi_head())
    frozen = frametap.freeze(model)
    frozen(torch.randn(2, 6, WIDTH))
    assert "aten.mean" not in text_of(frozen)
    reasons = [row["reason"] for row in frozen.report if row["op"] == "aten.mean.dim"]
    assert reasons == ["nothing reads its result"]
    ends = [row["reason"] for row in frozen.report if row["op"] == "aten.softmax.int"]
    assert len(ends) == 1
    assert ends[0].startswith("part of attention, which ends in aten.bmm")
