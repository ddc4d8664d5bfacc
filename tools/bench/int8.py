"""The cost of a call in int8: eager in float, `frametap.quantize` (static and dynamic), `frametap.freeze` in float32 and
bfloat16, and torch.compile in float (inductor, where there is a C++ compiler). The second table has the errors of int8
and bfloat16: the signal-to-noise ratio (SQNR) on an input that is not part of the calibration.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import timing
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fixtures.models import ResNet18
from fixtures.subject import EAGER, frametap


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


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2)


def linears(count: int, width: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for _ in range(count):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


@dataclass(frozen=True)
class Row:
    name: str
    build: Callable[[], nn.Module]
    sizes: tuple[int, ...]


ROWS = [
    Row("resnet18, 224x224, batch 1", ResNet18, (1, 3, 224, 224)),
    Row("mobilenet v2, 224x224, batch 1", mobilenet_v2, (1, 3, 224, 224)),
    Row("squeeze and excite, 64 at 56x56", lambda: SqueezeAndExcite(64), (1, 64, 56, 56)),
    Row("encoder, 2 x 768, 128 tokens", encoder, (1, 128, 768)),
    Row("mlp, 4 x 1024, batch 1", lambda: linears(4, 1024), (1, 1024)),
    Row("mlp, 4 x 1024, batch 64", lambda: linears(4, 1024), (64, 1024)),
    Row("linear, 16 x 16, batch 1", lambda: linears(1, 16), (1, 16)),
    Row("mlp, 10 x 16, batch 1", lambda: linears(10, 16), (1, 16)),
]


def trained(model: nn.Module) -> nn.Module:
    """In eval mode. Batch norms have other statistics than a new layer: the error would belong to
    another net.
    """
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    return model.eval()


def sqnr(want: Tensor, got: Tensor) -> float:
    return (10 * torch.log10(want.square().mean() / (want - got).square().mean())).item()


def main() -> int:
    arguments = timing.arguments("Calls in int8 and of frozen models.", rounds=60)
    dynamo = not arguments.no_dynamo and any(map(shutil.which, ("c++", "g++", "clang++")))
    times = timing.Table("Later call, int8 and frozen beside float (no_grad)")
    errors = timing.Numbers(
        "SQNR", dict.fromkeys(("int8", "dynamic int8", "bfloat16"), "{:.1f} dB".format)
    )
    for row in ROWS:
        if not timing.wanted(arguments, row.name):
            continue
        with torch.no_grad(), warnings.catch_warnings():
            torch.manual_seed(0)
            model = trained(row.build())
            x = torch.randn(row.sizes)
            calls = {"eager": model}
            if not EAGER:
                calls["frametap int8"] = frametap.quantize(
                    model, [torch.randn(row.sizes) for _ in range(8)], progress=False
                )
                calls["frametap dynamic"] = frametap.quantize(
                    model, [x], scheme="dynamic", progress=False
                )
                for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
                    calls[f"frametap {name}"] = frametap.freeze(model, [x], dtype=dtype)
                want = model(x)
                errors.add(
                    row.name,
                    sqnr(want, calls["frametap int8"](x)),
                    sqnr(want, calls["frametap dynamic"](x)),
                    sqnr(want, calls["frametap bfloat16"](x)),
                )
            if dynamo:
                torch._dynamo.reset()
                warnings.simplefilter("ignore")  # of inductor, about the processor
                calls['torch.compile("inductor")'] = torch.compile(model, backend="inductor")
            contestants = timing.warmed(
                {name: lambda f=f, x=x: f(x) for name, f in calls.items()},
                timing.repeats_for(lambda model=model, x=x: model(x)),
            )
            timing.race(contestants, arguments.rounds)
        times.add(row.name, contestants)
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: there is no int8\n")
    return timing.report([times, errors], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
