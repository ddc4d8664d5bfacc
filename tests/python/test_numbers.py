"""Numbers that differ from call to call need no second recording, and decisions on them are guarded as relations."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fixtures.models import MODELS, ResNet18, available
from fixtures.subject import EAGER, frametap

pytestmark = pytest.mark.skipif(EAGER, reason="counts recordings")


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def recorded(f: Callable[..., Any], calls: Iterable[tuple[Any, ...]], **options: Any) -> Any:
    """The report after these calls, each of which gave what plain Python gives."""
    captured = frametap.compile(f, **options)
    for args in calls:
        wanted, got = leaves(f(*args)), leaves(captured(*args))
        assert len(wanted) == len(got)
        for a, b in zip(wanted, got, strict=True):
            if isinstance(a, Tensor):
                torch.testing.assert_close(b, a, equal_nan=True)
            else:
                assert type(a) is type(b)
                assert a == b
    return frametap.explain(captured)


def by_batch(x: Tensor) -> Tensor:
    return x.view(x.shape[0], -1) * 2


def by_length(x: Tensor) -> Tensor:
    return torch.arange(len(x)) * x.size(0)


def padded(x: Tensor) -> Tensor:
    return F.pad(x, (0, -x.shape[-1] % 8)).view(x.shape[0], -1, 8)


def causal(x: Tensor) -> Tensor:
    n = x.shape[1]
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    scores = (x @ x.transpose(1, 2)) / math.sqrt(x.size(-1))
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ x


def windows(x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    y = x.view(b, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 2, 2, c)
    return y.view(b, h // 2, w // 2, 2, 2, -1).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, -1)


def scaled_by_item(x: Tensor) -> Tensor:
    return x * x.sum().item() + x.max().item()


def row_that_changes(x: Tensor) -> tuple[Tensor, list[int]]:
    row = list(x.shape)
    row[-1] = row[0] + 1
    row.append(x.dim())
    row.insert(0, row.pop() + len(x))
    first, *rest = row + [1]
    return x.new_zeros(row) * first, rest


def tensors_of_numbers(x: Tensor, n: int, s: float) -> tuple[Tensor, ...]:
    row = torch.tensor([n, 2, x.shape[0]])
    table = torch.tensor([[s, n * 0.5], [x.shape[0], 1]])
    return row, table, torch.tensor(n), torch.as_tensor(3.0 * s), x.new_tensor([n, len(x)])


def listed(x: Tensor) -> list[Any]:
    a, b = x.tolist()
    return [a * 2, [b], torch.tensor([b, a]), x + a, [v + 1 for v in x.tolist()]]


def area(height: int, width: int, depth: int = 1) -> int:
    return height * width * depth


def halves(sizes: Iterable[int]) -> Iterable[int]:
    for size in sizes:
        yield size * 2


def taken_from_a_generator(x: Tensor) -> Tensor:
    total = x
    for size in halves(x.shape):
        total = total + size
    return total * area(*x.shape[1:])


def rows_of_a_generator(x: Tensor) -> tuple[Any, ...]:
    rows = list((size // 2, size, x * size) for size in x.shape[:1])  # noqa: C400 - list() takes them
    return tuple(halves(x.shape)), rows[0][0], torch.Size(size for size in x.shape)


def widened(x: Tensor, **axes: int) -> Tensor:
    """Takes its axes apart as einops does."""
    for _name, size in tuple(axes.items()):
        x = x[None].expand(size, *x.shape)
    assert tuple(axes) == ("n",)
    return x.new_zeros(*axes.values(), len(axes))


def rows_of_iterators(x: Tensor) -> tuple[Any, ...]:
    height, width = map(int, x.shape[:2])
    named = list(zip(("a", "b", "c"), x.shape, strict=True))
    numbered = tuple(enumerate(x.shape[:2]))
    return height * width, x * named[0][1], numbered[0][1] + 1, x.view(*map(int, x.shape))


def loops_over_views(x: Tensor) -> tuple[Any, ...]:
    sizes = {"a": x.shape[0], "b": 2}
    for name, size in sizes.items():
        x = x * size
        sizes[name] = size + 1
    first, second = sizes.values()
    return x, first, second, list(sizes.values())


SIZES = [(torch.randn(n, 4, 6),) for n in range(2, 22)]
PROGRAMS: list[tuple[Callable[..., Any], list[tuple[Any, ...]]]] = [
    (by_batch, SIZES),
    (by_length, SIZES),
    (padded, [(torch.randn(2, n),) for n in range(2, 22)]),
    (causal, [(torch.randn(2, n, 4),) for n in range(2, 22)]),
    (windows, [(torch.randn(2, 2 * n, 4 * n, 3),) for n in range(2, 12)]),
    (scaled_by_item, SIZES),
    (lambda x, n: x * n + x[:n].sum(), [(torch.ones(30), n) for n in range(1, 21)]),
    (lambda x, n: x.clamp(-n, n) * (n * 2 + 1), [(torch.ones(3), n / 7) for n in range(1, 21)]),
    (lambda x: F.adaptive_avg_pool2d(x, 1), [(torch.ones(1, 2, n, n + 1),) for n in range(2, 22)]),
    (lambda x: [x.shape[i] * 2 for i in range(2)], [(torch.ones(n, n),) for n in range(2, 22)]),
    (lambda x: torch.zeros([n + 1 for n in x.shape]), [(torch.ones(n, n),) for n in range(2, 22)]),
    (lambda x, l: x * l[0] + sum(l) - max(l), [(torch.ones(3), [n, 30 - n]) for n in range(1, 21)]),
    (lambda x, l: [x * k for k in l], [(torch.ones(3), [n, n / 2]) for n in range(1, 21)]),
    (lambda x: x.reshape(area(*x.shape), 1), SIZES),
    (lambda x: torch.zeros(*x.shape) + x, SIZES),
    (lambda x: x.new_ones(tuple(n + 1 for n in x.shape)), SIZES),
    (lambda x: x.reshape(torch.Size([x.shape[0] * x.shape[1], x.shape[2]])), SIZES),
    (taken_from_a_generator, SIZES),
    (rows_of_a_generator, SIZES),
    (lambda x: widened(x, n=x.shape[0]), SIZES),
    (rows_of_iterators, SIZES),
    (loops_over_views, SIZES),
    (lambda x: x.reshape(functools.reduce(operator.mul, x.shape[:2]), -1), SIZES),
    (lambda x: x.chunk(2), SIZES),
    (lambda x: torch.tensor_split(x, 2), SIZES),
    (lambda x: torch.meshgrid(torch.arange(len(x)), torch.arange(6), indexing="ij"), SIZES),
    (lambda x: torch.broadcast_tensors(x, x[0, 0]), SIZES),
    (lambda x: torch.linspace(0, 1, len(x)) + torch.logspace(0, len(x), len(x)), SIZES),
    (lambda x: torch.split(x, len(x) // 2), [(torch.randn(2 * n, 3),) for n in range(1, 21)]),
    (row_that_changes, [(torch.ones(n, 2 * n),) for n in range(2, 22)]),
    (tensors_of_numbers, [(torch.ones(n), n * 2**50 + 1, n / 7) for n in range(1, 21)]),
    (listed, [(torch.tensor([n, n * n]),) for n in range(1, 21)]),
    (listed, [(torch.randn(2),) for _ in range(20)]),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p[0].__name__)
def test_one_recording(program: tuple[Callable[..., Any], list[tuple[Any, ...]]]) -> None:
    report = recorded(*program)
    assert report.recordings == 1, str(report)
    assert report.break_count == 0, str(report)


def test_a_decision_is_a_relation() -> None:
    def f(x: Tensor) -> Tensor:
        return x + 1 if x.shape[0] // 2 > 2 else x - 1

    captured = frametap.compile(f)
    for n in range(1, 21):
        assert torch.equal(captured(torch.ones(n)), f(torch.ones(n)))
    assert frametap.explain(captured).recordings == 2
    guards = "\n".join(str(g) for s in frametap.segments(captured) for g in [s])
    assert "(L.x.size(0) // 2) > 2" in guards or "L.x.size(0) // 2 > 2" in guards, guards


def test_lists_of_other_sizes_are_no_recordings() -> None:
    """One for the first size and one behind each end of a graph, whatever the sizes after it."""
    report = recorded(lambda x: (x * 2).tolist(), [(torch.ones(n),) for n in range(1, 21)])
    assert report.recordings <= 3, str(report)


def test_a_list_of_a_tensor_without_a_break() -> None:
    captured = frametap.compile(listed, fullgraph=True)
    for n in range(1, 5):
        assert str(captured(torch.tensor([n, 3]))) == str(listed(torch.tensor([n, 3])))


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.step = 0

    def forward(self, x: Tensor) -> Tensor:
        y = x / (1 - 0.9 ** (self.step + 1))
        self.step += 1
        return y * self.step


def test_a_counter_is_recorded_once() -> None:
    captured, plain = Counter(), Counter()
    run = frametap.compile(captured)
    for _ in range(20):
        torch.testing.assert_close(run(torch.ones(3)), plain(torch.ones(3)))
    assert captured.step == plain.step
    assert frametap.explain(run).recordings == 1


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


@pytest.mark.parametrize(("dynamic", "recordings"), [(None, 2), (True, 1), (False, 10)])
def test_an_attribute_is_fixed_until_it_changes(dynamic: bool | None, recordings: int) -> None:
    model = Scaled()
    captured = frametap.compile(model, dynamic=dynamic)
    for i in range(10):
        model.scale = float(i)
        assert torch.equal(captured(torch.ones(2)), torch.ones(2) * i)
    assert frametap.explain(captured).recordings == recordings


def test_a_growing_cache() -> None:
    def step(x: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        keys = torch.cat([keys, x], 1)
        position = torch.arange(keys.shape[1] - x.shape[1], keys.shape[1])
        scores = (x @ keys.transpose(1, 2)) / math.sqrt(keys.shape[-1])
        return scores.softmax(-1) @ keys + position.unsqueeze(-1), keys

    captured = frametap.compile(step)
    keys = plain = torch.randn(1, 1, 4)
    for _ in range(20):
        x = torch.randn(1, 1, 4)
        out, keys = captured(x, keys)
        wanted, plain = step(x, plain)
        assert torch.equal(out, wanted)
    assert frametap.explain(captured).recordings == 1


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_lengths_of_a_language_model(name: str) -> None:
    case = MODELS[name]
    if not available(case):
        pytest.skip("transformers is not installed")
    model = case.build().eval()
    captured = frametap.compile(model)
    inputs = {k: v for k, v in case.inputs(2).items() if k in ("input_ids", "attention_mask")}
    with torch.no_grad():
        for n in range(4, 24):
            args = {k: v.repeat(1, 24)[:, :n].contiguous() for k, v in inputs.items()}
            if "attention_mask" in args:  # one that hides something is another branch
                args["attention_mask"] = torch.ones_like(args["attention_mask"])
            got, wanted = captured(**args)[0], model(**args)[0]
            assert torch.equal(got, wanted)
    report = frametap.explain(captured)
    assert report.recordings == 1 + case.put_off, str(report)


@pytest.mark.parametrize("name", ["resnet18", "unet"])
def test_image_sizes(name: str) -> None:
    model = ResNet18(10).eval() if name == "resnet18" else MODELS["unet"].build().eval()
    captured = frametap.compile(model)
    with torch.no_grad():
        for n in (64, 96, 128, 192, 256):
            x = torch.randn(1, 3, n, n)
            assert torch.equal(captured(x), model(x))
    report = frametap.explain(captured)
    assert report.recordings == 1, str(report)


def test_a_relation_that_does_not_hold_is_told() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + y if x.shape[0] == y.shape[0] else x

    captured = frametap.compile(f)
    captured(torch.ones(2), torch.ones(2))
    captured(torch.ones(3), torch.ones(3))
    captured(torch.ones(3), torch.ones(1))
    report = frametap.explain(captured)
    assert report.recordings == 2
    assert "L.x.size(0) == L.y.size(0)" in str(report)


def test_contiguous_that_is_a_copy_for_others() -> None:
    """That contiguous() gives the tensor itself is taken for granted on the way, found out, and not again."""

    def f(x: Tensor, n: int) -> Tensor:
        y = (x * 2).transpose(0, 1)[:n].contiguous()
        y.add_(1)
        return y.view(-1)

    captured = frametap.compile(f)
    for x in (
        torch.ones(1, 4),
        torch.ones(1, 5),
        torch.ones(3, 4),
        torch.ones(3, 4),
        torch.ones(2, 4),
    ):
        for _ in range(2):
            assert torch.equal(captured(x, 3), f(x, 3))


def test_explain_tells_what_is_fixed_and_which_sizes_nobody_predicts() -> None:
    def f(x: Tensor, n: int) -> tuple[Tensor, Tensor]:
        for k in range(n):
            x = x + k
        pairs = torch.combinations(x)
        return x, x.new_zeros(pairs.shape[0], n)

    captured = frametap.compile(f)
    captured(torch.ones(4), 2)
    explanation = frametap.explain(captured)
    assert [(g.source, g.expected) for g in explanation.fixed_numbers] == [("L.n", 2)]
    assert [op for op, _ in explanation.ops_without_size_rule] == ["aten.combinations"]
    page = str(explanation)
    assert "fixed numbers (another number makes a new recording):\n  L.n : == 2  @ " in page
    assert "sizes known only once the op has run:\n  aten.combinations  @ " in page
    model = torch.nn.Linear(2, 2)
    of_model = frametap.compile(model)
    of_model(torch.ones(3, 2))
    assert frametap.explain(of_model).fixed_numbers == []


def test_explain_tells_which_lengths_are_fixed() -> None:
    def f(x: Tensor, values: list[int]) -> Tensor:
        return x + 1 if len(values) == 3 else x

    captured = frametap.compile(f)
    captured(torch.ones(4), [1, 2, 3])
    assert [(g.source, g.kind, g.expected) for g in frametap.explain(captured).fixed_numbers] == [
        ("L.values", "len", 3)
    ]


def test_sizes_that_are_broadcast_again_and_again_stay_short() -> None:
    """Each layer adds what it got (an open size) to what it made (the weight's): one formula, not twice as long a one."""
    layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(20))

    def f(x: Tensor, y: Tensor) -> Tensor:
        for layer in layers:
            x = x + layer(x) + y
            if x.shape[0] != y.shape[0] or x.shape[-1] != 4:
                x = x * 2
        return x

    captured = frametap.compile(f)
    for rows in (2, 3, 5):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        assert torch.equal(captured(x, y), f(x, y))
    (segment,) = frametap.segments(captured)
    assert max(len(guard.predicate) for guard in frametap.guards(captured)) < 200
    assert sum(node.is_scalar for node in segment.graph.nodes) < 10
