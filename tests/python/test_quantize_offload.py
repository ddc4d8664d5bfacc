"""`QuantizedModel.offload_weights`: float weights in a file. offload/O1 and offload/O2."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about int8")]


class Net(nn.Module):
    """A table that runs read, layers that they do not, a batch norm that is folded, and a layer that stays in float."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 128)
        self.conv, self.bn = nn.Conv1d(128, 256, 3, padding=1), nn.BatchNorm1d(256)
        self.middle, self.head = nn.Linear(256, 256), nn.Linear(256, 256)
        self.small = nn.Linear(256, 8)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.bn(self.conv(self.table(ids).transpose(1, 2))).relu().transpose(1, 2)
        for _ in range(ids.shape[1]):
            pass
        h = self.middle(h).relu()
        return self.small(self.head(h) + h)


def made(**options: Any) -> tuple[nn.Module, Any, Tensor]:
    torch.manual_seed(0)
    model = Net().eval()
    data = [torch.randint(0, 1000, (4, 12)) for _ in range(2)]
    quantized = frametap.quantize(model, data, float_scopes=["head"], progress=False, **options)
    return model, quantized, data[0]


def mapped(tensor: Tensor) -> bool:
    """Whether the elements lie in a file without a name."""
    address = tensor.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= address < last:
            return "(deleted)" in line
    return False


def test_weights_that_int8_layers_alone_read_are_moved(tmp_path: Path) -> None:
    model, quantized, ids = made()
    twin = quantized._model
    want = quantized(ids)
    moved = quantized.offload_weights(tmp_path)
    assert list(tmp_path.iterdir()) == []
    big = [twin.conv.weight, twin.middle.weight]
    assert moved >= sum(weight.nbytes for weight in big)
    assert all(map(mapped, big))
    assert not any(map(mapped, [twin.table.weight, twin.head.weight, twin.small.weight]))
    for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert not mapped(theirs)
    assert torch.equal(quantized(ids), want)
    assert quantized.offload_weights(tmp_path) == 0
    assert torch.equal(quantized(ids), want)


def test_calls_of_new_kinds_use_the_same_kernels_afterwards(tmp_path: Path) -> None:
    _model, quantized, _ = made()
    _, other, _ = made()
    quantized.offload_weights(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", frametap.FrametapWarning)
        for length in (1, 5, 40):
            ids = torch.randint(0, 1000, (2, length))
            got = quantized(ids)
            assert torch.equal(got, other(ids))
            assert torch.equal(quantized(ids), got)
    first, *_, last = (
        quantized.quantized_graph(segment) for segment in frametap.segments(quantized)
    )
    kernels = [{id(t) for _, t in graph.lowered.constants} for graph in (first, last)]
    assert kernels[0] == kernels[1]
    frametap.save(quantized, tmp_path / "saved")
    loaded = frametap.load(tmp_path / "saved")
    assert torch.equal(loaded(ids), got)


def test_weights_outlive_the_model_where_somebody_holds_them(tmp_path: Path) -> None:
    model, quantized, _ids = made()
    quantized.offload_weights(tmp_path)
    weight = quantized._model.middle.weight
    with torch.no_grad():
        weight[0, 0] = 3.0  # stays in memory
    del quantized
    gc.collect()
    assert weight[0, 0] == 3.0
    assert torch.equal(weight[1:], model.middle.weight[1:])
    assert torch.equal(weight[0, 1:], model.middle.weight[0, 1:])


def test_bad_input() -> None:
    _, quantized, _ = made()
    with pytest.raises(frametap.QuantizationError, match="offload_weights: no file can be made"):
        quantized.offload_weights("/no/such/directory")
    model = Net().eval()
    function = frametap.quantize(
        lambda ids: model(ids), [torch.randint(0, 1000, (4, 12))], progress=False
    )
    with pytest.raises(frametap.QuantizationError, match="belong to the modules"):
        function.offload_weights()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_a_full_disk_changes_nothing() -> None:
    _, quantized, ids = made()
    want = quantized(ids)
    with (
        Path("/dev/full").open("wb") as file,
        pytest.raises(frametap.QuantizationError, match="could not be written to a file"),
    ):
        frametap._C.offload_weights(quantized._frametap, file.fileno())
    assert not mapped(quantized._model.middle.weight)
    assert torch.equal(quantized(ids), want)
