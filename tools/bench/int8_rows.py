"""The models of `int8.py`, with random weights, each with a maker of inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import timing  # noqa: F401 - finds the fixtures
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fixtures.models import ConvUnit, ResNet18, UNet, conv3x3


class Bottleneck(nn.Module):
    """The block of ResNet-50: 1x1, 3x3, 1x1."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * planes
        self.body = nn.Sequential(
            nn.Conv2d(inputs, planes, 1, bias=False),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            conv3x3(planes, planes, stride),
            nn.BatchNorm2d(planes),
            nn.ReLU(inplace=True),
            nn.Conv2d(planes, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.downsample = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.downsample(x))


def resnet50() -> nn.Sequential:
    layers = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for planes, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(inputs, planes, stride if i == 0 else 1))
            inputs = 4 * planes
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers = [] if expansion == 1 else _conv(inputs, hidden, 1)
        layers += _conv(hidden, hidden, 3, stride, groups=hidden)
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.is_residual else self.conv(x)


def _conv(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    ]


def mobilenet_v2() -> nn.Sequential:
    """The layers of MobileNetV2 at width 1.0."""
    layers = _conv(3, 32, 3, 2)
    inputs = 32
    for expansion, outputs, count, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for i in range(count):
            layers.append(InvertedResidual(inputs, outputs, stride if i == 0 else 1, expansion))
            inputs = outputs
    layers += _conv(320, 1280, 1)
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1280, 1000)
    )


class SqueezeAndExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.down, self.up = (
            nn.Conv2d(channels, channels // 4, 1),
            nn.Conv2d(channels // 4, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.first(x))
        gate = self.up(F.silu(self.down(F.adaptive_avg_pool2d(y, 1))))
        return self.last(y * torch.sigmoid(gate))


def unet(upsampling: bool) -> UNet:
    """Three levels; between them a transposed convolution, or an interpolation and a convolution."""
    model = UNet(widths=(32, 64, 128))
    if upsampling:
        for i in range(0, len(model.ups), 2):
            width = model.ups[i].out_channels
            model.ups[i] = nn.Sequential(
                nn.Upsample(scale_factor=2, mode="bilinear"), conv3x3(2 * width, width)
            )
    return model


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2)


class LastHidden(nn.Module):
    """A model of `transformers` of which only the hidden states matter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).last_hidden_state


_VOCABULARY = 1000


def bert(layers: int) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig(vocab_size=_VOCABULARY, num_hidden_layers=layers)
    return LastHidden(BertModel(config, add_pooling_layer=False))


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2Model

    return LastHidden(GPT2Model(GPT2Config(vocab_size=_VOCABULARY, n_layer=2, use_cache=False)))


def vit() -> nn.Module:
    """ViT-Ti/16."""
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=192, num_attention_heads=3, intermediate_size=768)
    return LastHidden(ViTModel(config, add_pooling_layer=False))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(256, 256, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def linears(count: int, width: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for _ in range(count):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def digits() -> nn.Sequential:
    return nn.Sequential(
        ConvUnit(1, 16),
        ConvUnit(16, 16),
        ConvUnit(16, 16),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def _floats(batch: int, sizes: tuple[int, ...]) -> Tensor:
    return torch.randn(batch, *sizes)


def _tokens(batch: int, sizes: tuple[int, ...]) -> Tensor:
    return torch.randint(0, _VOCABULARY, (batch, *sizes))


@dataclass(frozen=True)
class Row:
    name: str
    build: Callable[[], nn.Module]
    sizes: tuple[int, ...]  # of one sample
    batch: int = 1
    draw: Callable[[int, tuple[int, ...]], Tensor] = _floats
    transformer: bool = False

    def model(self) -> nn.Module:
        """In eval mode. Batch norms have other statistics than a new layer: the error would belong to
        another net.
        """
        model = self.build()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.uniform_(-0.1, 0.1)
                module.running_var.uniform_(0.5, 1.5)
        return model.eval()

    def input(self, batch: int | None) -> Tensor:
        return self.draw(batch or self.batch, self.sizes)


ROWS = [
    Row("resnet18, 224x224", ResNet18, (3, 224, 224)),
    Row("resnet50, 224x224", resnet50, (3, 224, 224)),
    Row("mobilenet v2, 224x224", mobilenet_v2, (3, 224, 224)),
    Row("u-net, transposed, 128x128", lambda: unet(upsampling=False), (3, 128, 128)),
    Row("u-net, upsampling, 128x128", lambda: unet(upsampling=True), (3, 128, 128)),
    Row("squeeze and excite, 64 at 56x56", lambda: SqueezeAndExcite(64), (64, 56, 56)),
    Row("encoder, 2 x 768, 128 tokens", encoder, (128, 768), transformer=True),
    Row("bert, 2 layers, 128 tokens", lambda: bert(2), (128,), draw=_tokens, transformer=True),
    Row("bert, 12 layers, 128 tokens", lambda: bert(12), (128,), draw=_tokens, transformer=True),
    Row("vit, tiny, 224x224", vit, (3, 224, 224), transformer=True),
    Row("gpt2, 2 x 768, 128 tokens", gpt2, (128,), draw=_tokens, transformer=True),
    Row("lstm, 2 x 256, 64 steps", Lstm, (64, 256)),
    Row("mlp, 4 x 1024", lambda: linears(4, 1024), (1024,)),
    Row("mlp, 4 x 1024, batch 64", lambda: linears(4, 1024), (1024,), batch=64),
    Row("digits, 8x8", digits, (1, 8, 8)),
    Row("linear, 16 x 16", lambda: linears(1, 16), (16,)),
    Row("mlp, 10 x 16", lambda: linears(10, 16), (16,)),
]
