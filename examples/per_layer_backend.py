"""Writes a backend: a pass over the fx graph that rounds the weights of linear layers to int8, one scale a row.

The same function serves `frametap.compile` and `torch.compile`. Each node has `nn_module_stack`, so the pass chooses layers by
their path in the model: the last layer keeps its float weights.

Prints:
    frametap.compile: 0: int8, 2: float
    torch.compile: 0: int8, 2: float
    equal results: True
    the weights are rounded: True
    relative error below 1 %: True
"""

import torch
from sklearn.datasets import load_wine
from torch import nn

import frametap

LINEAR = {torch.ops.aten.linear.default, nn.functional.linear, torch._C._nn.linear}


def rounded(weight):
    """Returns `weight` as an int8 kernel would see it: per row, symmetric."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return (weight / scale).round().clamp(-127, 127) * scale


class Int8Weights:
    """A backend. `kept` names the layers that stay in float; `seen` lists the decisions."""

    def __init__(self, kept):
        self.kept = kept
        self.seen = []

    def __call__(self, gm, example_inputs):
        for node in list(gm.graph.nodes):
            if node.target not in LINEAR:
                continue
            path, _ = list(node.meta["nn_module_stack"].values())[-1]
            layer = path.split(".")[-1]
            self.seen.append(f"{layer}: {'float' if layer in self.kept else 'int8'}")
            if layer not in self.kept:
                with gm.graph.inserting_before(node):
                    node.update_arg(1, gm.graph.call_function(rounded, (node.args[1],)))
        gm.graph.lint()
        gm.recompile()
        return gm


def main():
    wine = torch.tensor(load_wine().data, dtype=torch.float32)
    wine = (wine - wine.mean(0)) / wine.std(0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3)).eval()

    ours, theirs = Int8Weights(kept={"2"}), Int8Weights(kept={"2"})
    with torch.no_grad():
        exact = net(wine)
        captured = frametap.compile(net, backend=ours)
        captured(
            wine
        )  # records, with the result of plain Python; the backend runs from the next call
        first = captured(wine)
        second = torch.compile(net, backend=theirs)(wine)
    print("frametap.compile:", ", ".join(ours.seen))
    print("torch.compile:", ", ".join(theirs.seen))
    print("equal results:", torch.equal(first, second))
    error = ((first - exact).norm() / exact.norm()).item()
    print("the weights are rounded:", error > 0)
    print("relative error below 1 %:", error < 0.01)


if __name__ == "__main__":
    main()
