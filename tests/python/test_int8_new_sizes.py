"""_inference_model/R1: a call of a new size has int8 values from its first layer on, in models of several graphs as well."""

from __future__ import annotations

import contextlib
import functools
import io
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fixtures.quantized import sqnr
from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about int8")]


def shown(*values: Any) -> None:
    """Ends a graph."""
    print(*values, file=io.StringIO())


def fitted(x: Tensor) -> Tensor:
    """Reads the length, so that each one is recorded."""
    length = x.shape[-2]
    for _ in range(length):
        pass
    return x + torch.linspace(0, 1, length)[:, None]


class TwoGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(fitted(x)).relu()
        shown("between")
        return self.second(h)


class ThreeGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: Tensor) -> dict[str, Any]:
        h = self.first(fitted(x)).relu()
        shown("one")
        g = self.second(h)
        both = [g, g.transpose(-1, -2)]
        shown("two")
        return {"out": self.third(both[0].sigmoid()), "parts": (h, both[1]), "length": x.shape[-2]}


class BranchByValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(fitted(x))
        if x.mean() > 0:
            return self.up(h.relu())
        return self.down(h)


class BranchByInteger(BranchByValue):
    """Python compares a number that is the same in int8."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(fitted(x))
        if (h > 100).sum().item() > 0:
            return self.up(h.relu())
        shown("a number was read")
        return self.down(h)


class Levels(nn.Module):
    """A pyramid: each level is half as large, and Python reads its sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.head = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        out = []
        for level in self.levels:
            x = level(x).relu()
            shown("level")
            height, width = x.shape[-2:]
            x = F.interpolate(x, size=((height + 1) // 2, (width + 1) // 2), mode="nearest")
            out.append(self.head(x))
        return out


class WritesAndCounts(TwoGraphs):
    """Writes to a buffer and to its input, and counts."""

    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.seen: list[Tensor] = []
        self.register_buffer("total", torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        h = self.first(fitted(x))
        self.total += h.mean((0, 1))[:16]
        x[:, :, 0] = h[:, :, 0]
        self.seen.append(h)
        shown("between")
        self.count += 1
        return self.second(h.relu())


def batches(*shape: int, count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).clamp(-2, 2) for _ in range(count)]


def made(kind: type[nn.Module], *shape: int, data: Any = None) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = kind().eval()
    return model, frametap.quantize(
        model, batches(*shape) if data is None else data, progress=False
    )


@contextlib.contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", frametap.FrametapWarning)
        yield


def flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [t for item in value for t in flat(item)] if isinstance(value, (list, tuple)) else [value]
    )


def assert_near(want: Any, got: Any) -> None:
    """As int8 is to float: near, and not the same."""
    assert len(flat(want)) == len(flat(got))
    for one, other in zip(flat(want), flat(got), strict=True):
        if not isinstance(one, Tensor):
            assert one == other
            continue
        noise = float((one - other).square().sum())
        assert one.shape == other.shape
        assert 0 < noise < float(one.square().sum()) / 100


def assert_same(want: Any, got: Any) -> None:
    for one, other in zip(flat(want), flat(got), strict=True):
        assert torch.equal(one, other) if isinstance(one, Tensor) else one == other


KINDS: list[tuple[type[nn.Module], tuple[int, ...], list[tuple[int, ...]]]] = [
    (TwoGraphs, (2, 9, 16), [(2, 3, 16), (1, 9, 16), (4, 40, 16), (2, 1, 16)]),
    (ThreeGraphs, (2, 9, 16), [(2, 3, 16), (1, 9, 16), (4, 40, 16), (2, 2, 16)]),
    (BranchByInteger, (2, 9, 16), [(2, 3, 16), (1, 9, 16), (4, 40, 16)]),
    (Levels, (2, 8, 16, 16), [(2, 8, 8, 8), (1, 8, 33, 20), (3, 8, 64, 48)]),
]


@pytest.mark.parametrize(
    ("kind", "calibrated", "others"), KINDS, ids=lambda v: getattr(v, "__name__", "")
)
def test_R1_the_first_call_of_a_size_is_int8(
    kind: type[nn.Module], calibrated: tuple[int, ...], others: list[tuple[int, ...]]
) -> None:
    model, quantized = made(kind, *calibrated)
    with no_warning():
        for shape in others:
            (x,) = batches(*shape, count=1)
            first = quantized(x)
            with torch.no_grad():
                assert_near(model(x), first)
            assert_same(quantized(x), first)
    assert quantized.calls == {"int8": 2 * len(others), "float": 0}
    assert "recorded after calibration, runs in float" not in quantized.report_text()


def test_R1_both_arms_of_a_branch_at_new_sizes() -> None:
    x, y = batches(2, 9, 16)
    model, quantized = made(BranchByValue, data=[x - x.mean() + 1, y - y.mean() - 1])
    with no_warning():
        for length in (3, 30):
            (x,) = batches(1, length, 16, count=1)
            for side in (1, -1):
                z = x - x.mean() + side
                first = quantized(z)
                with torch.no_grad():
                    assert_near(model(z), first)
                assert_same(quantized(z), first)
    assert quantized.calls == {"int8": 8, "float": 0}


def test_R1_the_first_call_equals_the_reference_graphs() -> None:
    _, quantized = made(TwoGraphs, 2, 9, 16)
    (x,) = batches(3, 5, 16, count=1)
    got = quantized(x)
    _, second, first = frametap.segments(quantized)
    h = x
    for segment in (first, second):
        reference = frametap._C.compile(
            frametap._C.native_backend(), quantized.quantized_graph(segment).reference
        )
        (h,) = reference.run([h if w is None else w for w in segment.graph.weights])
    assert float((h - got).abs().max()) < float(got.abs().max()) / 100


def test_effects_of_a_first_call_happen_once() -> None:
    model, quantized = made(WritesAndCounts, 2, 9, 16)
    inner = quantized._model
    with no_warning():
        for number, length in enumerate((9, 4, 4, 30, 30, 4)):
            (x,) = batches(2, length, 16, count=1)
            mine, theirs = x.clone(), x.clone()
            want = model(mine)
            got = quantized(theirs)
            with torch.no_grad():
                assert_near(want, got)
            assert torch.equal(mine[:, :, 1:], theirs[:, :, 1:])
            assert_near(mine[:, :, 0], theirs[:, :, 0])
            assert torch.equal(theirs[:, :, 0], inner.seen[-1][:, :, 0])  # of one run
            assert inner.count == 2 * (number + 1)
            assert len(inner.seen) == number + 1
    assert_near(model.total, inner.total)
    assert quantized.calls == {"int8": 6, "float": 0}


class GivesNumbers(TwoGraphs):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(fitted(x))
        scale = h.abs().max().item()
        shown("between")
        return self.second(h / scale)


class DrawsNumbers(TwoGraphs):
    def forward(self, x: Tensor) -> Tensor:
        h = self.first(fitted(x)) + torch.rand(1)
        shown("between")
        return self.second(h)


@pytest.mark.parametrize("kind", [GivesNumbers, DrawsNumbers])
def test_R2_values_of_float_that_stay_are_told(kind: type[nn.Module]) -> None:
    """Python has the number already, and a second run would draw others: the call has the values of one run, and says so."""
    model, quantized = made(kind, 2, 9, 16)
    torch.manual_seed(3)
    (x,) = batches(2, 4, 16, count=1)
    with pytest.warns(frametap.FrametapWarning, match="a call of a new kind was recorded"):
        first = quantized(x)
    state = torch.get_rng_state()
    torch.manual_seed(3)
    with torch.no_grad():
        assert torch.allclose(model(x), first, atol=0.05)
    assert torch.equal(torch.get_rng_state(), state)
    with no_warning():
        quantized(x)
    assert quantized.calls == {"int8": 1, "float": 1}


class OrderBySize(nn.Module):
    """Which of the inputs is read first depends on a size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if y.shape[1] > 8:
            b = self.second(y)
            a = self.first(x)
        else:
            a = self.first(x)
            b = self.second(y)
        return a, b


class PadsToTheLonger(OrderBySize):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape[1] != y.shape[1]:
            longer = max(x.shape[1], y.shape[1])
            x, y = (F.pad(t, (0, 0, 0, longer - t.shape[1])) for t in (x, y))
        return self.first(x), self.second(y).relu()


@pytest.mark.parametrize("kind", [OrderBySize, PadsToTheLonger])
def test_an_input_has_its_own_range_whenever_it_is_read(kind: type[nn.Module]) -> None:
    def pair(n: int, k: int) -> tuple[Tensor, Tensor]:
        x, y = batches(2, n, 16, count=1)[0], batches(2, k, 16, count=1)[0]
        return x, 100 * y + 30

    model, quantized = made(kind, data=[pair(6, 6)])
    with torch.no_grad(), no_warning():
        for n, k in ((6, 6), (9, 6), (6, 9), (12, 12), (6, 13), (13, 6)):
            for want, got in zip(model(*pair(n, k)), quantized(*pair(n, k)), strict=True):
                assert sqnr(want, got) > 30
    assert quantized.calls["float"] == 0


class TakesPositions(nn.Module):
    """At the full length, torch takes no slice of the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 8)
        self.norm, self.positions = nn.LayerNorm(32), nn.Parameter(torch.randn(1, 12, 32))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        return self.second(self.norm(self.first(x) + self.positions[:, :length]))[:, : length - 1]


def test_a_part_of_a_table() -> None:
    model, quantized = made(TakesPositions, 2, 12, 16)
    with torch.no_grad(), no_warning():
        for length in (12, 7, 5, 1):
            x = batches(2, length, 16, count=1)[0]
            want, got = model(x), quantized(x)
            if length > 1:
                assert sqnr(want, got) > 30
    assert quantized.calls["float"] == 0


class PadsToMultiple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        if height % 4 or width % 4:
            x = F.pad(x, (0, -width % 4, 0, -height % 4))
        return self.second(F.max_pool2d(self.first(x).relu(), 2))


class PoolsTheWholeImage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        mean = F.avg_pool2d(h, h.shape[2:])
        return self.head(torch.cat([mean, F.max_pool2d(h, h.shape[2:])], 1).flatten(1))


@pytest.mark.parametrize("kind", [PadsToMultiple, PoolsTheWholeImage])
def test_the_first_image_of_another_size(kind: type[nn.Module]) -> None:
    model, quantized = made(kind, 2, 3, 16, 16)
    with torch.no_grad(), no_warning():
        for size in ((16, 16), (24, 24), (15, 18), (24, 13)):
            x = batches(2, 3, *size, count=1)[0]
            want, got = model(x), quantized(x)
            assert sqnr(want, got) > 30
    assert quantized.calls["float"] == 0


@functools.lru_cache(16)
def split(shape: tuple[int, ...], heads: int) -> tuple[list[int], list[int]]:
    return [*shape[:2], heads, shape[2] // heads], [0, 2, 1, 3]


class AsksACache(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        sizes, order = split(self.first(x).relu().shape, 4)
        h = self.first(x).relu().reshape(sizes).permute(order)
        return self.second(h.transpose(1, 2).flatten(2))


def test_a_cached_function_of_a_size() -> None:
    model, quantized = made(AsksACache, 2, 8, 16)
    with torch.no_grad(), no_warning():
        for size in ((2, 8), (3, 5), (1, 9)):
            x = batches(*size, 16, count=1)[0]
            want, got = model(x), quantized(x)
            assert sqnr(want, got) > 30
    assert quantized.calls["float"] == 0
    assert frametap.explain(quantized).recordings == 1
