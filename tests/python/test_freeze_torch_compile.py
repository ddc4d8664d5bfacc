"""``torch.compile(model, backend="frametap", options={"freeze": True})``. following/W1 to following/W5."""

from __future__ import annotations

import copy
import functools
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import frametap
from fixtures.subject import needs_capture
from frametap import _C
from frametap._torch_backend import frametap_backend

pytestmark = needs_capture


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.table, self.head = nn.Embedding(5, 4), nn.Linear(4, 4)
        nn.init.uniform_(self.norm.running_mean)  # type: ignore[arg-type]
        nn.init.uniform_(self.norm.running_var, 0.5, 2)  # type: ignore[arg-type]
        self.eval()

    def forward(self, x: Tensor, row: Tensor | None = None) -> Tensor:
        y = self.norm(self.conv(x)).relu().mean((2, 3))
        return self.head(y if row is None else y + self.table(row))


class Freezing:
    """The backend, and the graphs that it was given."""

    def __init__(self, **options: Any) -> None:
        torch._dynamo.reset()
        self.options = {"freeze": True, **options}
        self.made: list[Any] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any], **_: Any) -> Any:
        self.made.append(frametap_backend(gm, inputs, options=self.options))
        return self.made[-1]

    def compile(self, model: Any) -> Any:
        return torch.compile(model, backend=self)

    def frozen(self) -> list[dict[str, Any]]:
        """By recorded graph."""
        found = [_C.freeze_of(s.executable) for made in self.made for s in frametap.segments(made)]
        return [row for row in found if row is not None]

    def forms(self) -> list[str]:
        return [row["form"] for row in self.frozen()[0]["report"]]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(2)
    yield
    torch._dynamo.reset()


def _same(f: Any, model: nn.Module, *args: Any, tolerance: float = 1e-5) -> None:
    want, got = copy.deepcopy(model)(*args), f(*args)
    assert torch.allclose(want, got, rtol=tolerance, atol=tolerance)
    assert want.requires_grad == got.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_become_kernels(dtype: torch.dtype) -> None:
    backend, model = Freezing(dtype=dtype), Net()
    f = backend.compile(model)
    with torch.no_grad():
        for _ in range(3):
            _same(
                f, model, torch.randn(2, 3, 8, 8), tolerance=1e-5 if dtype.itemsize == 4 else 5e-2
            )
    assert backend.forms() == ["kernel", "folded", "fused", "torch", "kernel"]


def test_graphs_of_aot_autograd_are_frozen_too() -> None:
    backend, model = Freezing(), Net()
    f = torch.compile(model, backend=aot_autograd(fw_compiler=functools.partial(backend)))
    with torch.no_grad():
        for _ in range(3):
            _same(f, model, torch.randn(2, 3, 8, 8))
        model.norm.running_var.mul_(2)  # type: ignore[operator]
        _same(f, model, torch.randn(2, 3, 8, 8))
    assert backend.forms() == ["kernel", "folded", "fused", "torch", "folded", "kernel"]


def _load_others(model: Net) -> None:
    model.load_state_dict(Net().state_dict())


def _assign_others(model: Net) -> None:
    model.load_state_dict(Net().state_dict(), assign=True)


def _step(model: Net) -> None:
    with torch.enable_grad():
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    torch.optim.SGD(model.parameters(), 0.5).step()


def _fused_step(model: Net) -> None:
    with torch.enable_grad():
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    torch.optim.AdamW(model.parameters(), 0.5, fused=True).step()


def _write_to_data(model: Net) -> None:
    for parameter in model.parameters():
        parameter.data.mul_(1.5)


def _new_parameter(model: Net) -> None:
    model.head.weight = nn.Parameter(torch.randn(4, 4))


def _new_data(model: Net) -> None:
    model.conv.weight.data = torch.randn(4, 3, 3, 3)


def _update_statistics(model: Net) -> None:
    model.train()(torch.randn(8, 3, 8, 8))
    model.eval()


CHANGES: list[Callable[[Net], None]] = [
    _load_others,
    _assign_others,
    _step,
    _fused_step,
    _write_to_data,
    _new_parameter,
    _new_data,
    _update_statistics,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__[1:])
def test_w1_weights_that_have_changed_are_packed_again(change: Callable[[Net], None]) -> None:
    backend, model, x = Freezing(), Net(), torch.randn(2, 3, 8, 8)
    f = backend.compile(model)
    with torch.no_grad():
        for _ in range(3):
            _same(f, model, x)
            _same(f, model, x)
            before = model(x)
            change(model)
            assert not torch.allclose(before, model(x), atol=1e-3)
    assert backend.frozen()[0]["freezes"] >= 3


def test_w1_other_weights_are_read_at_each_call() -> None:
    backend, model = Freezing(), Net()
    f = backend.compile(model)
    with torch.no_grad():
        for _ in range(3):
            _same(f, model, torch.randn(2, 3, 8, 8), torch.tensor(1))
            model.table.weight.add_(1)
    assert backend.frozen()[0]["freezes"] == 1


def test_w1_a_graph_may_write_to_a_weight_by_another_name() -> None:
    layer = nn.Linear(4, 4).eval()

    def f(x: Tensor, alias: Tensor) -> Tensor:
        alias.mul_(2)
        return layer(x)

    backend, x = Freezing(), torch.randn(3, 4)
    compiled = backend.compile(f)
    with torch.no_grad():
        for _ in range(3):
            want = nn.functional.linear(x, layer.weight * 2, layer.bias)
            assert torch.allclose(compiled(x, layer.weight.view(16)), want, atol=1e-5)


def test_w1_a_view_of_a_weight_that_is_returned_is_a_view() -> None:
    class Tied(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return x @ self.weight.t(), self.weight.t()

    backend, model, x = Freezing(), Tied(4, 4).eval(), torch.randn(3, 4)
    f = backend.compile(model)
    with torch.no_grad():
        for _ in range(3):
            got, weight = f(x)
            assert torch.allclose(got, model(x)[0], atol=1e-5)
            weight.add_(1)


@pytest.mark.parametrize(
    "product",
    [
        lambda x, w: torch.bmm(x[None], w),
        lambda x, w: torch.bmm(x.expand(2, 3, 4), w.expand(2, 4, 4)),
        lambda x, w: torch.einsum("bi,oi->bo", x, w[0] * 1),
        lambda x, w: x @ w[0].t(),
        lambda x, w: nn.functional.linear(x, w[0] * 2),
        lambda x, w: torch.addmm(w[0, 0], x, w[0], beta=0.5),
    ],
)
def test_w1_parts_of_weights_are_followed(product: Callable[[Tensor, Tensor], Tensor]) -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(1, 4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return product(x, self.weight)

    backend, model = Freezing(), Part().eval()
    f = backend.compile(model)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(2):
                _same(f, model, torch.randn(3, 4))
            model.weight.mul_(2)


def test_w2_layers_that_share_a_graph_have_forms_of_their_own() -> None:
    backend, models = Freezing(), [Net() for _ in range(4)]
    compiled = [backend.compile(model) for model in models]
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for _ in range(3):
            for f, model in zip(compiled, models, strict=True):
                _same(f, model, x)
    [row] = backend.frozen()
    assert (row["forms"], row["freezes"]) == (4, 4)


def test_w2_forms_go_with_their_weights() -> None:
    backend, x = Freezing(), torch.randn(2, 3, 8, 8)
    first = backend.compile(Net())
    weights = []
    with torch.no_grad():
        first(x)
        for _ in range(5):
            model = Net()
            weights.append(weakref.ref(model.conv.weight))
            _same(backend.compile(model), model, x)
            del model
            gc.collect()
    assert [weight() for weight in weights] == [None] * 5
    assert backend.frozen()[0]["forms"] <= 3


def test_w3_weights_that_change_at_each_call_are_not_packed_each_time() -> None:
    backend, model, x = Freezing(), Net(), torch.randn(2, 3, 8, 8)
    f = backend.compile(model)
    with torch.no_grad():
        for _ in range(12):
            _same(f, model, x)
            model.head.bias.add_(1)
        [row] = backend.frozen() or [{"freezes": 4}]
        assert row["freezes"] <= 5
        for _ in range(3):
            _same(f, model, x)
        [row] = backend.frozen()
        assert row["freezes"] <= 6


def test_w4_gradients_are_those_of_the_model() -> None:
    backend, model, x = Freezing(), Net(), torch.randn(2, 3, 8, 8, requires_grad=True)
    f = backend.compile(model)
    with torch.no_grad():
        _same(f, model, x)
    with pytest.warns(frametap.FrametapWarning, match="computes gradients"):
        got = f(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = f(x)
    inputs = [x, *model.conv.parameters(), *model.head.parameters()]
    for a, b in zip(
        torch.autograd.grad(got.sum(), inputs),
        torch.autograd.grad(model(x).sum(), inputs),
        strict=True,
    ):
        assert torch.allclose(a, b, atol=1e-5)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    _same(f, model, x.detach())
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", frametap.FrametapWarning)
        _same(f, model, x.detach())


def test_w4_training_mode_runs_as_recorded() -> None:
    backend, model, x = Freezing(), Net().train(), torch.randn(2, 3, 8, 8)
    twin, f = copy.deepcopy(model), backend.compile(model)
    with torch.no_grad():
        with pytest.warns(frametap.FrametapWarning, match=r"training mode .*call eval"):
            got = f(x)
        for _ in range(3):
            assert torch.allclose(got, twin(x), atol=1e-6)
            got = f(x)
        twin(x)
    for name, buffer in twin.named_buffers():
        assert torch.allclose(buffer, model.get_buffer(name), atol=1e-6)
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            _same(f, model, x)
    assert backend.forms()[:2] == ["kernel", "folded"]


def test_w5_results_lie_as_those_of_the_model() -> None:
    backend = Freezing()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval()
    f = backend.compile(model)
    x = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        for images in (x, x.contiguous(memory_format=torch.channels_last), x):
            assert f(images).stride() == model(images).stride()
            _same(f, model, images)
        model.to(memory_format=torch.channels_last)
        for _ in range(2):
            assert f(x).stride() == model(x).stride()


@pytest.mark.parametrize("aot", [False, True])
@pytest.mark.parametrize("images_last", [False, True])
@pytest.mark.parametrize("weight_last", [False, True])
def test_w5_views_in_results_share_memory(aot: bool, images_last: bool, weight_last: bool) -> None:
    conv = nn.Conv2d(3, 4, 3).eval()
    if weight_last:
        conv.to(memory_format=torch.channels_last)

    def f(x: Tensor) -> list[Tensor]:
        y = conv(x)
        return [y, y[:, 1:], y.transpose(1, 2), y[0], y.relu().flatten(2)]

    backend = Freezing()
    g = torch.compile(f, backend=aot_autograd(fw_compiler=backend) if aot else backend)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 3, 8, 8)
            if images_last:
                x = x.contiguous(memory_format=torch.channels_last)
            want, got = f(x), g(x)
            want[0].add_(1)
            got[0].add_(1)
            for a, b in zip(want, got, strict=True):
                assert torch.allclose(a, b, atol=1e-5)
                assert a.stride() == b.stride()


def test_sizes_breaks_and_inference_mode() -> None:
    class Broken(Net):
        def forward(self, x: Tensor, row: Tensor | None = None) -> Tensor:
            y = super().forward(x)
            torch._dynamo.graph_break()
            return self.head(y) if y.sum() > 0 else self.head(y).relu()

    backend, model = Freezing(), Broken()
    f = backend.compile(model)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            for sizes in [(2, 8, 8), (2, 9, 8), (1, 20, 3), (5, 8, 8), (2, 8, 8)]:
                _same(f, model, torch.randn(sizes[0], 3, *sizes[1:]))
    with torch.inference_mode():
        assert f(torch.randn(2, 3, 8, 8)).is_inference()


def test_threads() -> None:
    backend, model = Freezing(), Net()
    f = backend.compile(model)

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            return f(x)

    inputs = [torch.randn(2, 3, 8, 8) for _ in range(40)]
    call(inputs[0])
    with ThreadPoolExecutor(4) as pool:
        for x, got in zip(inputs, pool.map(call, inputs), strict=True):
            assert torch.allclose(got, model(x), atol=1e-5)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"freze": True}, "unknown option 'freze'; did you mean 'freeze'"),
        ({"freeze": 1}, "freeze must be True or False, got 1"),
        ({"freeze": "bfloat16"}, "freeze must be True or False"),
        ({"freeze": True, "dtype": "bfloat16"}, "dtype must be torch.float32 or torch.bfloat16"),
        ({"freeze": True, "dtype": torch.int8}, "for int8 there is frametap.quantize"),
        ({"freeze": False, "dtype": torch.bfloat16}, "dtype belongs to freeze"),
        ({"freeze": True, "segment_limit": 0}, "segment_limit must be a positive int"),
        ([("freeze", True)], "options must be a dict"),
    ],
)
def test_bad_options_are_refused_in_words(options: Any, text: str) -> None:
    gm = torch.fx.symbolic_trace(nn.Linear(4, 4))
    with pytest.raises(frametap.FrametapError, match=text):
        frametap_backend(gm, [torch.ones(2, 4)], options=options)


def test_without_freeze_nothing_changes() -> None:
    torch._dynamo.reset()
    model, x = Net(), torch.randn(2, 3, 8, 8)
    f = torch.compile(model, backend=frametap_backend, options={"strict": True, "freeze": False})
    for _ in range(2):
        assert f(x).equal(model(x))
