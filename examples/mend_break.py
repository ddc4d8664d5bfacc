"""Finds a graph break, and mends it.

The function scales its input by the largest element, read with `.item()`, and branches on it. `explain` names the line, the
reason and the advice. The second version computes the same with `torch.where`, and is one graph.

Prints:
    before: 2 graphs, 1 break
      line:   if largest > 1:
      reason: Python asks for the value of a tensor: aten::item
      advice: keep the number in a tensor, or compute it outside the captured function
    fullgraph=True, but the graph ends at normalize:24:7 because Python asks for the value of a tensor (aten::item)
    equal result: True
    after: 1 graph, 0 breaks
"""

import torch
from sklearn.datasets import load_diabetes

import frametap


def normalize(x):
    largest = x.abs().amax().item()
    if largest > 1:
        x = x / largest
    return x.mean(0)


def normalize_in_one_graph(x):
    largest = x.abs().amax()
    x = torch.where(largest > 1, x / largest, x)
    return x.mean(0)


def main():
    patients = torch.tensor(load_diabetes(scaled=False).data, dtype=torch.float32)

    broken = frametap.compile(normalize)
    want = broken(patients)
    report = frametap.explain(broken)
    print(f"before: {report.graph_count} graphs, {report.break_count} break")
    for cause in report.breaks:
        print("  line:  ", cause.source_line.strip())
        print("  reason:", cause.text)
        print("  advice:", cause.advice)

    # `fullgraph` makes a break an error, so a test notices when one comes back.
    try:
        frametap.compile(normalize, fullgraph=True)(patients)
    except frametap.FullGraphError as error:
        print(str(error).splitlines()[0])
    mended = frametap.compile(normalize_in_one_graph, fullgraph=True)
    print("equal result:", torch.equal(mended(patients), want))
    report = frametap.explain(mended)
    print(f"after: {report.graph_count} graph, {report.break_count} breaks")


if __name__ == "__main__":
    main()
