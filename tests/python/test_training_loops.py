"""Training loops replay: after three steps every step is hits only, and weights and gradients are as in plain Python.

The loop itself is plain Python here, or compiled as a whole (`step`). The latter breaks at `backward()` and
`optimizer.step()`, which is fine as long as each later step has hits only.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import frametap

WARM, STEPS = 3, 10
FIRST_REDUCTION = 5  # of ReduceLROnPlateau below: a branch that no step before has taken
PATIENCE = 240.0  # seconds


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x))))


class Checkpointed(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = checkpoint(lambda y: torch.relu(self.norm(self.first(y))), x, use_reentrant=False)
        return self.last(h)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def loss_of(model: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


class Loop:
    """One training loop. `compiles` gives what is captured; `step` is one step of plain Python around it."""

    def __init__(
        self, compiles: Callable[[Any], Any], net: type[nn.Module], optimizer: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = net()
        self.average = copy.deepcopy(self.model)
        self.optimizer = optimizer(self.model)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        self.captured = compiles(self.subject())
        self.number = 0

    def subject(self) -> Any:
        return self.model

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.captured, x, y)
        loss.backward()
        self.optimizer.step()
        return loss


class Scheduled(Loop):
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().step(x, y)
        self.scheduler.step()
        return loss


class Accumulated(Loop):
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(self.captured, x, y) / 2
        loss.backward()
        self.number += 1
        if self.number % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss


class Clipped(Loop):
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = loss_of(self.captured, x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        return loss


class Averaged(Loop):
    def step(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().step(x, y)
        with torch.no_grad():
            for kept, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                kept.lerp_(now, 0.1)
        return loss


class LossInside(Loop):
    """The loss belongs to what is captured."""

    def subject(self) -> Any:
        return lambda x, y: loss_of(self.model, x, y)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.captured(x, y)
        loss.backward()
        self.optimizer.step()
        return loss


class WholeStep(Loop):
    """All of a step is captured."""

    def subject(self) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, x, y)
            loss.backward()
            self.optimizer.step()
            return loss

        return step

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return self.captured(x, y)


class WholeEverything(Loop):
    """All of a step is captured: clipping, a scheduler and an average of the weights, too."""

    def subject(self) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad(set_to_none=False)
            loss = loss_of(self.model, x, y)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.scheduler.step()
            with torch.no_grad():
                pairs = zip(self.average.parameters(), self.model.parameters(), strict=True)
                for kept, now in pairs:
                    kept.lerp_(now, 0.1)
            return loss

        return step

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        return self.captured(x, y)


class Annealed(WholeStep):
    """All of a step is captured, with a scheduler that the test names."""

    make_scheduler: Callable[[torch.optim.Optimizer], Any]

    def subject(self) -> Any:
        scheduler = self.make_scheduler(self.optimizer)
        step = super().subject()

        def with_scheduler(x: Tensor, y: Tensor) -> Tensor:
            loss = step(x, y)
            scheduler.step(*([loss.item()] if isinstance(scheduler, ReduceLROnPlateau) else []))
            return loss

        return with_scheduler


class ByHand(WholeStep):
    """All of a step is captured: the loop sets the learning rate, and clips values and the norm."""

    def subject(self) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            self.number += 1
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1 / (1 + self.number)
            self.optimizer.zero_grad()
            loss = loss_of(self.model, x, y)
            loss.backward()
            nn.utils.clip_grad_value_(self.model.parameters(), 0.1)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5, foreach=True)
            self.optimizer.step()
            return loss

        return step


class WholeAccumulated(WholeStep):
    """All of a step is captured: every second step is another arm of the program, so it is recorded by itself."""

    def subject(self) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            loss = loss_of(self.model, x, y) / 2
            loss.backward()
            self.number += 1
            if self.number % 2 == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss

        return step


class WithClosure(WholeStep):
    """All of a step is captured: the optimizer computes the loss."""

    def subject(self) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            def closure() -> Tensor:
                self.optimizer.zero_grad()
                loss = loss_of(self.model, x, y)
                loss.backward()
                return loss

            return self.optimizer.step(closure)

        return step


class Scaled(WholeStep):
    """All of a step is captured: the loss is scaled, and the average is one of torch's own."""

    def subject(self) -> Any:
        scaler, average = torch.amp.GradScaler("cpu"), AveragedModel(self.model)
        self.average = average.module

        def step(x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = loss_of(self.model, x, y)
            scaler.scale(loss).backward()
            scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            scaler.step(self.optimizer)
            scaler.update()
            average.update_parameters(self.model)
            return loss

        return step


OPTIMIZERS: dict[str, Any] = {
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Adagrad_foreach": lambda p: torch.optim.Adagrad(p, lr=0.05, foreach=True),
    "RMSprop_foreach": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
    "AdamW_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "amsgrad_foreach": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "NAdam_foreach": lambda p: torch.optim.NAdam(p, lr=0.01, foreach=True),
    "Adamax_foreach": lambda p: torch.optim.Adamax(p, lr=0.01, foreach=True),
    "ASGD_foreach": lambda p: torch.optim.ASGD(p, lr=0.05, foreach=True),
}


def two_phases(optimizer: Any, milestone: int) -> Any:
    first = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    second = lr_scheduler.CosineAnnealingLR(optimizer, 10)
    return lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[milestone])


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=40),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.95**n),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=20),
    "ReduceLROnPlateau": lambda o: ReduceLROnPlateau(o, patience=1),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 20),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 30]),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 30),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=20),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, total_iters=1),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 20),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.LinearLR(o, 0.1, total_iters=20)]
    ),
    "SequentialLR": lambda o: two_phases(o, 20),
}
LOOPS = [Loop, Scheduled, Accumulated, Clipped, Averaged, LossInside, WholeStep, WholeEverything]


def state_of(loop: Loop) -> list[Tensor]:
    grads = [p.grad for p in loop.model.parameters() if p.grad is not None]
    return [*loop.model.state_dict().values(), *loop.average.state_dict().values(), *grads]


def batches() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(8, 6), torch.randint(0, 3, (8,))) for _ in range(STEPS)]


def train(make: type[Loop], net: type[nn.Module], optimizer: Any) -> list[tuple[int, int]]:
    """Trains in plain Python and captured, and compares. Gives recordings and hits of each step."""
    plain, captured = make(lambda f: f, net, optimizer), make(frametap.compile, net, optimizer)
    counts, before = [], (0, 0)
    for x, y in batches():
        torch.manual_seed(2)
        wanted = plain.step(x, y)
        torch.manual_seed(2)
        got = captured.step(x, y)
        assert torch.equal(wanted, got)
        for a, b in zip(state_of(plain), state_of(captured), strict=True):
            assert torch.equal(a, b)
        e = frametap.explain(captured.captured)
        counts.append((e.recordings - before[0], e.hits - before[1]))
        before = (e.recordings, e.hits)
    return counts


def hits_only(counts: list[tuple[int, int]]) -> bool:
    return all(recordings == 0 and hits > 0 for recordings, hits in counts)


def assert_hits_only(counts: list[tuple[int, int]], warm: int = WARM) -> None:
    assert hits_only(counts[warm:]), counts


@pytest.mark.parametrize("optimizer", [sgd, adamw])
@pytest.mark.parametrize("net", [Net, Checkpointed])
@pytest.mark.parametrize("make", LOOPS)
def test_loop_replays(make: type[Loop], net: type[nn.Module], optimizer: Any) -> None:
    assert_hits_only(train(make, net, optimizer))


def assert_replays(make: type[Loop], optimizer: Any) -> None:
    assert_hits_only(train(make, Net, optimizer))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_step_of_optimizer_replays(name: str) -> None:
    assert_replays(WholeStep, lambda model: OPTIMIZERS[name](model.parameters()))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_step_of_scheduler_replays(name: str) -> None:
    class Chosen(Annealed):
        make_scheduler = staticmethod(SCHEDULERS[name])

    warm = FIRST_REDUCTION if name == "ReduceLROnPlateau" else WARM
    assert_hits_only(train(Chosen, Net, sgd), warm)


@pytest.mark.parametrize("name", ["OneCycleLR", "CosineAnnealingLR", "MultiStepLR"])
def test_step_of_adamw_with_scheduler_replays(name: str) -> None:
    class Chosen(Annealed):
        make_scheduler = staticmethod(SCHEDULERS[name])

    assert_replays(Chosen, adamw)


def test_second_phase_of_a_schedule_replays() -> None:
    """The step of the milestone and the first ones of the new phase take other branches."""

    class Chosen(Annealed):
        make_scheduler = staticmethod(lambda optimizer: two_phases(optimizer, 2))

    assert_hits_only(train(Chosen, Net, sgd), WARM + 2)


@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_rates_set_by_hand_replay(optimizer: Any) -> None:
    assert_replays(ByHand, optimizer)


@pytest.mark.parametrize("optimizer", [sgd, adamw])
def test_each_arm_of_accumulation_replays(optimizer: Any) -> None:
    counts = train(WholeAccumulated, Net, optimizer)
    without, with_step = counts[0::2], counts[1::2]
    assert hits_only(without[2:])
    # The third step of the optimizer is the sixth of the loop.
    assert hits_only(with_step[2:])


def test_closures_replay() -> None:
    assert_replays(WithClosure, sgd)
    assert_replays(
        WithClosure, lambda m: torch.optim.LBFGS(m.parameters(), max_iter=3, history_size=2)
    )


def test_scaled_step_replays() -> None:
    assert_replays(Scaled, sgd)


def test_parallel_training_replays(tmp_path: Path) -> None:
    """Two processes train with DDP, compiled outside and inside, and with fully sharded weights (`parallel_training.py`)."""
    program = Path(__file__).with_name("parallel_training.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    logs = [tmp_path / f"rank{rank}.log" for rank in range(2)]
    ranks = []
    try:
        for rank, log in enumerate(logs):
            arguments = [sys.executable, str(program), str(tmp_path / "rendezvous"), str(rank)]
            with log.open("w") as output:
                ranks.append(
                    subprocess.Popen(arguments, env=environment, stdout=output, stderr=output)
                )
        end = time.monotonic() + PATIENCE
        # A rank that has failed leaves the other one waiting.
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
            if any(rank.poll() not in (None, 0) for rank in ranks):
                break
            time.sleep(0.05)
        codes = [rank.poll() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    texts = [log.read_text() for log in logs]
    last = [text.strip().rpartition("\n")[2] for text in texts]
    assert codes == [0, 0], "\n".join([f"the ranks ended with {codes}, {last}", *texts])


def test_loops_replay_after_torch_compile() -> None:
    """TorchDynamo wraps `Optimizer._init_group` and others in functions of its own at its first use."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert_replays(WholeStep, adamw)
    assert_replays(WholeEverything, adamw)
    assert_replays(
        WithClosure, lambda m: torch.optim.LBFGS(m.parameters(), max_iter=3, history_size=2)
    )
