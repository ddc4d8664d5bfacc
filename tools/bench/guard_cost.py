"""The cost of a warm call besides its ops.

First table: nothing is computed. The captured function gets an executable that returns its input,
and so does torch.compile's backend. Guards, gathering and returning remain, in a model of n blocks,
and where n segments begin at one entry point and are called in turn. Between two calls a program
may leave all dicts alone, or change one (a global, an attribute). Guards must then check it: both
are shown.

Second table: modules that compute almost nothing on a tensor of one element, next to the same ops called from a bare
function.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import timing
import torch
from rows import straight
from torch import Tensor, nn

from fixtures.models import blocks
from fixtures.subject import EAGER, frametap

NOTHING = 'torch.compile("nothing")'


class Block(nn.Module):
    """Reads attributes and a parameter, as a user's block does; computes one add."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()
        self.weight = nn.Parameter(torch.ones(1))
        self.scale = 1.0
        self.active = False

    def forward(self, x: Tensor) -> Tensor:
        if self.active:
            x = x * self.scale
        return self.norm(x)


class Chain(nn.Module):
    """`count` blocks; only the last op is computed."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x + 1


class Weights(nn.Module):
    """`count` parameters in one op each."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.ones(1) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + weight
        return x


def bare(count: int) -> Callable[[Tensor], Tensor]:
    weights = [torch.ones(1) for _ in range(count)]

    def run(x: Tensor) -> Tensor:
        for weight in weights:
            x = x + weight
        return x

    return run


def by_name(x: Tensor, name: str) -> Tensor:
    return x + 1 if len(name) > 0 else x


def branches(count: int) -> Callable[[Tensor], Tensor]:
    """As many branches on two sizes, none of which says what another does."""
    sizes = (f"if x.shape[0] * {k + 2} - x.shape[1] < {k}: return x" for k in range(count))
    return straight([*sizes, "x = x + 1"])


def compute_nothing(captured: Any) -> None:
    """Makes replays of the captured function return the last input, instead of running the graph."""
    for segment in frametap.segments(captured):
        graph = segment.graph
        assert len(graph.outputs) == 1, "one result, from one input"
        names = [f"%{value.name}" for value in graph.inputs]
        text = f"graph ({', '.join(names)}) {{\n  return {names[-1]}\n}}"
        nothing = frametap._C.compile(frametap._C.native_backend(), frametap.ir.parse_graph(text))
        segment.set_executable(nothing)


def nothing_backend(module: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    results = tuple(t.detach() for t in module(*examples))
    return lambda *_: results


def front_end(
    f: Any, calls: Callable[[Any], Callable[[], Any]], repeats: int, dynamo: bool
) -> list[timing.Contestant]:
    """`calls(g)` makes the calls of `g` that are timed: each segment is met at the first of them."""
    row: dict[str, Callable[[], Any]] = {}
    if dynamo:
        torch._dynamo.reset()
        # Its first use changes nn.Module: what was captured before would be recorded again.
        row[NOTHING] = calls(torch.compile(f, backend=nothing_backend))
        row[NOTHING]()
    captured = frametap.compile(f)
    row["frametap"] = calls(captured)
    row["frametap"]()
    if not EAGER:
        compute_nothing(captured)
    return timing.warmed(row, repeats)


def one_after_the_other(x: Tensor) -> Callable[[Any], Callable[[], Any]]:
    return lambda f: lambda: f(x)


def after_changes(x: Tensor) -> Callable[[Any], Callable[[], Any]]:
    """A dict that has nothing to do with it is changed before each call."""

    def calls(f: Any) -> Callable[[], Any]:
        namespace: dict[str, object] = {}
        turn = itertools.cycle((0, 1))

        def call() -> Any:
            namespace["turn"] = next(turn)
            return f(x)

        return call

    return calls


def in_turn(names: list[str], x: Tensor) -> Callable[[Any], Callable[[], Any]]:
    """One name a call: the next one each time."""

    def calls(f: Any) -> Callable[[], Any]:
        for name in names:
            f(x, name)
        turn = itertools.cycle(names)
        return lambda: f(x, next(turn))

    return calls


def module_row(
    model: nn.Module, floor: Callable[[Tensor], Tensor], dynamo: bool
) -> list[timing.Contestant]:
    x = torch.zeros(1)
    captured = frametap.compile(model)
    candidates: dict[str, Callable[[], Any]] = {
        "ops alone": lambda: floor(x),
        "eager": lambda: model(x),
        "frametap": lambda: captured(x),
    }
    if dynamo:
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="eager")
        candidates[timing.TORCH_COMPILE] = lambda: compiled(x)
    return timing.warmed(candidates, timing.repeats_for(candidates["ops alone"]))


def main() -> int:
    arguments = timing.arguments("Front-end cost of a warm call.", rounds=60)
    dynamo = not arguments.no_dynamo
    if dynamo:
        torch._dynamo.config.recompile_limit = 100
    alone = timing.Table("Front end alone (nothing is computed, no_grad)")
    tiny = timing.Table("Warm call of tiny modules (one-element tensors, no_grad)")
    with torch.no_grad():
        for count in (1, 10, 100, 200):
            case = blocks(count)
            x = case.inputs(4)["input"]
            for how, calls in (
                ("", one_after_the_other(x)),
                (", a dict changes", after_changes(x)),
            ):
                if timing.wanted(arguments, name := f"{count} blocks, {4 * count} parameters{how}"):
                    row = front_end(case.build().eval(), calls, 50, dynamo)
                    timing.race(row, arguments.rounds)
                    alone.add(name, row)
        for count in (1, 8, 64):
            if timing.wanted(arguments, name := f"{count} segments in turn"):
                names = [f"name{i}" for i in range(count)]
                row = front_end(
                    by_name, in_turn(names, torch.zeros(1)), max(1, 256 // count) * count, dynamo
                )
                timing.race(row, arguments.rounds)
                alone.add(name, row)
        for count in (0, 50):
            if timing.wanted(arguments, name := f"{count} relations of two sizes"):
                x = torch.zeros(40, 3)
                row = front_end(branches(count), one_after_the_other(x), 200, dynamo)
                timing.race(row, arguments.rounds)
                alone.add(name, row)
        for count in (1, 10, 50, 200):
            if timing.wanted(arguments, name := f"{count} identities, one op"):
                row = module_row(Chain(count).eval(), lambda x: x + 1, dynamo)
                timing.race(row, arguments.rounds)
                tiny.add(name, row)
        for count in (1, 10, 100, 300):
            if timing.wanted(arguments, name := f"{count} weights, {count} ops"):
                row = module_row(Weights(count).eval(), bare(count), dynamo)
                timing.race(row, arguments.rounds)
                tiny.add(name, row)
    if EAGER:
        print("FRAMETAP_TEST_EAGER=1: the frametap column is plain eager\n")
    return timing.report([alone, tiny], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
