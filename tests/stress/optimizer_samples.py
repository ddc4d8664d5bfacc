"""Torch's own samples of its optimizers, captured and plainly. Torch keeps them for its tests of optimizers (OptimizerInfo).

    python tests/stress/optimizer_samples.py [NAMES] [--form training] [--dtype float32] [--most 99] [--recordings]

Each sample has the keywords of an optimizer, which then takes eight steps. After each step, parameters, gradients,
groups, the optimizer's state and schedulers must be as in plain Python. So must results, exceptions and random state. No
graph may raise where the step does not. One captured function steps with all samples of an optimizer.

With `--recordings`, each sample has a captured function of its own, and the steps after the sixth that are still
recorded or missed are printed. They should be replays.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.subject import EAGER, frametap, own_faults
from same.describe import Describer, normalized
from stress import samples

STEPS = 8
SETTLED = 6  # the first step that should be a replay


class Net(nn.Module):
    """A table for optimizers of sparse gradients. For others two layers, and a parameter without gradients."""

    def __init__(self, info: Any, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.is_sparse = info.only_supports_sparse_grads
        if self.is_sparse:
            self.table = nn.Embedding(6, 4, sparse=True, dtype=dtype)
            return
        bias = info.name != "Muon"  # which takes matrices alone
        self.a = nn.Linear(4, 5, bias=bias, dtype=dtype)
        self.b = nn.Linear(5, 3, bias=bias, dtype=dtype)
        self.unused = nn.Parameter(torch.ones(2, 2, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x) if self.is_sparse else self.b(self.a(x).tanh())

    def inputs(self, index: int, dtype: torch.dtype) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        if self.is_sparse:
            return torch.randint(6, (3 + index % 2,), generator=generator)
        return torch.randn(3 + index % 2, 4, generator=generator).to(dtype)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).abs().pow(2).sum()


def training(net: Net, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = net.loss(x)
    loss.backward()
    optimizer.step()
    return loss


def closure(net: Net, optimizer: Any, x: torch.Tensor) -> Any:
    def again() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net.loss(x)
        loss.backward()
        return loss

    return optimizer.step(again)


def scheduled(net: Net, optimizer: Any, x: torch.Tensor, schedulers: list[Any]) -> Any:
    loss = training(net, optimizer, x)
    for one in schedulers:
        if isinstance(one, torch.optim.lr_scheduler.ReduceLROnPlateau):
            one.step(1.0)
        else:
            one.step()
    return loss, [one.get_last_lr() for one in schedulers]


# The last two capture `optimizer.step` itself. In the last one, gradients flow through the step.
FORMS = ("training", "closure", "scheduled", "step", "differentiable")


class World:
    """A model with an optimizer, and what a step of it is."""

    def __init__(self, info: Any, keywords: dict[str, Any], schedule: Any, form: str, dtype: Any):
        keywords = deepcopy(keywords)
        self.form, self.dtype = form, dtype
        self.net = Net(info, dtype)
        self.parameters = list(self.net.parameters())
        given: Any = self.parameters
        if form == "differentiable":
            given = self.parameters = [1 * one for one in self.parameters]
        elif info.supports_param_groups and len(given) > 1:
            given = [{"params": given[:2]}, {"params": given[2:], "lr": 0.05}]
        self.optimizer = info.optim_cls(given, **keywords)
        self.schedulers = [make(self.optimizer) for make in schedule]

    def program(self) -> Callable[..., Any]:
        if self.form in ("step", "differentiable"):
            return self.optimizer.step
        return {"training": training, "closure": closure, "scheduled": scheduled}[self.form]

    def _step(self, f: Callable[..., Any], index: int) -> Any:
        x = self.net.inputs(index, self.dtype)
        if self.form == "step":
            self.optimizer.zero_grad()
            self.net.loss(x).backward()
            return f()
        if self.form == "differentiable":
            for one in self.parameters:
                one.grad = ((index + 1) * one.detach()).requires_grad_()
            made = [one.grad for one in self.parameters]
            f()
            loss = sum(one.abs().sum() for one in self.parameters)
            return torch.autograd.grad(loss, made, retain_graph=True, allow_unused=True)
        more = (self.schedulers,) if self.form == "scheduled" else ()
        return f(self.net, self.optimizer, x, *more)

    def seen(self, f: Callable[..., Any], index: int) -> list[str]:
        """Returns what a step leaves for a program to see."""
        torch.manual_seed(index)
        describer = Describer()
        try:
            describer.add("result", self._step(f, index))
        except Exception as error:  # noqa: BLE001 - it is what the step gives
            describer.lines.append(f"raises {type(error).__name__} {normalized(str(error))}")
        describer.add("parameters", self.parameters)
        state = vars(self.optimizer)
        describer.add("state", list(self.optimizer.state.items()))
        describer.add("optimizer", {key: state[key] for key in state if key != "state"})
        for one in self.schedulers:
            kept = {key: value for key, value in vars(one).items() if key != "optimizer"}
            describer.add("scheduler", kept)
        describer.add("random", torch.get_rng_state())
        return describer.lines


def all_optimizers() -> list[Any]:
    return samples.database("common_optimizers", "optim_db")


def _keywords(info: Any, form: str) -> Iterator[dict[str, Any]]:
    """Yields the samples, each with every implementation that the optimizer has.

    `capturable` and tensors that go with it are samples for GPUs; on the CPU most of them raise.
    """
    for sample in info.optim_inputs_func("cuda"):
        for name in ("", *info.supported_impls):
            is_differentiable = name == "differentiable"
            if form != "differentiable" or is_differentiable:
                yield sample.kwargs | ({name: True} if name else {})


def fault(
    info: Any,
    *,
    form: str = "training",
    dtype: torch.dtype = torch.float32,
    most: int = 99,
    report: Callable[[str], None] | None = None,
) -> str:
    """Returns "", or the first difference of an optimizer. `report` takes steps that are recorded late."""
    if info.step_requires_closure and form != "closure":
        return ""
    if dtype.is_complex and (not info.supports_complex or info.only_supports_sparse_grads):
        return ""
    own = form in ("step", "differentiable") or report is not None
    shared = None if own else frametap.compile(_plain(info, form, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for schedule in info.scheduler_inputs if form == "scheduled" else [()]:
            for keywords, _ in zip(_keywords(info, form), range(most), strict=False):
                text = _difference(info, keywords, schedule, form, dtype, shared, report)
                if text:
                    return f"{info.name} {keywords}: {text}"
    if shared is None:
        return ""
    raised = own_faults(shared)
    frametap.reset(shared)
    return f"{info.name}: " + "; ".join(raised) if raised else ""


def _plain(info: Any, form: str, dtype: torch.dtype) -> Callable[..., Any]:
    return World(info, {}, (), form, dtype).program()


def _difference(
    info: Any,
    keywords: dict[str, Any],
    schedule: Any,
    form: str,
    dtype: Any,
    shared: Any,
    report: Any,
) -> str:
    try:
        plain, again, world = (World(info, keywords, schedule, form, dtype) for _ in range(3))
    except (TypeError, ValueError, RuntimeError):
        return ""  # keywords that exclude each other
    captured = shared or frametap.compile(world.program())
    late = []
    for index in range(STEPS):
        want = plain.seen(plain.program(), index)
        if want != again.seen(again.program(), index):
            return ""  # plain Python itself gives other bits
        before = _recorded(captured)
        got = world.seen(captured, index)
        if _recorded(captured) != before and index >= SETTLED:
            late.append(index)
        if got != want:
            return f"differs at step {index}\n{samples.difference(want, got)}"
    if late and report is not None:
        report(f"{info.name} {keywords}: recorded or missed at steps {late}")
    if shared is not None:
        return ""
    raised = own_faults(captured)
    frametap.reset(captured)
    return "; ".join(raised)


def _recorded(captured: Any) -> tuple[int, int, int]:
    if EAGER:
        return 0, 0, 0
    now = frametap.explain(captured)
    return now.recordings, now.misses, len(now.aborts)


def main() -> int:
    parser = samples.parser(__doc__, "optimizer", FORMS, "training", 99)
    parser.add_argument("--recordings", action="store_true", help="print steps recorded late")
    options = parser.parse_args()
    return samples.compared(
        all_optimizers(),
        options.names,
        lambda info: fault(
            info,
            form=options.form,
            dtype=options.dtype,
            most=options.most,
            report=print if options.recordings else None,
        ),
        "optimizer",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
