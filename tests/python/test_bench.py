"""Each benchmark runs: one round, its smallest rows, torch.compile left out."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from fixtures.subject import needs_capture

FOLDER = Path(__file__).resolve().parents[2] / "tools" / "bench"
sys.path.insert(0, str(FOLDER))

pytestmark = needs_capture

ROWS = {
    "break_cost": [],
    "cached_call": ["mlp", "10 blocks"],
    "first_call": ["mlp", "10 blocks"],
    "int8": ["linear"],
    "calibration": ["linear"],
    "guard_cost": ["1 blocks", "8 segments", "1 identities", "1 weights"],
    "op_chain": ["1 op"],
    "variants": ["20"],
    "cold_start": [],
    "memory": ["10 blocks of width 256, batch 4096, eval", "x *"],
}
SLOW = {"cold_start", "memory"}  # a process for each number


def test_no_program_is_forgotten() -> None:
    programs = {p.stem for p in FOLDER.glob("*.py") if "__main__" in p.read_text()}
    # `breaks` has tests of its own (test_breaks.py); `long_recordings` takes minutes.
    assert programs == {*ROWS, "breaks", "long_recordings"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in ROWS]
)
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "numbers.json"
    options = ["--rounds", "1", "--no-dynamo", "--json", str(file)]
    if ROWS[name]:
        options += ["--rows", *ROWS[name]]
    monkeypatch.setattr(sys, "argv", [name, *options])
    assert importlib.import_module(name).main() == 0
    tables = json.loads(file.read_text())["tables"]
    assert sum(len(rows) for rows in tables.values()) >= max(1, len(ROWS[name]))


def test_int8_beside_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import int8
    import int8_peers

    def refuses(task: int8_peers.Task) -> int8_peers.Call:
        raise ValueError("not this model\nat all")

    kinds = {"int8": {"slow": lambda task: task.model, "refuses": refuses}, "float32": {}}
    monkeypatch.setattr(int8_peers, "PEERS", kinds)
    file = tmp_path / "numbers.json"
    options = ["--rounds", "1", "--no-dynamo", "--batch", "3", "--rows", "linear", "--only", "int8"]
    peers = ["--peers", sys.prefix]  # the present environment is not made again
    argv = ["int8", *options, "slow", "refuses", *peers, "--json", str(file)]
    monkeypatch.setattr(sys, "argv", argv)
    assert int8.main() == 1  # one contestant has failed
    tables = json.loads(file.read_text())["tables"]
    times = tables["Later call, int8 and frozen beside float (no_grad)"][0]["contestants"]
    assert times["refuses"]["error"] == "ValueError: not this model"
    assert times["slow"]["best_s"] > 0
    beside = tables["Beside the quickest peer"][0]["numbers"]
    assert beside["quickest in int8"] == "slow"
    ratio = times["int8"]["best_s"] / times["slow"]["best_s"]
    assert beside["int8 / quickest"] == pytest.approx(ratio)
