"""_inference_model/R1 to _inference_model/R3: a quantized model runs in int8, or says that it does not."""

from __future__ import annotations

import abc
import contextlib
import copy
import cProfile
import io
import pdb  # noqa: T100
import pickle
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about int8")]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.bn(self.conv(x)))
        h = F.relu(self.second(h) + h)
        return self.head(h.mean((2, 3)))


class Resizing(Net):
    """Python reads the sizes: each is recorded."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        x = F.interpolate(x, size=(height // 2 * 2, width // 2 * 2), mode="bilinear")
        for _ in range(height + width):
            pass
        return super().forward(x)


class Attention(nn.Module):
    """Heads are cut out by sizes that Python computes, as in transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        if length > 100:
            raise ValueError("too long")
        positions = torch.zeros([batch, length], dtype=torch.int64)
        x = x + positions[..., None].float()
        q, k, v = self.qkv(x).view(batch, length, 3, 4, 4).unbind(2)
        mixed = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Broken(nn.Module):
    """Two graphs with a print in between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        print("between", file=io.StringIO())
        return self.second(h)


def batches(*shape: int, count: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator).clamp(-2, 2) for _ in range(count)]


def made(kind: type[nn.Module], *shape: int, **options: Any) -> tuple[nn.Module, Any, Tensor]:
    """The float model, the quantized one, and an input."""
    torch.manual_seed(0)
    model = kind().eval()
    data = batches(*shape)
    return model, frametap.quantize(model, data, progress=False, **options), data[0]


@contextlib.contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", frametap.FrametapWarning)
        yield


def is_close(want: Tensor, got: Tensor) -> bool:
    """As int8 is to float: near, and not the same."""
    noise = (want - got).square().sum()
    return want.shape == got.shape and 0 < float(noise) < float(want.square().sum()) / 100


# -- around the call --


def in_inference_mode(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.inference_mode():
        return call(x)


def with_input_made_in_inference_mode(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.inference_mode():
        made_there = x.clone()
    return call(made_there)


def with_gradients_wanted(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.enable_grad():
        return call(x.clone().requires_grad_())


def under_autocast(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return call(x)


def profiled(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with cProfile.Profile():
        return call(x)


def traced(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    def trace(frame: Any, event: str, arg: Any) -> Any:
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call(x)
    finally:
        assert sys.gettrace() is trace
        sys.settrace(before)


def debugged(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    debugger = pdb.Pdb(stdin=io.StringIO("continue\n" * 9), stdout=io.StringIO(), nosigint=True)
    before = sys.gettrace()
    try:
        return debugger.runcall(call, x)  # type: ignore[no-any-return]
    finally:
        sys.settrace(before)


def in_a_thread(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    results: list[Tensor] = []
    thread = threading.Thread(target=lambda: results.append(call(x)))
    thread.start()
    thread.join()
    return results[0]


def with_a_global_hook(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, result: seen.append(type(module).__name__)
    )
    try:
        return call(x)
    finally:
        handle.remove()


def after_torch_compile(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.compile(nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
    return call(x)


def after_export(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    return call(x)


def after_symbolic_trace(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    torch.fx.symbolic_trace(nn.Linear(2, 2))
    return call(x)


def after_registering_an_abc(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    class Abstract(abc.ABC):
        pass

    Abstract.register(nn.Module)
    Abstract.register(Net)
    return call(x)


def after_a_patch_of_module(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    nn.Module.of_this_test = 1  # type: ignore[assignment]
    try:
        return call(x)
    finally:
        del nn.Module.of_this_test


def in_a_sequence(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return nn.Sequential(nn.Identity(), call, nn.Identity())(x)  # type: ignore[arg-type, no-any-return]


def in_a_captured_function(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    captured = frametap.compile(lambda x: call(x * 1.0) * 1.0)
    captured(x)
    captured(x)
    return captured(x)  # type: ignore[no-any-return]


def captured_itself(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    captured = frametap.compile(call)
    captured(x)
    return captured(x)  # type: ignore[no-any-return]


def in_torch_compile(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    compiled = torch.compile(lambda x: call(x * 1.0) * 1.0, backend="eager")
    compiled(x)
    return compiled(x)  # type: ignore[no-any-return]


def compiled_by_torch(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    compiled = torch.compile(call, backend="eager")
    compiled(x)
    return compiled(x)  # type: ignore[no-any-return]


AROUND = [
    in_inference_mode,
    with_input_made_in_inference_mode,
    with_gradients_wanted,
    under_autocast,
    profiled,
    traced,
    debugged,
    in_a_thread,
    with_a_global_hook,
    after_torch_compile,
    after_export,
    after_symbolic_trace,
    after_registering_an_abc,
    after_a_patch_of_module,
    in_a_sequence,
    in_a_captured_function,
    captured_itself,
    in_torch_compile,
    compiled_by_torch,
]


@pytest.mark.parametrize("around", AROUND, ids=lambda around: around.__name__)
def test_R1_the_first_call_is_int8_whatever_is_around_it(
    around: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor],
) -> None:
    model, quantized, x = made(Net, 2, 3, 8, 8)
    want = quantized(x)
    with torch.no_grad():
        assert is_close(model(x), want)
    with no_warning():
        for _ in range(3):
            assert torch.equal(around(quantized, x).detach(), want)
        assert torch.equal(quantized(x), want)
    assert quantized.calls["float"] == 0
    assert quantized.calls["int8"] >= 5


def test_R1_inputs_in_half_precision_under_autocast() -> None:
    _, quantized, x = made(Net, 2, 3, 8, 8)
    half = x.bfloat16()
    want = quantized(half.float())
    with no_warning(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(quantized(half), want)


def test_R1_a_captured_function_ends_its_graph_before_the_call() -> None:
    _, quantized, x = made(Net, 2, 3, 8, 8)

    def captured(x: Tensor) -> Tensor:
        return quantized(x * 2) + 1  # type: ignore[no-any-return]

    with pytest.raises(frametap.FullGraphError, match=r"this callable is quantized") as caught:
        frametap.compile(captured, fullgraph=True)(x)
    assert caught.value.reason == "own_executable"
    assert caught.value.position.startswith("captured:")
    compiled = frametap.compile(captured)
    want = quantized(x * 2) + 1
    assert all(torch.equal(compiled(x), want) for _ in range(3))
    assert quantized.calls["float"] == 0


# -- sizes --


@pytest.mark.parametrize(
    ("kind", "calibrated", "others"),
    [
        (Net, (2, 3, 8, 8), [(1, 3, 8, 8), (5, 3, 12, 9), (2, 3, 7, 30)]),
        (Resizing, (2, 3, 8, 8), [(1, 3, 8, 8), (2, 3, 12, 9), (2, 3, 9, 30), (3, 3, 11, 11)]),
        (Attention, (64, 2, 16), [(1, 6, 16), (2, 9, 16), (4, 3, 16), (1, 1, 16), (7, 50, 16)]),
    ],
    ids=["conv", "resizing", "attention"],
)
def test_R1_new_sizes_are_int8_at_once(
    kind: type[nn.Module], calibrated: tuple[int, ...], others: list[tuple[int, ...]]
) -> None:
    model, quantized, _ = made(kind, *calibrated)
    with no_warning():
        for shape in others:
            (x,) = batches(*shape, count=1)
            first = quantized(x)
            with torch.no_grad():
                assert is_close(model(x), first), shape
            assert torch.equal(quantized(x), first), shape
    assert quantized.calls == {"int8": 2 * len(others), "float": 0}
    assert "runs in float" not in quantized.report_text()


def test_scales_and_packed_weights_are_used_again() -> None:
    _, quantized, _x = made(Resizing, 2, 3, 8, 8)

    def constants(segment: Any) -> set[torch.Tensor]:
        return {t for _, t in quantized.quantized_graph(segment).lowered.constants}

    quantized(batches(2, 3, 10, 10, count=1)[0])
    first, *_, last = frametap.segments(quantized)
    assert first != last
    assert constants(first)
    assert constants(first) == constants(last)  # the same tensors


def test_segments_are_never_too_many() -> None:
    model, quantized, _ = made(Resizing, 2, 3, 8, 8)
    with no_warning():
        for size in range(8, 8 + 70):
            x = batches(1, 3, 4, size, count=1)[0]
            with torch.no_grad():
                assert is_close(model(x), quantized(x))
    assert quantized.calls["float"] == 0


# -- effects of a call that is recorded and replayed --


class Counting(Resizing):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.total += 1
        return super().forward(x) + torch.rand(1)


def test_effects_of_a_recorded_call_happen_once() -> None:
    _, quantized, _ = made(Counting, 2, 3, 8, 8)
    inner = quantized._model
    count, total = inner.count, float(inner.total)
    sizes = [10, 11, 11, 10, 8]
    random = []
    for size in sizes:
        torch.manual_seed(3)
        quantized(batches(2, 3, 8, size, count=1)[0])
        random.append(float(torch.rand(1)))
    assert inner.count - count == len(sizes)
    assert float(inner.total) - total == len(sizes)
    assert len(set(random)) == 1


# -- float parts are reported --


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(x) if x.sum() > 0 else self.down(x)


def test_R2_an_arm_that_calibration_did_not_take() -> None:
    torch.manual_seed(0)
    model, x = Branching().eval(), torch.rand(2, 8)
    quantized = frametap.quantize(model, [x], progress=False)
    with pytest.warns(
        frametap.FrametapWarning, match=r"aten.linear in down: calibration did not meet"
    ):
        got = quantized(-x)
    with torch.no_grad():
        assert torch.equal(got, model.down(-x))
    with no_warning():  # once for each cause
        quantized(-x)
        quantized(x)
    assert quantized.calls == {"int8": 1, "float": 2}
    text = quantized.report_text()
    assert "calls: 1 in int8, 2 in float" in text
    assert "2 in float: aten.linear in down: calibration did not meet" in text


def test_R2_strict_raises() -> None:
    torch.manual_seed(0)
    x = torch.rand(2, 8)
    quantized = frametap.quantize(Branching().eval(), [x], strict=True, progress=False)
    quantized(x)
    with pytest.raises(frametap.QuantizationError, match=r"aten.linear in down: calibration"):
        quantized(-x)


def test_R2_a_dispatch_mode() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    _, quantized, x = made(Net, 2, 3, 8, 8)
    with (
        pytest.warns(frametap.FrametapWarning, match="ran in float: plain Python runs"),
        FlopCounterMode(display=False),
    ):
        quantized(x)
    assert quantized.calls["float"] == 1


def test_R2_a_default_device_around_functions_in_python() -> None:
    """F.relu asks for modes: the Python code of the mode is captured, and the model is not."""

    class Relu(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.layer(x))

    _, quantized, x = made(Relu, 2, 8)
    with torch.device("cpu"), pytest.warns(frametap.FrametapWarning, match="a default device"):
        quantized(x)
    with torch.device("cpu"):
        quantized(x)
    assert quantized.calls == {"int8": 0, "float": 2}


class WithTwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)


class UnderACheckpoint(WithTwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        inner = torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False)
        return self.second(x) + inner


class UnderVmap(WithTwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(x) + torch.vmap(self.first)(x)


class InADeviceBlock(WithTwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        with torch.device("cpu"):
            inner = self.first(x)
        return self.second(x) + inner


class InACond(WithTwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.cond(x.sum() > 0, self.first, self.second, (x,)))


@pytest.mark.parametrize("kind", [UnderACheckpoint, UnderVmap, InADeviceBlock, InACond])
def test_R2_a_layer_outside_of_graphs(kind: type[nn.Module]) -> None:
    _, quantized, x = made(kind, 2, 8)
    place = rf"{kind.__name__}.forward"
    with pytest.warns(frametap.FrametapWarning, match=rf"ran aten.linear at {place}:\d+, outside"):
        quantized(x)
    with no_warning():  # once for each cause
        quantized(x)
    assert quantized.calls == {"int8": 0, "float": 2}
    text = quantized.report_text()
    assert re.search(rf"{place}:\d+:\d+: .*none of its ops is in the table", text), text
    assert "2 in float: plain Python ran aten.linear" in text
    torch.manual_seed(0)
    insistent = frametap.quantize(kind().eval(), [x], strict=True, progress=False)
    with pytest.raises(frametap.QuantizationError, match=r"plain Python ran aten.linear at"):
        insistent(x)


class OfOneAxis(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv1d(4, 4, 3), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.device("cpu"):
            inner = self.first(x)
        return self.second(inner)


def test_R2_each_kind_of_layer_is_watched() -> None:
    _, quantized, x = made(OfOneAxis, 2, 4, 8)
    with pytest.warns(frametap.FrametapWarning, match=r"ran aten.conv1d at OfOneAxis.forward:\d+"):
        quantized(x)
    assert quantized.calls == {"int8": 0, "float": 1}


class OnAThread(WithTwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        inner: list[Tensor] = []
        thread = threading.Thread(target=lambda: inner.append(self.second(x)))
        thread.start()
        thread.join()
        return self.first(x) + inner[0]


def test_R2_a_layer_on_another_thread() -> None:
    _, quantized, x = made(OnAThread, 2, 8)
    with pytest.warns(frametap.FrametapWarning, match=r"ran aten.linear at OnAThread.forward"):
        quantized(x)
    assert quantized.calls == {"int8": 0, "float": 1}


def test_R2_a_layer_of_another_model_on_another_thread_is_its_own() -> None:
    _, quantized, x = made(Broken, 4, 8)
    other, stop = nn.Linear(8, 8), threading.Event()

    def work() -> None:
        while not stop.is_set():
            other(x)

    thread = threading.Thread(target=work)
    thread.start()
    with no_warning():
        for _ in range(20):
            quantized(x)
    stop.set()
    thread.join()
    assert quantized.calls == {"int8": 20, "float": 0}


def test_R2_a_break_without_layers_is_no_float() -> None:
    _, quantized, x = made(Broken, 4, 8)
    with no_warning():
        quantized(x)
        quantized(x)
    assert quantized.calls == {"int8": 2, "float": 0}


@pytest.mark.parametrize("around", AROUND, ids=lambda around: around.__name__)
def test_R1_a_model_of_two_graphs_is_int8_or_says_so(
    around: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor],
) -> None:
    model, quantized, x = made(Broken, 4, 8)
    want = quantized(x)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", frametap.FrametapWarning)
        got = around(quantized, x).detach()
    if not any("ran in float" in str(one.message) for one in told):
        assert torch.equal(got, want) or is_close(want, got)
        assert is_close(model(x).detach(), got)
    with no_warning():  # once for each cause
        around(quantized, x)


# -- what would lose int8 is refused --


def exported(quantized: Any, x: Tensor) -> Any:
    return torch.export.export(quantized, (x,))


def exported_strictly(quantized: Any, x: Tensor) -> Any:
    return torch.export.export(quantized, (x,), strict=True)


def exported_within(quantized: Any, x: Tensor) -> Any:
    return torch.export.export(nn.Sequential(quantized), (x,))


def jit_traced(quantized: Any, x: Tensor) -> Any:
    return torch.jit.trace(quantized, (x,))


def fx_traced(quantized: Any, x: Tensor) -> Any:
    return torch.fx.symbolic_trace(quantized)


def made_to_fx(quantized: Any, x: Tensor) -> Any:
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(quantized)(x)


def scripted(quantized: Any, x: Tensor) -> Any:
    return torch.jit.script(quantized)


def fullgraph(quantized: Any, x: Tensor) -> Any:
    return torch.compile(lambda x: quantized(x), fullgraph=True, backend="eager")(x)


@pytest.mark.parametrize(
    "refused",
    [
        exported,
        exported_strictly,
        exported_within,
        jit_traced,
        fx_traced,
        made_to_fx,
        scripted,
        fullgraph,
    ],
    ids=lambda refused: refused.__name__,
)
def test_R3_other_programs_are_refused(refused: Callable[[Any, Tensor], Any]) -> None:
    _, quantized, x = made(Net, 2, 3, 8, 8)
    with pytest.raises(Exception, match=r"quantized model"):
        refused(quantized, x)
    with no_warning():
        quantized(x)
    assert quantized.calls == {"int8": 1, "float": 0}


@pytest.mark.parametrize(
    ("lossy", "words"),
    [
        (lambda q: q.half(), "takes torch.float32, not cpu and torch.float16"),
        (lambda q: q.to(torch.bfloat16), "bfloat16"),
        (lambda q: q.double(), "float64"),
        (lambda q: q.to("meta"), "not meta"),
        (lambda q: nn.Sequential(q).half(), "float16"),
        (lambda q: q.train(), "train the float model"),
        (lambda q: q.state_dict(), "frametap.save"),
        (lambda q: q.load_state_dict({}), "fixed"),
        (copy.copy, "frametap.save"),
        (copy.deepcopy, "frametap.save"),
        (pickle.dumps, "frametap.save"),
        (lambda q: torch.save(q, io.BytesIO()), "frametap.save"),
    ],
)
def test_R3_what_would_lose_int8(lossy: Callable[[Any], Any], words: str) -> None:
    _, quantized, _ = made(Net, 2, 3, 8, 8)
    with pytest.raises(frametap.QuantizationError, match=words):
        lossy(quantized)


def test_R3_what_changes_nothing_works() -> None:
    _, quantized, x = made(Net, 2, 3, 8, 8)
    want = quantized(x)
    for same in (quantized.to("cpu"), quantized.float(), quantized.eval(), quantized.cpu()):
        assert same is quantized
    assert torch.equal(quantized(x), want)


def test_R3_a_module_around_it_is_trained() -> None:
    _, quantized, x = made(Net, 2, 3, 8, 8)
    want = quantized(x)
    outer = nn.Sequential(quantized, nn.Linear(want.shape[-1], 3), nn.Dropout(0.5))
    assert outer.train() is outer
    assert outer[2].training
    assert not quantized.training
    outer(x).sum().backward()
    assert outer[1].weight.grad is not None
    assert torch.equal(quantized(x), want)


def test_R3_gradients_of_torch_func_are_refused() -> None:
    _, quantized, x = made(Net, 2, 3, 8, 8)
    with pytest.raises(frametap.QuantizationError, match="has no gradients: torch.func"):
        torch.func.grad(lambda x: quantized(x).sum())(x)
    with pytest.raises(frametap.QuantizationError, match="has no gradients: torch.func"):
        torch.func.jacrev(quantized)(x)
    with no_warning():
        quantized(x)


def test_R3_the_state_dict_of_a_module_around_it() -> None:
    _, quantized, _ = made(Net, 2, 3, 8, 8)
    with pytest.warns(frametap.FrametapWarning, match="leaves out the quantized model"):
        assert list(nn.Sequential(quantized, nn.Linear(1, 1)).state_dict()) == [
            "1.weight",
            "1.bias",
        ]


# -- residuals that are slices --


class SliceResidual(nn.Module):
    in_place = False

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.b(x)
        if self.in_place:
            y += self.a(x)[:, :4]
        else:
            y = y + self.a(x)[:, :4]
        return self.c(y)


class SliceResidualInPlace(SliceResidual):
    in_place = True


@pytest.mark.parametrize("kind", [SliceResidual, SliceResidualInPlace])
def test_a_residual_that_is_a_slice_is_int8(kind: type[nn.Module]) -> None:
    model, quantized, x = made(kind, 2, 3, 6, 6)
    decisions = [(row["op"], row["decision"]) for row in quantized.report]
    assert [decision for op, decision in decisions if op == "aten.conv2d"] == ["int8"] * 3
    with torch.no_grad():
        assert is_close(model(x), quantized(x))
    assert quantized.sqnr > 30
    assert quantized.calls == {"int8": 1, "float": 0}
