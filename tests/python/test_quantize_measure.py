"""The figures of the report where an op gives other sizes in int8 than in float."""

import torch
from torch import nn

import frametap


class Picks(nn.Module):
    """Gives the rows that a mask picks: int8 may pick others."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(16, 32)
        self.scores = nn.Linear(32, 5)

    def forward(self, x):
        scores = self.scores(torch.relu(self.hidden(x)))
        return scores[scores[:, 0] > 0.0] * 3, scores


def test_ops_on_other_rows_have_no_sqnr():
    """The measurement read past the end of the smaller tensor."""
    torch.manual_seed(0)
    quantized = frametap.quantize(Picks().eval(), [torch.randn(300, 16) for _ in range(4)])
    (row,) = [row for row in quantized.report if row["op"] == "aten.index.Tensor"]
    assert row["cumulative_sqnr"] is None and row["sqnr"] is None
    assert " rows in float, " in row["not_comparable"]
    assert "not comparable: " in quantized.report_text()
    assert all(not r["not_comparable"] for r in quantized.report if r["decision"] == "int8")
