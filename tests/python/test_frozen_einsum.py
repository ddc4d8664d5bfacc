"""Einsums of a frozen tensor and an activation, as linear layers. F1–F3 are the laws of frozen_einsum.h.

Its law linears/L4 says where they stand in a graph.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.quantized import least, sqnr
from fixtures.subject import needs_capture

pytestmark = needs_capture


class Einsum(nn.Module):
    def __init__(self, equation: str, weight: tuple[int, ...], weight_first: bool = False) -> None:
        super().__init__()
        self.equation = equation
        self.weight = nn.Parameter(torch.randn(weight) / 4)
        self.weight_first = weight_first

    def forward(self, x: Tensor) -> Tensor:
        operands = (self.weight, x) if self.weight_first else (x, self.weight)
        return torch.einsum(self.equation, *operands)


# equation: sizes of the weight, sizes of the activation, whether the weight comes first
EQUATIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], bool]] = {
    "bsi,oi->bso": ((8, 16), (2, 5, 16), False),
    "...i,io->...o": ((16, 8), (2, 5, 16), False),
    " b i , o i -> b o ": ((8, 16), (5, 16), False),
    "bi,oi": ((8, 16), (5, 16), False),
    "bi,oi->ob": ((8, 16), (5, 16), False),
    "i,oi->o": ((8, 16), (16,), False),
    "ibh,hnd->ibnd": ((16, 4, 6), (3, 2, 16), False),
    "ibnd,hnd->ibh": ((16, 4, 6), (3, 2, 4, 6), False),
    "bnd,hde->bhne": ((3, 16, 5), (2, 7, 16), False),
    "bhnd,hde->bne": ((3, 16, 5), (2, 3, 7, 16), False),
    "...hd,hde->...e": ((3, 4, 6), (2, 5, 3, 4), False),
    "oi,bi->bo": ((8, 16), (5, 16), True),
    "hde,bnd->bhne": ((3, 16, 5), (2, 7, 16), True),
}

# These are no linear layers, or torch leaves their results in an order that depends on sizes.
OTHERS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "bi,oi->b": ((8, 16), (5, 16)),
    "bi,oi->o": ((8, 16), (5, 16)),
    "bi,i->b": ((16,), (5, 16)),
    "bii,io->bo": ((16, 8), (2, 16, 16)),
    "bhnd,hed->bhne": ((3, 5, 16), (2, 3, 7, 16)),
    "bi,oi->bo": ((8, 16), (5, 1)),
    "bi,o->bio": ((8,), (5, 16)),
    "bchw,oc->bohw": ((8, 4), (2, 4, 5, 5)),
    "i...,oi->o...": ((8, 16), (16, 5, 2)),
}


def _is_frozen(model: Einsum, x: Tensor) -> bool:
    """Whether the einsum is a kernel of the frozen model, whose result is as torch's."""
    frozen = frametap.freeze(model, [x])
    with torch.no_grad():
        want, got = model(x), frozen(x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert _strides(got) == _strides(want), model.equation
    [row] = [row for row in frozen.report if row["op"] == "aten.einsum"]
    return row["form"] == "kernel"


def _strides(x: Tensor) -> list[int]:
    """Those of dimensions with several elements. The others are arbitrary."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_L4_an_einsum_is_a_linear_layer(equation: str) -> None:
    torch.manual_seed(1)
    weight, sizes, weight_first = EQUATIONS[equation]
    model = Einsum(equation, weight, weight_first).eval()
    data = [torch.randn(sizes) for _ in range(3)]
    with torch.no_grad():
        want = model(data[0])
    for scheme in ("static", "dynamic"):
        quantized = frametap.quantize(model, data, scheme=scheme, progress=False)
        got = quantized(data[0])
        assert sqnr(want, got) > least(30)
        assert _strides(got) == _strides(want)
        if scheme == "static":
            [row] = [row for row in quantized.report if row["op"] == "aten.einsum"]
            assert row["decision"] == "int8"
            assert row["sqnr"] > least(30)
            assert row["cumulative_sqnr"] > least(30)
    assert _is_frozen(model, data[0])
    narrow = frametap.freeze(model, [data[0]], dtype=torch.bfloat16)(data[0])
    assert sqnr(want, narrow) > 40


@pytest.mark.parametrize("equation", OTHERS)
def test_F1_F2_F3_other_einsums_keep_their_value(equation: str) -> None:
    torch.manual_seed(2)
    weight, sizes = OTHERS[equation]
    model = Einsum(equation, weight).eval()
    x = torch.randn(sizes)
    frozen = frametap.freeze(model, [x])
    [row] = [row for row in frozen.report if row["op"] == "aten.einsum"]
    assert row["form"] == "torch"
    with torch.no_grad():
        torch.testing.assert_close(frozen(x), model(x))


def test_F3_any_order_of_indices_has_the_strides_of_torch() -> None:
    rng = random.Random(3)
    torch.manual_seed(3)
    kernels = 0
    for _ in range(60):
        letters = rng.sample("abcdefghABC", 7)
        stay = letters[: rng.randint(0, 3)]
        contracted = letters[3 : 3 + rng.randint(1, 2)]
        outputs = letters[5 : 5 + rng.randint(1, 2)]
        terms = [stay + contracted, contracted + outputs, stay + outputs]
        for term in terms:
            rng.shuffle(term)
        size = {letter: rng.randint(1, 5) for letter in letters}
        weight_first = rng.random() < 0.5
        x, w, result = map("".join, terms)
        equation = f"{w},{x}->{result}" if weight_first else f"{x},{w}->{result}"
        model = Einsum(equation, tuple(size[letter] for letter in w), weight_first).eval()
        kernels += _is_frozen(model, torch.randn([size[letter] for letter in x]))
    assert kernels > 50


def test_F3_strides_of_torch_for_sizes_of_later_calls() -> None:
    torch.manual_seed(5)
    for equation, (weight, sizes, weight_first) in EQUATIONS.items():
        model = Einsum(equation, weight, weight_first).eval()
        frozen = frametap.freeze(model, [torch.randn(sizes)])
        term = equation.replace(" ", "").split("->")[0].split(",")[weight_first]
        other = equation.replace(" ", "").split("->")[0].split(",")[not weight_first]
        if "." in term:
            continue
        for size in (1, 2, 9):
            now = [n if i in other else size for n, i in zip(sizes, term, strict=True)]
            x = torch.randn(now)
            with torch.no_grad():
                assert _strides(frozen(x)) == _strides(model(x)), (equation, now)


def test_L4_bytes_pass_between_einsums(tmp_path: Path) -> None:
    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.Parameter(torch.randn(16, 4, 8) / 4)
            self.back = nn.Parameter(torch.randn(4, 8, 16) / 6)
            self.last = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            heads = torch.einsum("bsi,ihd->bhsd", x, self.heads).relu()
            return self.last(torch.einsum("bhsd,hdo->bso", heads, self.back)).view(len(x), -1)

    torch.manual_seed(4)
    model = Layers().eval()
    data = [torch.randn(2, 5, 16) for _ in range(32)]
    quantized = frametap.quantize(model, data, progress=False)
    decisions = [row["decision"] for row in quantized.report if row["op"] == "aten.einsum"]
    assert decisions == ["int8", "int8"]
    frametap.save(quantized, tmp_path / "layers.ft")
    loaded = frametap.load(tmp_path / "layers.ft")
    for sizes in ((2, 5, 16), (3, 7, 16)):  # other sizes than in calibration, too
        x = torch.randn(sizes)
        with torch.no_grad():
            want = model(x)
        got = quantized(x)
        assert sqnr(want, got) > least(25)
        if sizes == (2, 5, 16):
            assert torch.equal(loaded(x), got)
