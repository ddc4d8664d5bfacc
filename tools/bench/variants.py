"""Calls that differ from each other: how many of them are recorded, and what all of them take.

Each row is a fresh function that is called so many times, every time with another of the thing named. A new batch size, a
counter and a fresh lambda need no second recording; a string that the function decides on needs one each. A call that is
left to plain Python from then on is counted as eager.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import timing
import torch
from torch import Tensor, nn

from fixtures.models import Block
from fixtures.subject import EAGER, frametap

X = torch.ones(4, 16)


@dataclass
class Seen:
    """The work of a tracer for the calls: graphs made, and calls that ran any."""

    recordings: int = 0
    in_graphs: int = 0


@dataclass
class Variant:
    name: str
    make: Callable[[], Callable[..., Any]]
    calls: Callable[[], list[tuple[Any, ...]]]
    seen: dict[str, Seen] = field(default_factory=dict)


def _sizes() -> Callable[[Tensor], Tensor]:
    def by_batch(x: Tensor) -> Tensor:
        return (x * 2).relu() + 1

    return by_batch


class Counter:
    def __init__(self) -> None:
        self.step = 0


def _counter() -> Callable[[Counter, Tensor], Tensor]:
    def count(counter: Counter, x: Tensor) -> Tensor:
        counter.step += 1
        return x * 2

    return count


def _counter_used() -> Callable[[Counter, Tensor], Tensor]:
    def count(counter: Counter, x: Tensor) -> Tensor:
        counter.step += 1
        return x * counter.step

    return count


def _function_argument() -> Callable[..., Tensor]:
    def apply(x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        return f(x + 1)

    return apply


def _by_name() -> Callable[[Tensor, str], Tensor]:
    def by_name(x: Tensor, name: str) -> Tensor:
        return x * 2 if name.startswith("a") else x + 1

    return by_name


def _sum() -> Callable[[list[Tensor]], Tensor]:
    def total(xs: list[Tensor]) -> Tensor:
        out = xs[0]
        for x in xs[1:]:
            out = out + x
        return out

    return total


def _block() -> Callable[[nn.Module, Tensor], Tensor]:
    def run(block: nn.Module, x: Tensor) -> Tensor:
        return block(x)

    return run


def _counted() -> list[tuple[Any, ...]]:
    counter = Counter()
    return [(counter, X)] * 20


def variants() -> list[Variant]:
    blocks = [Block().eval() for _ in range(100)]
    return [
        Variant("20 batch sizes", _sizes, lambda: [(torch.ones(n, 16),) for n in range(2, 22)]),
        Variant("20 steps of a counter", _counter, _counted),
        Variant("20 steps of a counter that an op takes", _counter_used, _counted),
        Variant(
            "20 fresh lambdas",
            _function_argument,
            lambda: [(X, lambda x: x * 2) for _ in range(20)],
        ),
        Variant("20 strings", _by_name, lambda: [(X, f"{'ab'[i % 2]}{i}") for i in range(20)]),
        Variant("20 list lengths", _sum, lambda: [([X] * n,) for n in range(2, 22)]),
        Variant("100 equal blocks, called separately", _block, lambda: [(b, X) for b in blocks]),
    ]


def ours(f: Any) -> tuple[Any, Callable[[], Seen]]:
    captured = frametap.compile(f)

    def seen() -> Seen:
        told = frametap.explain(captured)
        return Seen(told.recordings, told.recordings + told.hits)

    return captured, seen


def dynamo(f: Any) -> tuple[Any, Callable[[], Seen]]:
    torch._dynamo.reset()
    counts = Seen()

    def backend(module: torch.fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        counts.recordings += 1

        def run(*args: Any) -> Any:
            counts.in_graphs += 1
            return module(*args)

        return run

    return torch.compile(f, backend=backend), lambda: counts


def contestants(variant: Variant, with_dynamo: bool) -> list[timing.Contestant]:
    def contestant(name: str, compile: Callable[[Any], tuple[Any, Callable[[], Seen]]]) -> Any:
        def run(prepared: Any) -> None:
            f, seen, calls = prepared
            for args in calls:
                f(*args)
            variant.seen[name] = seen()

        return timing.Contestant(name, run, lambda: (*compile(variant.make()), variant.calls()))

    row = [contestant("eager", lambda f: (f, Seen)), contestant("frametap", ours)]
    return [*row, contestant(timing.TORCH_COMPILE, dynamo)] if with_dynamo else row


def main() -> int:
    arguments = timing.arguments("Calls that differ.", rounds=5)
    times = timing.Table("All calls of a fresh function, first to last (no_grad)")
    tracers = ["frametap"] + [timing.TORCH_COMPILE] * (not arguments.no_dynamo)
    counts = timing.Numbers(
        "Recordings, and calls that ran no graph",
        {f"{name}: {what}": str for name in tracers for what in ("recordings", "eager calls")},
    )
    if not arguments.no_dynamo:
        # The end of its attempts is counted; it need not be reported.
        importlib.import_module("torch._logging").set_logs(dynamo=logging.ERROR)
    with torch.no_grad():
        for variant in variants():
            if not timing.wanted(arguments, variant.name):
                continue
            row = contestants(variant, not arguments.no_dynamo)
            timing.race(row, arguments.rounds)
            times.add(variant.name, row)
            calls = len(variant.calls())
            numbers: list[int | None] = []
            for name in tracers:
                seen = None if EAGER else variant.seen.get(name)
                numbers += [seen.recordings, calls - seen.in_graphs] if seen else [None, None]
            counts.add(variant.name, *numbers)
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report([counts, times], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
