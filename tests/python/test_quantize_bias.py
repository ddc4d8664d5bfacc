"""Bias correction. bias_correction/C1, C2 and C3, statistics/S4, rounding_errors/R1."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import frametap
from fixtures.quantized import graphs_of
from fixtures.subject import needs_capture

pytestmark = needs_capture


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(48, 16))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


# (layer, sizes of its input, dimension of the channels of its result)
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "linear": (lambda: nn.Linear(48, 16), (64, 48), -1),
    "linear, no bias": (lambda: nn.Linear(48, 16, bias=False), (8, 9, 48), -1),
    "product": (Product, (64, 48), -1),
    "conv1d": (lambda: nn.Conv1d(8, 16, 3), (4, 8, 40), 1),
    "conv2d": (lambda: nn.Conv2d(8, 16, 3, bias=False), (2, 8, 20, 20), 1),
    "conv2d, groups": (lambda: nn.Conv2d(16, 32, 3, stride=2, groups=4), (2, 16, 33, 33), 1),
    "conv2d, depthwise": (lambda: nn.Conv2d(16, 16, 5, groups=16), (2, 16, 20, 20), 1),
    "conv2d, border": (lambda: nn.Conv2d(8, 16, 3, padding=1), (2, 8, 48, 48), 1),
    "conv3d": (lambda: nn.Conv3d(4, 8, 3, dilation=2), (2, 4, 9, 9, 9), 1),
    "transposed": (lambda: nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1), (2, 8, 40, 40), 1),
    "transposed, groups": (
        lambda: nn.ConvTranspose2d(8, 16, 3, stride=1, groups=2, bias=False),
        (2, 8, 60, 60),
        1,
    ),
    "transposed 1d": (lambda: nn.ConvTranspose1d(8, 16, 6, stride=3, padding=2), (4, 8, 200), 1),
}


def shift(got: Tensor, want: Tensor, channels: int) -> float:
    """Returns the distance between the means of the channels and the means that the float layer gives."""
    error = (got - want).movedim(channels, 0).flatten(1).mean(1)
    return float(error.norm())


@pytest.mark.parametrize("name", LAYERS)
def test_means_are_those_of_the_float_layer(name: str) -> None:
    torch.manual_seed(4)
    build, sizes, channels = LAYERS[name]
    layer = build().eval()
    # The means of the channels differ, as after a batch norm and a relu.
    loud = [1] * len(sizes)
    loud[1 if channels == 1 else -1] = -1
    scale = torch.rand(sizes[1 if channels == 1 else -1]).view(loud) + 0.5
    data = [torch.rand(sizes) * scale for _ in range(6)]
    x = torch.rand(sizes) * scale
    found = {}
    for is_corrected in (False, True):
        quantized = frametap.quantize(layer, data, bias_correction=is_corrected, progress=False)
        assert "int8" in [row["decision"] for row in graphs_of(quantized).report]
        with torch.no_grad():
            found[is_corrected] = shift(quantized(x), layer(x), channels)
    assert found[True] < 0.4 * found[False]


def test_the_error_of_deep_models_does_not_add_up() -> None:
    torch.manual_seed(5)
    model = nn.Sequential(
        *(part for _ in range(8) for part in (nn.Linear(64, 64), nn.ReLU()))
    ).eval()
    data = [torch.randn(64, 64) for _ in range(4)]
    x = torch.randn(64, 64)
    noise = {}
    for is_corrected in (False, True):
        quantized = frametap.quantize(model, data, bias_correction=is_corrected, progress=False)
        with torch.no_grad():
            noise[is_corrected] = float((quantized(x) - model(x)).square().mean())
    assert noise[True] < 0.7 * noise[False]


class Nearly(nn.Module):
    """Values that depend little on the input, as in deep nets, and layers whose weights are exact in int8."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        make = nn.Linear if kind == "linear" else lambda i, o: nn.Conv2d(i, o, 1)
        self.first, self.second, self.third = make(4, 24), make(24, 24), make(24, 24)
        with torch.no_grad():
            self.first.weight.mul_(0.0002)
            for layer in (self.second, self.third):
                layer.weight.copy_(torch.randint(-127, 128, layer.weight.shape) / 1000)
                layer.weight[:, 0] = 0.127

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        if self.kind == "residual":
            return self.third(torch.relu(y + self.second(y)))
        return self.second(y)


@pytest.mark.parametrize("kind", ["linear", "conv", "residual"])
def test_c2_rounding_inputs_is_taken_back(kind: str) -> None:
    torch.manual_seed(9)
    model = Nearly(kind).eval()
    sizes = (64, 4) if kind == "linear" else (2, 4, 12, 12)
    data = [torch.randn(sizes) for _ in range(4)]
    x = torch.randn(sizes)
    found = {}
    for is_corrected in (False, True):
        quantized = frametap.quantize(
            model, data, bias_correction=is_corrected, activation_bits=7, progress=False
        )
        with torch.no_grad():
            found[is_corrected] = shift(quantized(x), model(x), 1 if len(sizes) > 2 else -1)
    assert found[True] < 0.3 * found[False]


def test_k2_recordings_of_other_sizes_share_corrected_biases() -> None:
    torch.manual_seed(10)
    model = Nearly("linear").eval()
    quantized = frametap.quantize(
        model, [torch.randn(n, 4) for n in (64, 33, 64, 17)], progress=False
    )
    x = torch.randn(64, 4)
    with torch.no_grad():
        whole = quantized(x).clone()
        for n in (1, 5, 33):
            torch.testing.assert_close(quantized(x[:n]), whole[:n], atol=1e-6, rtol=0)


@pytest.mark.parametrize("rows", [1, 4])
def test_means_by_chance_are_left_alone(rows: int) -> None:
    torch.manual_seed(6)
    layer = nn.Linear(64, 16).eval()
    data = torch.randn(rows, 64)
    data = data - data.mean(0) if rows > 1 else data
    x = torch.randn(500, 64)
    plain, corrected = (
        frametap.quantize(layer, [data], bias_correction=is_corrected, progress=False)(x)
        for is_corrected in (False, True)
    )
    with torch.no_grad():
        want = layer(x)
    if rows == 1:
        assert torch.equal(plain, corrected)
    assert (corrected - want).square().mean() < 1.05 * (plain - want).square().mean()


def test_layers_after_dropout_are_corrected() -> None:
    torch.manual_seed(11)
    layer = nn.Linear(48, 16)
    model = nn.Sequential(nn.Identity(), nn.ReLU(), nn.Dropout(), layer).eval()
    data = [torch.rand(64, 48) for _ in range(4)]
    x = torch.rand(64, 48)
    plain, corrected = (
        frametap.quantize(model, data, bias_correction=flag, progress=False)
        for flag in (False, True)
    )
    with torch.no_grad():
        assert shift(corrected(x), model(x), -1) < 0.4 * shift(plain(x), model(x), -1)


def test_one_bias_serves_all_sizes() -> None:
    torch.manual_seed(7)
    layer = nn.Linear(64, 16).eval()
    quantized = frametap.quantize(layer, [torch.rand(8, 64)], progress=False)
    x = torch.rand(8, 64)
    with torch.no_grad():
        whole = quantized(x).clone()
        torch.testing.assert_close(quantized(x[:3]), whole[:3], atol=1e-6, rtol=0)


def test_layers_that_share_a_weight_have_biases_of_their_own() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), self.layer(1 - x)

    torch.manual_seed(8)
    model = Twice().eval()
    data = [torch.rand(64, 32) ** 4 for _ in range(4)]
    x = torch.rand(64, 32) ** 4
    plain, corrected = (
        frametap.quantize(model, data, bias_correction=flag, progress=False)
        for flag in (False, True)
    )
    with torch.no_grad():
        for want, before, after in zip(model(x), plain(x), corrected(x), strict=True):
            assert shift(after, want, -1) < shift(before, want, -1)


def test_other_values_are_refused() -> None:
    with pytest.raises(frametap.QuantizationError, match="bias_correction must be True or False"):
        frametap.quantize(nn.Linear(2, 2), [torch.rand(2, 2)], bias_correction="yes")  # type: ignore[arg-type]
