"""``tools/dev demo``: a small CNN, captured, explained, quantized to int8, saved and loaded.

Everything that is printed is real. Except for the lines that begin with ``time``, it is the same at
every run. Each output is compared with plain PyTorch; the exit code is 1 if any comparison fails.
"""

from __future__ import annotations

import copy
import linecache
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import frametap

BATCH = 60
EPOCHS = 12
TESTED = 360  # of 1797 images

# -- the user's program: nothing in it knows frametap --


class ConvUnit(nn.Module):
    """Convolution, batch norm, relu."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


class DigitsNet(nn.Module):
    """Classifies digits of 8 x 8 pixels, in plain Python style."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = ConvUnit(1, width)
        self.left = ConvUnit(width, width)
        self.right = ConvUnit(width, width)
        self.pool = nn.MaxPool2d(2)
        self.deep = ConvUnit(width, 2 * width)
        self.head = nn.Linear(2 * width * 4, 10)
        self.calls = 0

    def forward(self, images: Tensor, **options: Any) -> dict[str, Tensor]:
        self.calls += 1
        if images.max() > 1:  # pixels as the scanner gives them, 0 to 16
            images = images / 16
        x = self.stem(images)
        x = F.relu(x + self.right(self.left(x)))
        x = self.pool(self.deep(self.pool(x)))
        x = x.flatten(1)
        if self.training:
            x = F.dropout(x, 0.2)
        logits = self.head(x)
        if "temperature" in options:
            logits = logits / options["temperature"]
        result = {"logits": logits}
        if images.shape[0] > 1:
            result["mean"] = logits.mean(0)
        return result


# -- the demo --


def main() -> int:
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        print(
            "the demo needs scikit-learn for its images: pip install scikit-learn", file=sys.stderr
        )
        return 1
    began = time.perf_counter()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    pixels, labels = pixels[order], labels[order]

    demo = Demo(pixels, labels)
    heading("0. A model")
    demo.train()
    heading("1. Captured on its first call")
    demo.capture()
    heading("2. Called in other ways")
    demo.call_in_other_ways()
    heading("3. Quantized to int8")
    demo.quantize()
    heading("4. Saved, and loaded in a fresh process")
    demo.save_and_load()
    heading("Result")
    print(f"{demo.compared} comparisons, {len(demo.failed)} failed")
    for failure in demo.failed:
        print(f"  FAILED  {failure}")
    print(f"time  {time.perf_counter() - began:.0f} s in all")
    return 1 if demo.failed else 0


class Demo:
    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.train_pixels, self.test_pixels = pixels[TESTED:], pixels[:TESTED]
        self.train_labels, self.test_labels = labels[TESTED:], labels[:TESTED]
        self.net = DigitsNet()
        self.plain = self.net  # a copy from step 1 on: it is never captured
        self.compared = 0
        self.failed: list[str] = []
        self.seen = Progress()

    # -- steps --

    def train(self) -> None:
        net, count = self.net, len(self.train_labels)
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        for epoch in range(EPOCHS):
            for some in torch.randperm(count).split(BATCH):
                loss = F.cross_entropy(
                    net(self.train_pixels[some])["logits"], self.train_labels[some]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            progress(f"training: epoch {epoch + 1} of {EPOCHS}, loss {loss.item():.3f}")
        progress("")
        net.eval()
        net.calls = 0
        print(
            f"DigitsNet, trained by plain PyTorch on {count} of scikit-learn's handwritten digits for "
            f"{EPOCHS} epochs.\nAccuracy on the other {TESTED}: {self.accuracy(net):.2f} %"
        )
        self.plain = copy.deepcopy(net)
        net.calls = self.plain.calls = 0

    def capture(self) -> None:
        print(">>> captured = frametap.compile(net)")
        self.captured = frametap.compile(self.net)
        self.call("8 images", self.test_pixels[:8])
        for segment in frametap.segments(self.captured):
            print()
            print(without_guards(segment.text()))
            self.print_guards(segment.name)
        print()
        print(frametap.explain(self.captured))

    def call_in_other_ways(self) -> None:
        raw, scaled = self.test_pixels, self.test_pixels / 16
        self.call("the same 8 images", raw[:8])
        self.call("5 images", raw[:5])
        self.call("11 images", raw[:11])
        self.call("1 image: no mean", raw[:1])
        self.call("another image", raw[1:2])
        self.call("8 images scaled before: the other arm of the branch", scaled[:8])
        self.call("8 other ones", scaled[8:16])
        self.call("a temperature", raw[:8], temperature=2.0)
        self.call("another temperature", raw[:8], temperature=0.5)
        self.net.train()
        self.plain.train()
        print("\n>>> net.train()")
        self.call("8 images, with gradients", raw[:8])
        self.call("8 other ones", raw[8:16])
        self.net.eval()
        self.plain.eval()
        print("\n>>> net.eval()")
        self.call("back again: nothing is recorded", raw[:8])
        print(f"\nnet.calls is {self.net.calls}, of the plain model {self.plain.calls}")
        self.compare("counter", torch.tensor(self.net.calls), torch.tensor(self.plain.calls))
        for (name, mine), other in zip(
            self.net.state_dict().items(), self.plain.state_dict().values(), strict=True
        ):
            self.compare(name, mine, other, quiet=True)
        print("parameters and batch-norm statistics of both models: compared, too")

    def quantize(self) -> None:
        print(">>> quantized = frametap.quantize(net, batches)")
        batches = list(self.train_pixels[: 5 * BATCH].split(BATCH))
        data = [*batches, *(batch / 16 for batch in batches)]
        data += [self.train_pixels[:1], self.train_pixels[:1] / 16]
        self.quantized = frametap.quantize(self.net, data)
        print(self.quantized.report_text())
        unexplained = [
            row["op"]
            for row in self.quantized.report
            if row["decision"] not in ("int8", "follows", "folded") and not row["reason"]
        ]
        self.expect("every op is int8 or explained", not unexplained)
        sqnr = self.quantized.sqnr
        print(f"\nsignal to noise of the outputs: {sqnr:.1f} dB")
        self.expect("at least 25 dB", sqnr >= 25)
        with torch.no_grad():
            plain, int8 = self.accuracy(self.plain), self.accuracy(self.quantized)
        print(f"accuracy: float {plain:.2f} %, int8 {int8:.2f} %")
        self.expect("accuracy within 0.5 points", abs(plain - int8) <= 0.5)
        met = len(frametap.segments(self.quantized))
        self.print_times()
        self.expect("nothing was recorded meanwhile", len(frametap.segments(self.quantized)) == met)

    def print_times(self) -> None:
        runs: dict[str, Callable[[Tensor], Any]] = {
            "plain PyTorch": self.plain,
            "captured": self.captured,
            "int8": self.quantized,
        }
        print("\nMedians of interleaved rounds, one thread, plain PyTorch = 1:")
        for size in (1, BATCH):
            images = self.test_pixels[:size]
            seconds = race({name: (run, images) for name, run in runs.items()})
            plain = seconds["plain PyTorch"]
            words = ", ".join(
                f"{name} {value * 1e3:.3f} ms ({value / plain:.2f})"
                for name, value in seconds.items()
            )
            print(f"time  {size} image{'s' * (size > 1)}: {words}")

    def save_and_load(self) -> None:
        images = [self.test_pixels[:BATCH], self.test_pixels[:BATCH] / 16, self.test_pixels[:1]]
        ways = (f"{BATCH} images", "scaled ones", "1 image")
        with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
            for name, captured, other in (
                ("captured", self.captured, self.plain),
                ("quantized", self.quantized, self.quantized),
            ):
                for batch in images:
                    captured(batch)  # each way once, so that the file knows it
                file = Path(folder, f"digits_{name}.frametap")
                print(f">>> frametap.save({name}, {file.name!r})")
                frametap.save(captured, file)
                print(
                    f"    frametap.load({file.name!r}) in a fresh process, without the model's source"
                )
                want = [other(batch) for batch in images]
                got = run_elsewhere(file, images, folder)
                reference = "plain PyTorch" if other is self.plain else "the int8 model here"
                for way, one, result in zip(ways, want, got, strict=True):
                    self.compare(way, result, one, reference)

    # -- parts of steps --

    def call(self, what: str, images: Tensor, **options: Any) -> None:
        """Calls the captured and the plain model, reports the events, compares."""
        training = self.net.training
        print(f"\ncaptured({what})")
        outputs, gradients = [], []
        for model in (self.captured, self.plain):
            torch.manual_seed(1)
            with torch.set_grad_enabled(training):
                output = model(images, **options)
                if training:
                    loss = output["logits"].square().mean()
                    gradients.append(torch.autograd.grad(loss, list(model.parameters())))
                outputs.append(output)
        self.seen.tell(frametap.explain(self.captured))
        self.compare("outputs", *outputs)
        if training:
            self.compare("gradients", *(dict(enumerate(some)) for some in gradients))

    def print_guards(self, name: str) -> None:
        """The guards by the line of the user's source that made them."""
        lines: dict[int, list[str]] = {}
        deeper = 0
        for guard in frametap.guards(self.captured):
            if guard.segment != name:
                continue
            if guard.file == __file__:
                lines.setdefault(guard.line, []).append(f"{guard.source} : {guard.predicate}")
            else:
                deeper += 1
        print(f"guards of {name}, by the line that made them")
        for line, guards in sorted(lines.items()):
            print(f"  {line:4d}  {linecache.getline(__file__, line).strip()}")
            for guard in guards[:3]:
                print(f"          {guard}")
            if len(guards) > 3:
                print(f"          and {len(guards) - 3} more of this line")
        print(f"  and {deeper} in torch.nn: types, hooks, settings and tensors of the layers")

    def accuracy(self, model: Callable[[Tensor], dict[str, Tensor]]) -> float:
        with torch.no_grad():
            right = sum(
                int((model(images)["logits"].argmax(1) == labels).sum())
                for images, labels in zip(
                    self.test_pixels.split(BATCH), self.test_labels.split(BATCH), strict=True
                )
            )
        return 100 * right / TESTED

    def compare(
        self,
        what: str,
        got: Any,
        want: Any,
        reference: str = "plain PyTorch",
        *,
        quiet: bool = False,
    ) -> None:
        """Equal bit by bit, or a failure."""
        self.compared += 1
        difference = distance(got, want)
        if difference != 0:
            self.failed.append(f"{what}: max difference {difference}")
        if not quiet:
            verdict = "equal" if difference == 0 else "NOT EQUAL"
            print(f"  {what}: {verdict}, max difference to {reference} {difference:g}")

    def expect(self, what: str, holds: bool) -> None:
        self.compared += 1
        print(f"  {what}: {'yes' if holds else 'NO'}")
        if not holds:
            self.failed.append(what)


class Progress:
    """The additions to an explanation since the last one."""

    def __init__(self) -> None:
        self.hits = self.misses = self.graphs = 0

    def tell(self, now: frametap.Explanation) -> None:
        for miss in now.miss_texts[self.misses :]:
            print(f"  miss   {miss.segment} at {miss.source}: {miss.why}")
        for segment in now.segments[self.graphs :]:
            print(f"  new    {segment.name}, {len(segment.graph.nodes)} ops, from {segment.entry}")
        if now.hits > self.hits:
            print(f"  hits   {now.hits - self.hits}")
        self.hits, self.misses, self.graphs = now.hits, len(now.miss_texts), len(now.segments)


RUN_ELSEWHERE = """
import sys, torch, frametap
torch.set_num_threads(1)
program = frametap.load(sys.argv[1])
outputs = [program(images) for images in torch.load(sys.argv[2])]
assert "demo" not in sys.modules
torch.save(outputs, sys.argv[3])
"""


def run_elsewhere(file: Path, images: list[Tensor], folder: str) -> list[dict[str, Tensor]]:
    """The program's outputs in a new process, which never sees the model's source."""
    given, made = Path(folder, "images.pt"), Path(folder, "outputs.pt")
    torch.save(images, given)
    package = str(Path(frametap.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    subprocess.run(
        [sys.executable, "-c", RUN_ELSEWHERE, str(file), str(given), str(made)],
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return torch.load(made)


def race(contestants: dict[str, tuple[Callable[[Tensor], Any], Tensor]]) -> dict[str, float]:
    """Seconds a call, the median of interleaved rounds."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    with torch.no_grad():
        for run, images in contestants.values():
            for _ in range(5):
                run(images)
        for _ in range(40):
            for name, (run, images) in contestants.items():
                start = time.perf_counter()
                for _ in range(5):
                    run(images)
                taken[name].append((time.perf_counter() - start) / 5)
    return {name: statistics.median(some) for name, some in taken.items()}


def distance(got: Any, want: Any) -> float:
    """The largest difference of two outputs; infinite if they differ in kind."""
    if isinstance(want, dict):
        if not isinstance(got, dict) or list(got) != list(want):
            return float("inf")
        return max((distance(got[key], want[key]) for key in want), default=0.0)
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("inf")
    return (
        float((got.detach().double() - want.detach().double()).abs().max()) if want.numel() else 0.0
    )


def without_guards(text: str) -> str:
    """A segment's text with its guards left out."""
    lines: list[str] = []
    inside = False
    for line in text.rstrip().splitlines():
        inside = inside or line == "  guard {"
        if not inside:
            lines.append(line)
        inside = inside and line != "  }"
    return "\n".join(lines)


def heading(text: str) -> None:
    print(f"\n{text}\n{'=' * len(text)}\n", flush=True)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
