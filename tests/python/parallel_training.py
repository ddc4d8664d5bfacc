"""One rank of training runs of two; a program for test_training_loops.py. Arguments: the file for the rendezvous, the rank.

Fails unless weights equal the weights of the same run in plain Python and steps after the third one are hits only.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import frametap

WARM, STEPS = 3, 8


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def shard(net: nn.Module) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def made(kind: str, compiles: Callable[[Any], Any]) -> tuple[Any, Any, nn.Module]:
    """The callable, the captured part of it, and the module with the parameters."""
    net = model()
    if kind == "compile_ddp":
        outer = compiles(DistributedDataParallel(net))
        return outer, outer, net
    if kind == "ddp_compile":
        inner = compiles(net)
        return DistributedDataParallel(inner), inner, net
    outer = compiles(shard(net))
    return outer, outer, net


def whole(parameter: Tensor) -> Tensor:
    return parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter


def train(kind: str, compiles: Callable[[Any], Any], report: Callable[[Any], None]) -> list[Tensor]:
    called, captured, net = made(kind, compiles)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(STEPS):
        loss = called(torch.randn(8, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report(captured)
    return [whole(p.detach()).clone() for p in net.parameters()]


def is_right(kind: str, rank: int) -> bool:
    counts: list[tuple[int, int]] = []
    total = [0, 0]

    def report(captured: Any) -> None:
        e = frametap.explain(captured)
        counts.append((e.recordings - total[0], e.hits - total[1]))
        total[:] = e.recordings, e.hits

    wanted = train(kind, lambda f: f, lambda _: None)
    got = train(kind, frametap.compile, report)
    print(f"rank {rank}, {kind}: recordings and hits of each step {counts}", flush=True)
    equal = all(torch.equal(a, b) for a, b in zip(wanted, got, strict=True))
    if not equal:
        print("the weights differ from those of plain Python", flush=True)
    return equal and all(recordings == 0 and hits > 0 for recordings, hits in counts[WARM:])


def main() -> int:
    rendezvous, rank = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=120),
    )
    # Each kind runs in both ranks, also after a fault: none waits for the other.
    faults = [kind for kind in ("compile_ddp", "ddp_compile", "fsdp") if not is_right(kind, rank)]
    dist.barrier()
    dist.destroy_process_group()
    print(f"faults: {faults}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    # A thread of gloo may still drop a tensor, for which torch ends the process while the interpreter finalizes
    # (docs/traps.md). So the interpreter does not finalize.
    os._exit(main())
