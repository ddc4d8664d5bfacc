"""Saves a captured program, and loads it in a process that does not have the model's source.

The model takes a dict, returns a dict with a `None` in it, and branches on a tensor. The file has the graphs, the weights, the
guards and the branch. The other process imports torch and frametap only.

Prints:
    graphs: 3
    equal in the other process: True
    keys and types: {'scores': 'Tensor', 'hidden': 'NoneType'}
    other inputs: ArtifactError
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

import frametap

READER = """
import sys, torch, frametap
program = frametap.load(sys.argv[1])
given, want = torch.load(sys.argv[2])
print("equal in the other process:", all(torch.equal(program(g)["scores"], w) for g, w in zip(given, want)))
print("keys and types:", {k: type(v).__name__ for k, v in program(given[0]).items()})
try:
    program({"cells": given[0]["cells"].double()})
except frametap.FrametapError as error:
    print("other inputs:", type(error).__name__)
"""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, batch):
        cells = batch["cells"]
        if cells.abs().amax() > 5:  # outliers are clipped
            cells = cells.clamp(-5, 5)
        return {"scores": self.layers(cells), "hidden": None}


def main():
    cells = torch.tensor(load_breast_cancer().data, dtype=torch.float32)
    cells = (cells - cells.mean(0)) / cells.std(0)
    given = [{"cells": rows} for rows in cells[:160].split(4)]
    torch.manual_seed(0)
    net = frametap.compile(Net().eval())
    with torch.no_grad():
        want = [net(batch)["scores"] for batch in given]
    print("graphs:", frametap.explain(net).graph_count)

    with tempfile.TemporaryDirectory() as folder:
        program, data = Path(folder) / "net.frametap", Path(folder) / "data.pt"
        frametap.save(net, program)
        torch.save((given, want), data)
        command = [sys.executable, "-I", "-c", READER, str(program), str(data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout or done.stderr, end="")


if __name__ == "__main__":
    main()
