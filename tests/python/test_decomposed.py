"""Quantized graphs of others, as torchao's PT2E makes them. decomposed/X1 to decomposed/X5.

Most programs here call our twins of the ops, which need no torch.ao. The tests that compare with torch's ops are skipped
where torch.ao is missing.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap
from fixtures.instruction_sets import output_of
from fixtures.quantized import HAS_8_BITS, needs_8_bits
from fixtures.subject import needs_capture

pytestmark = needs_capture

OURS = torch.ops.frametap_decomposed
# torch makes the objects of ops when they are first looked up, which ends a graph. Graphs of torch.fx hold the objects.
LOOKED_UP = (
    OURS.choose_qparams.tensor,
    OURS.quantize_per_tensor.tensor,
    OURS.dequantize_per_tensor.tensor,
    OURS.quantize_per_tensor.default,
    OURS.dequantize_per_tensor.default,
    OURS.dequantize_per_channel.default,
)


@pytest.fixture
def theirs() -> Any:
    pytest.importorskip(
        "torch.ao.quantization.fx._decomposed", reason="torch.ao is missing", exc_type=ImportError
    )
    return torch.ops.quantized_decomposed


# -- graphs --

# Without VNNI, layers are int8 if activations have a reduced range. Bytes with a sign are shifted by 128.
FULL = {torch.uint8: (0, 255), torch.int8: (-128, 127)}
LIMITS = FULL if HAS_8_BITS else {torch.uint8: (0, 127), torch.int8: (-128, -1)}


def parameters_of(
    x: Tensor, dtype: torch.dtype, limits: tuple[int, int]
) -> tuple[float, int, int, int, torch.dtype]:
    """Returns affine parameters for the extremes of `x`."""
    low, high = limits
    least, most = min(x.min().item(), 0.0), max(x.max().item(), 0.0)
    scale = (most - least) / (high - low)
    return scale, low - round(least / scale), low, high, dtype


def rounded(x: Tensor, parameters: Any) -> Tensor:
    q = OURS.quantize_per_tensor.default(x, *parameters)
    return OURS.dequantize_per_tensor.default(q, *parameters)


class Quantized(nn.Module):
    """A layer with its weight in bytes: by channel along `axis`, or by tensor."""

    def __init__(self, layer: nn.Module, axis: int | None = 0, zero: int = 0) -> None:
        super().__init__()
        self.layer = layer
        weight = layer.weight.detach()
        others = [d for d in range(weight.dim()) if d != axis]
        amax = weight.abs().amax(others) if axis is not None else weight.abs().amax()
        self.axis, scale = axis, amax / 100
        shape = [-1 if d == axis else 1 for d in range(weight.dim())]
        by = scale.view(shape) if axis is not None else scale
        self.register_buffer("bytes", ((weight / by).round() + zero).to(torch.int8))
        self.register_buffer("scales", scale)
        self.register_buffer("zeros", torch.full(scale.shape, zero, dtype=torch.int64))
        self.number = (scale.item(), zero) if axis is None else None

    def weight(self) -> Tensor:
        if self.number is not None:
            return OURS.dequantize_per_tensor.default(
                self.bytes, *self.number, -127, 127, torch.int8
            )
        return OURS.dequantize_per_channel.default(
            self.bytes, self.scales, self.zeros, self.axis, -127, 127, torch.int8
        )

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Linear):
            return torch.ops.aten.linear.default(x, self.weight(), self.layer.bias)
        return torch.ops.aten.conv2d.default(x, self.weight(), self.layer.bias, [1, 1], [1, 1])


class Static(nn.Module):
    """Convolutions with a residual sum, a pool and a linear layer, all between bytes."""

    def __init__(
        self,
        dtype: torch.dtype,
        axis: int | None = 0,
        limits: Mapping[torch.dtype, tuple[int, int]] = LIMITS,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = Quantized(nn.Conv2d(3, 8, 3, padding=1), axis)
        self.second = Quantized(nn.Conv2d(8, 8, 3, padding=1), axis)
        self.head = Quantized(nn.Linear(8, 5), axis)
        self.dtype, self.limits = dtype, limits[dtype]
        self.parameters_at: dict[int, Any] = {}
        self.eval()
        with torch.no_grad():
            self(torch.randn(4, 3, 8, 8))

    def at(self, place: int, x: Tensor) -> Tensor:
        if place not in self.parameters_at:
            self.parameters_at[place] = parameters_of(x, self.dtype, self.limits)
        return rounded(x, self.parameters_at[place])

    def forward(self, x: Tensor) -> Tensor:
        x = self.at(1, torch.relu(self.first(self.at(0, x))))
        y = self.at(2, self.second(x))
        y = self.at(3, torch.relu_(x + y))
        y = rounded(F.max_pool2d(y, 2), self.parameters_at[3])
        y = rounded(y.mean((2, 3)), self.parameters_at[3])
        return self.at(4, self.head(y))


def close(got: Tensor, want: Tensor, step: float = 0.0) -> None:
    assert (got - want).abs().max().item() <= 1.001 * step + 1e-5 * want.abs().max().item()


def forms(model: Any, op: str) -> list[tuple[str, bool]]:
    return [(row["form"], row["is_int8"]) for row in model.report if row["op"] == op]


def reasons(model: Any, op: str) -> list[str]:
    return [row["reason"] for row in model.report if row["op"] == op]


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("axis", [0, None])
def test_static_graphs_run_in_int8(dtype: torch.dtype, axis: int | None) -> None:
    """X1, X2."""
    model = Static(dtype, axis)
    frozen = frametap.freeze(model)
    step = model.parameters_at[4][0]
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 3, 8, 8)
            close(frozen(x), model(x), step)
    for op in ("aten.conv2d", "aten.linear", "aten.add.Tensor", "aten.max_pool2d", "aten.mean.dim"):
        assert set(forms(frozen, op)) == {("kernel", True)}, op
    assert "in the int8 kernel of aten.conv2d" in reasons(frozen, "aten.relu")[0]


@pytest.mark.parametrize("batch", [1, 7])
def test_other_batch_sizes_run_in_int8(batch: int) -> None:
    model = Static(torch.uint8)
    frozen = frametap.freeze(model, [torch.randn(4, 3, 8, 8)])
    x = torch.randn(batch, 3, 8, 8)
    with torch.no_grad():
        close(frozen(x), model(x), model.parameters_at[4][0])
    assert all(is_int8 for _, is_int8 in forms(frozen, "aten.conv2d"))


class Dynamic(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.uint8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Quantized(nn.Linear(32, 16)), Quantized(nn.Linear(32, 16))
        self.limits = FULL[dtype], dtype
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        (low, high), dtype = self.limits
        scale, zero = OURS.choose_qparams.tensor(x, low, high, 2**-12, dtype)
        q = OURS.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype)
        y = OURS.dequantize_per_tensor.tensor(q, scale, zero, low, high, dtype)
        return self.first(y) * self.second(y)


@needs_8_bits
@pytest.mark.parametrize("dtype", FULL)
def test_parameters_of_each_call(dtype: torch.dtype) -> None:
    """X4."""
    model = Dynamic(dtype)
    frozen = frametap.freeze(model)
    with torch.no_grad():
        for factor in (1.0, 1.0, 100.0, 1e-7):
            x = factor * torch.randn(3, 4, 32)
            close(frozen(x), model(x))
        assert forms(frozen, "aten.linear") == 2 * [("kernel", True)]
        with pytest.raises(RuntimeError, match="min nan should be less than max nan"):
            frozen(x / 0 * 0)


# -- what cannot be adopted --


def one_layer(layer: Quantized, before: Any) -> nn.Module:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(before(x))

    return Model().eval()


U8 = (0.04, 64, 0, 127, torch.uint8)
I16 = (0.001, 0, -32768, 32767, torch.int16)


@pytest.mark.parametrize(
    ("layer", "before", "reason"),
    [
        (lambda: Quantized(nn.Linear(16, 4), zero=3), lambda x: rounded(x, U8), "has zero points"),
        (lambda: Quantized(nn.Linear(16, 4), axis=1), lambda x: rounded(x, U8), "along axis 1"),
        (lambda: Quantized(nn.Linear(16, 4)), lambda x: x, "so only its weight is int8"),
        (lambda: Quantized(nn.Linear(16, 4)), lambda x: rounded(x, I16), "not quantized to 8 bits"),
    ],
    ids=["zero points", "axis", "weight only", "int16"],
)
def test_a_layer_that_is_float_says_why(layer: Any, before: Any, reason: str) -> None:
    """X2, X5."""
    torch.manual_seed(0)
    model = one_layer(layer(), before)
    frozen = frametap.freeze(model)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(3, 16)
            close(frozen(x), model(x))
    assert forms(frozen, "aten.linear") == [("kernel", False)]
    assert reason in reasons(frozen, "aten.linear")[0]


def test_a_weight_that_is_not_only_a_weight_is_float() -> None:
    layer = Quantized(nn.Linear(16, 4))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            w = self.layer.weight()
            return F.linear(rounded(x, U8), w), w.square().sum()

    frozen, x = frametap.freeze(Model().eval()), torch.randn(3, 16)
    with torch.no_grad():
        for got, want in zip(frozen(x), Model()(x), strict=True):
            close(got, want)
    assert "also read by an op that is not a layer" in reasons(frozen, "aten.linear")[0]


def test_a_weight_that_is_handed_out_is_made_at_each_call() -> None:
    layer = Quantized(nn.Linear(16, 4))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            w = self.layer.weight()
            other = self.layer.weight()
            return F.linear(rounded(x, U8), w), w, other.t()

    frozen, x = frametap.freeze(Model().eval()), torch.randn(3, 16)
    with torch.no_grad():
        want = Model()(x)
        for _ in range(3):
            results = frozen(x)
            for got, wanted in zip(results, want, strict=True):
                close(got, wanted)
            results[1].zero_()
            results[2].zero_()


def test_bytes_that_the_program_reads_stay_its_own() -> None:
    layer = Quantized(nn.Linear(16, 4))
    signed = (0.04, -67, -128, -1, torch.int8)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q = OURS.quantize_per_tensor.default(x, *signed)
            y = OURS.dequantize_per_tensor.default(q, *signed)
            return self.layer(y), q, y

    frozen, x = frametap.freeze(Model().eval()), torch.randn(3, 16)
    with torch.no_grad():
        got, want = frozen(x), Model()(x)
    close(got[0], want[0])
    assert got[1].dtype == torch.int8 and got[1].equal(want[1])
    assert got[2].equal(want[2])
    assert forms(frozen, "aten.linear") == [("kernel", True)]


@needs_8_bits  # they may be above the limit that the op names
def test_bytes_of_the_caller() -> None:
    layer = Quantized(nn.Linear(16, 4))
    model = one_layer(layer, lambda q: OURS.dequantize_per_tensor.default(q, *U8))
    frozen, q = frametap.freeze(model), torch.randint(0, 256, (3, 16), dtype=torch.uint8)
    with torch.no_grad():
        close(frozen(q), model(q))
        with pytest.raises(RuntimeError, match="Expecting input to have dtype"):
            frozen(q.to(torch.int8))
    assert forms(frozen, "aten.linear")[0] == ("kernel", True)


def test_a_quantized_model_is_not_quantized_again(theirs: Any) -> None:
    graph = exchanged(Static(torch.uint8), theirs)
    with pytest.raises(frametap.QuantizationError, match="quantized already.*frametap.freeze"):
        frametap.quantize(graph, [torch.randn(1, 3, 8, 8)])


SATURATES = """
import torch, frametap, sys
sys.path[:0] = sys.argv[1:]
from test_decomposed import FULL, Static, Dynamic, reasons, close
x = torch.full((4, 3, 8, 8), 3.0)
model = Static(torch.uint8, limits=FULL)
frozen = frametap.freeze(model)
with torch.no_grad():
    close(frozen(x), model(x), model.parameters_at[4][0])
print({"saturate" in why for why in reasons(frozen, "aten.conv2d")})
model, x = Dynamic(), torch.linspace(0, 3, 96).view(3, 32)
frozen = frametap.freeze(model)
with torch.no_grad():
    close(frozen(x), model(x))
print({"saturate" in why for why in reasons(frozen, "aten.linear")})
"""


def test_no_product_saturates() -> None:
    """X3."""
    here = Path(__file__).parent
    assert output_of(SATURATES, str(here), str(here.parent), ONEDNN_MAX_CPU_ISA="AVX2").split() == [
        "{True}",
        "{True}",
    ]


# -- torch's ops --


def exchanged(model: nn.Module, theirs: Any) -> torch.fx.GraphModule:
    """The graph of the model with torch's ops."""

    class Tracer(torch.fx.Tracer):
        proxy_buffer_attributes = True

    owner = copy.deepcopy(model)
    graph = torch.fx.GraphModule(owner, Tracer().trace(owner))
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace == OURS.name:
            packet = getattr(theirs, node.target._opname)
            node.target = getattr(packet, node.target._overloadname)
    graph.recompile()
    return graph


@pytest.mark.parametrize("dtype", LIMITS)
def test_graphs_of_torch(dtype: torch.dtype, theirs: Any) -> None:
    model = Static(dtype)
    graph = exchanged(model, theirs)
    before = graph.code
    torch._dynamo.reset()
    frozen = frametap.freeze(graph)
    compiled = torch.compile(graph, backend="frametap", options={"freeze": True})
    captured = frametap.compile(graph)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(4, 3, 8, 8)
            want = graph(x)
            assert want.equal(model(x)) and captured(x).equal(want)
            close(frozen(x), want, model.parameters_at[4][0])
            close(compiled(x), want, model.parameters_at[4][0])
    assert graph.code == before
    assert set(forms(frozen, "aten.conv2d")) == {("kernel", True)}
    assert frametap.explain(frozen._frametap).graph_count == 1


def test_weights_that_change_under_torch_compile(theirs: Any) -> None:
    graph = exchanged(Static(torch.uint8), theirs)
    torch._dynamo.reset()
    compiled = torch.compile(graph, backend="frametap", options={"freeze": True})
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        compiled(x), compiled(x)
        graph.get_submodule("head").bytes.neg_()
        close(compiled(x), graph(x), graph_step(graph))


def graph_step(graph: torch.fx.GraphModule) -> float:
    last = [n for n in graph.graph.nodes if "dequantize_per_tensor" in str(n.target)][-1]
    return last.args[1]


def test_an_exported_program(theirs: Any) -> None:
    """Its guard function is part of the graph, and refuses what it refused."""
    model = Static(torch.int8)
    x = torch.randn(4, 3, 8, 8)
    graph = exchanged(model, theirs)
    with torch.no_grad():
        exported = torch.export.export(graph, (x,)).module()
        frozen = frametap.freeze(exported, [x])
        close(frozen(x), model(x), model.parameters_at[4][0])
        with pytest.raises(AssertionError, match="Guard failed"):
            frozen(x[:2])
    assert set(forms(frozen, "aten.linear")) == {("kernel", True)}


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_ops_give_the_values_of_torch(theirs: Any, source: torch.dtype, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    for factor in (1e-3, 1.0, 1e4):
        x = (factor * torch.randn(5, 6, 7)).to(source)
        scales, zeros = torch.rand(6) + 0.1, torch.arange(6)
        for ops in (OURS, theirs):
            scale, zero = ops.choose_qparams.tensor(x, low, high, 2**-12, dtype)
            q = ops.quantize_per_tensor.default(x, 0.37, 3, low, high, dtype)
            by = ops.quantize_per_tensor.tensor(x, scale, zero, low, high, dtype)
            limits = torch.tensor(low), torch.tensor(high)
            by2 = ops.quantize_per_tensor.tensor2(x, scale, zero, *limits, dtype)
            channels = ops.quantize_per_channel.default(x, scales, zeros, 1, low, high, dtype)
            made = [
                scale,
                zero,
                q,
                by,
                by2,
                channels,
                ops.dequantize_per_tensor.default(q, 0.37, 3, low, high, dtype),
                ops.dequantize_per_tensor.default(q, 0.37, 3, low, high, dtype, out_dtype=source),
                ops.dequantize_per_tensor.tensor(by, scale, zero, low, high, dtype),
                ops.dequantize_per_tensor.tensor2(by, scale, zero, *limits, dtype),
                ops.dequantize_per_channel.default(channels, scales, zeros, 1, low, high, dtype),
                ops.dequantize_per_channel.default(channels, scales, None, -2, low, high, dtype),
            ]
            if ops is OURS:
                ours = made
        for got, want in zip(ours, made, strict=True):
            assert got.dtype == want.dtype and got.equal(want) and got.stride() == want.stride()


def test_frozen_modules_of_fx_are_saved(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(3, 8)
    frozen = frametap.freeze(torch.fx.symbolic_trace(model), [x])
    frametap.save(frozen, tmp_path / "model")
    loaded = frametap.load(tmp_path / "model")
    for rows in (3, 5):
        x = torch.randn(rows, 8)
        assert loaded(x).equal(frozen(x))
        close(loaded(x), model(x))


def test_frozen_modules_of_fx_raise_as_before() -> None:
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 16)).eval())
    frozen = frametap.freeze(traced, [torch.randn(3, 8)])
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        frozen(torch.randn(3, 7))


def test_quantized_graphs_of_fx_are_saved(tmp_path: Path) -> None:
    """As of PT2E after `torch.fx`: bytes are read from buffers, and ops are objects of the graph."""
    model = Quantized(nn.Linear(8, 4))

    class Program(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(rounded(x, (0.05, 60, 0, 127, torch.uint8)))

    x = torch.randn(3, 8)
    program = Program().eval()
    tracer = torch.fx.Tracer()
    tracer.proxy_buffer_attributes = True
    traced = torch.fx.GraphModule(program, tracer.trace(program))
    frozen = frametap.freeze(traced, [x])
    assert forms(frozen, "aten.linear") == [("kernel", True)]
    frametap.save(frozen, tmp_path / "model")
    loaded = frametap.load(tmp_path / "model")
    assert loaded(x).equal(frozen(x))
