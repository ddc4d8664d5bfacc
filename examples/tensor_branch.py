"""Captures a model with branches: one on a tensor, one on a shape, one on a Python flag.

A small network answers where it is sure, and a larger one otherwise. A tracer keeps one arm and strict export refuses the
program. Here each arm is captured when it is first taken. The shape becomes a guard on a symbol, the flag a guard on its value.

Prints:
    both arms were taken: True
    EarlyExit.forward#0 runs 6 ops
    EarlyExit.forward#1 runs 6 ops
    EarlyExit.forward#2 runs 0 ops
    if scores.amax() > SURE: -> a branch depends on the value of a tensor
    guard G.CENTER : == True  @ EarlyExit.forward:33:8
    guard L.x.size(0) : > 1  @ EarlyExit.forward:33:22
"""

import torch
from sklearn.datasets import load_iris
from torch import nn

import frametap

CENTER = True
SURE = 0.4


class EarlyExit(nn.Module):
    def __init__(self):
        super().__init__()
        self.small = nn.Linear(4, 3)
        self.large = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x):
        if CENTER and x.shape[0] > 1:
            x = x - x.mean(0)
        scores = self.small(x).softmax(-1)
        if scores.amax() > SURE:
            return scores
        return (scores + self.large(x).softmax(-1)) / 2


def main():
    flowers = torch.tensor(load_iris().data, dtype=torch.float32)
    torch.manual_seed(0)
    net = EarlyExit()
    captured = frametap.compile(net)

    taken = []
    for size in (2, 3, 5, 8, 13):
        for batch in flowers.split(size):
            assert torch.equal(captured(batch), net(batch))
            centered = batch - batch.mean(0) if len(batch) > 1 else batch
            taken.append(net.small(centered).softmax(-1).amax().item() > SURE)
    print("both arms were taken:", set(taken) == {True, False})

    for segment in frametap.segments(captured):
        print(segment.name, "runs", len(segment.graph.nodes), "ops")
    for cause in frametap.explain(captured).breaks:
        print(cause.source_line.strip(), "->", cause.text)
    for guard in frametap.guards(captured):
        if "size" in str(guard) or "CENTER" in str(guard):
            print("guard", guard)


if __name__ == "__main__":
    main()
