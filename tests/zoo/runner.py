"""Runs architectures of `transformers` plain and captured, each in a process of its own, and prints a table.

    python tests/zoo/runner.py [NAMES] [-j 2] [--all] [--backend native] [--json FILE] [--timeout 60] [--torch]

A row: graphs of three calls in eval mode (and how many of them the last call runs, where that differs), and the first break.
Then whether outputs of the calls, and gradients and buffers of two training steps, equal plain Python's to the bit.
`--all` tries each model type of the registry and not only those in `architectures.txt`. `--torch` adds the number of
graphs that torch.compile makes.

The processes are forks of this one, which has imported torch and transformers: that halves the time of a small model.
"""

from __future__ import annotations

import argparse
import copy
import faulthandler
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

_MEMORY = 6 << 30  # bytes of address space for one architecture, beside what the parent has


def tensors(value: Any) -> list[Any]:
    """Returns the tensors of a result, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors(item)]
    return []


def same_tensor(one: Any, other: Any) -> bool:
    import torch

    return bool(
        one.shape == other.shape
        and one.dtype == other.dtype
        and one.stride() == other.stride()
        and torch.equal(torch.isnan(one), torch.isnan(other))
        and torch.equal(one.nan_to_num(), other.nan_to_num())
    )


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(same_tensor, one, other))


def same_result(one: Any, other: Any) -> bool:
    """Returns whether two results have one type, the same keys and equal tensors."""
    keys = [list(value) if isinstance(value, dict) else None for value in (one, other)]
    return type(one) is type(other) and keys[0] == keys[1] and same(tensors(one), tensors(other))


def _seed() -> None:
    import numpy as np
    import torch

    torch.manual_seed(3)
    np.random.seed(3)  # wav2vec2 masks with it
    random.seed(3)


def training_step(model: Any, call: Any, inputs: dict[str, Any]) -> list[Any]:
    """Returns the gradients of one step, and the buffers after it."""
    import torch

    _seed()
    model.zero_grad()
    losses = [
        t.float().square().mean()
        for t in tensors(call(**inputs))
        if t.is_floating_point() and t.requires_grad
    ]
    torch.stack(losses).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return gradients + [b.clone() for b in model.buffers()]


def run(name: str, backend: str = "native", with_torch: bool = False) -> dict[str, Any]:
    """Returns one row."""
    import torch

    from fixtures.subject import frametap
    from zoo.architectures import build

    torch.set_num_threads(1)
    row: dict[str, Any] = {"name": name}
    try:
        built = build(name)
        plain = built.model
        twin = copy.deepcopy(plain)
        with torch.no_grad():
            _seed()
            want = plain(**built.inputs)
    except Exception as error:  # noqa: BLE001 - whatever the rules of `architectures` do not fit
        first = (str(error).splitlines() or [""])[0]
        return row | {"skipped": f"{type(error).__name__}: {first[:100]}"}
    start = time.monotonic()
    compiled = frametap.compile(twin, backend=backend)
    row["outputs"] = True
    hits = 0
    for _ in range(3):
        hits = frametap.explain(compiled).hits
        with torch.no_grad():
            _seed()
            row["outputs"] = row["outputs"] and same_result(want, compiled(**built.inputs))
    report = frametap.explain(compiled)
    row["graphs"] = report.graph_count
    row["recordings"] = report.recordings
    row["hits"] = report.hits
    row["later"] = report.hits - hits
    row["breaks"] = [
        f"{b.reason} {b.text.rpartition(': ')[2]} at {b.position}" for b in report.breaks
    ]
    row["given_up"] = [f"{b.reason} at {b.position}" for b in report.aborts]
    row["gradients"] = _gradients(plain, twin, built.inputs, backend)
    if with_torch:
        import torch._dynamo

        plain.eval()
        with torch.no_grad():
            row["torch"] = torch._dynamo.explain(plain)(**built.inputs).graph_count
    return row | {"seconds": round(time.monotonic() - start, 1)}


def _gradients(plain: Any, twin: Any, inputs: dict[str, Any], backend: str) -> bool | str:
    """Returns whether two training steps end as in plain Python, or why plain Python cannot do one."""
    from fixtures.subject import frametap

    plain.train()
    twin.train()
    try:
        want = [training_step(plain, plain, inputs) for _ in range(2)]
    except Exception as error:  # noqa: BLE001 - the model is not made for training
        return f"plain: {type(error).__name__}"
    captured = frametap.compile(twin, backend=backend)
    return all(same(step, training_step(twin, captured, inputs)) for step in want)


class Child:
    """A fork that computes one row and writes it into a file."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name = name
        self.options = options
        self.out = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until the row is read
        self.err = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.end = time.monotonic() + options.timeout
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._work()

    def _work(self) -> None:
        import resource

        os.dup2(self.err.fileno(), 2)
        os.dup2(self.err.fileno(), 1)
        faulthandler.enable()
        soft = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (soft + _MEMORY, soft + _MEMORY))
        try:
            row = run(self.name, self.options.backend, self.options.torch)
            self.out.write(json.dumps(row))
            self.out.flush()
        except BaseException:  # noqa: BLE001 - the parent reads it from the file
            import traceback

            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        sys.stderr.flush()
        os._exit(0)

    def row(self) -> dict[str, Any] | None:
        """Returns the row once the process has ended, or has been ended for its time."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() < self.end:
                return None
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return {"name": self.name, "died": f"not done after {self.options.timeout} s"}
        self.out.seek(0)
        text = self.out.read()
        if status or not text:
            self.err.seek(0)
            said = self.err.read().strip()
            return {
                "name": self.name,
                "died": f"exit {os.waitstatus_to_exitcode(status)}: {said[-600:]}",
            }
        row: dict[str, Any] = json.loads(text)
        return row


def rows(names: list[str], options: argparse.Namespace) -> Any:
    """Yields the rows of these names as they come."""
    waiting = list(reversed(names))
    running: list[Child] = []
    while waiting or running:
        while waiting and len(running) < options.j:
            running.append(Child(waiting.pop(), options))
        time.sleep(0.05)
        for child in list(running):
            row = child.row()
            if row is not None:
                running.remove(child)
                yield row


def words(row: dict[str, Any]) -> str:
    if "died" in row:
        return f"{row['name']:28} DIED  {row['died']}"
    if "skipped" in row:
        return f"{row['name']:28} not built: {row['skipped']}"
    right = "outputs equal" if row["outputs"] else "OUTPUTS DIFFER"
    gradients = {True: "gradients equal", False: "GRADIENTS DIFFER"}.get(
        row["gradients"], row["gradients"]
    )
    beside = f" (torch.compile {row['torch']})" if "torch" in row else ""
    if row["later"] != row["graphs"]:
        beside = f" ({row['later']} in a later call)" + beside
    why = f"  {(row['breaks'] + row['given_up'])[0]}" if row["breaks"] + row["given_up"] else ""
    return f"{row['name']:28} {row['graphs']:3} graphs{beside}  {right}, {gradients}{why}"


def is_wrong(row: dict[str, Any]) -> bool:
    return "skipped" not in row and (
        "died" in row or not row["outputs"] or row["gradients"] is False
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("-j", type=int, default=2)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--json")
    options = parser.parse_args()

    warnings.simplefilter("ignore")
    import transformers

    import frametap  # noqa: F401 - the forks inherit it
    from zoo.architectures import architectures, candidates

    transformers.logging.set_verbosity_error()
    names = options.names or (candidates() if options.all else architectures())
    table = []
    for row in rows(names, options):
        table.append(row)
        print(words(row), flush=True)
        if options.json:
            Path(options.json).write_text(json.dumps(table, indent=1) + "\n")
    built = [row for row in table if "skipped" not in row]
    whole = [row for row in built if row.get("graphs") == 1 and not row["breaks"]]
    wrong = [row for row in built if is_wrong(row)]
    print(
        f"{len(built)} built of {len(table)}; {len(whole)} are one graph; {len(wrong)} wrong or died"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
