"""Runs architectures of `transformers` plain and captured, each in a process of its own, and prints a table.

    python tests/zoo/runner.py [NAMES] [-j 2] [--backend native] [--json FILE] [--torch]

A row: graphs of a call in eval mode, the first break, whether outputs of three calls and the gradients of a training
step are those of plain Python to the bit. `--torch` adds the number of graphs that torch.compile makes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

_TIMEOUT = 300  # seconds for one architecture


def tensors(value: Any) -> list[Any]:
    """The tensors of a result, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in tensors(item)]
    return []


def same(one: list[Any], other: list[Any]) -> bool:
    import torch

    return len(one) == len(other) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())
        for a, b in zip(one, other, strict=True)
    )


def _gradients(model: Any, call: Any, inputs: dict[str, Any]) -> list[Any]:
    import torch

    torch.manual_seed(3)
    model.zero_grad()
    losses = [
        t.float().square().mean()
        for t in tensors(call(**inputs))
        if t.is_floating_point() and t.requires_grad
    ]
    torch.stack(losses).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def run(name: str, backend: str = "native", with_torch: bool = False) -> dict[str, Any]:
    """One row."""
    import torch

    from fixtures.subject import frametap
    from zoo.architectures import build

    torch.set_num_threads(1)
    row: dict[str, Any] = {"name": name}
    try:
        built = build(name)
        with torch.no_grad():
            want = tensors(built.model(**built.inputs))
    except Exception as error:  # noqa: BLE001 - whatever the rules of `architectures` do not fit
        return row | {
            "skipped": f"{type(error).__name__}: {str(error).splitlines()[0][:100] if str(error) else ''}"
        }
    compiled = frametap.compile(built.model, backend=backend)
    with torch.no_grad():
        row["outputs"] = all(same(want, tensors(compiled(**built.inputs))) for _ in range(3))
    report = frametap.explain(compiled)
    row["graphs"] = report.graph_count
    row["hits"] = report.hits
    row["breaks"] = [
        f"{b.reason} {b.text.rpartition(': ')[2]} at {b.position}" for b in report.breaks
    ]
    row["given_up"] = [f"{b.reason} at {b.position}" for b in report.aborts]
    try:
        plain = _gradients(built.model.train(), built.model, built.inputs)
    except Exception as error:  # noqa: BLE001 - the model is not made for training
        row["gradients"] = f"plain: {type(error).__name__}"
    else:
        captured = frametap.compile(built.model, backend=backend)
        row["gradients"] = all(
            same(plain, _gradients(built.model, captured, built.inputs)) for _ in range(2)
        )
    if with_torch:
        import torch._dynamo

        built.model.eval()
        with torch.no_grad():
            row["torch"] = torch._dynamo.explain(built.model)(**built.inputs).graph_count
    return row


def in_a_process(name: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, name, "--one", "--backend", options.backend]
    if options.torch:
        command.append("--torch")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"name": name, "died": f"not done after {_TIMEOUT} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return {"name": name, "died": f"exit {done.returncode}: {done.stderr.strip()[-200:]}"}
    row: dict[str, Any] = json.loads(lines[-1])
    return row


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
    why = f"  {row['breaks'][0]}" if row["breaks"] else ""
    return f"{row['name']:28} {row['graphs']:3} graphs{beside}  {right}, {gradients}{why}"


def main() -> int:
    from zoo.architectures import candidates

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("-j", type=int, default=2)
    parser.add_argument("--backend", default="native")
    parser.add_argument("--torch", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        warnings.simplefilter("ignore")
        print(json.dumps(run(options.names[0], options.backend, options.torch)))
        return 0
    rows = []
    with ThreadPoolExecutor(options.j) as pool:
        for row in pool.map(
            lambda name: in_a_process(name, options), options.names or candidates()
        ):
            rows.append(row)
            print(words(row), flush=True)
    built = [row for row in rows if "skipped" not in row]
    wrong = [
        row for row in built if "died" in row or not row["outputs"] or row["gradients"] is False
    ]
    whole = [row for row in built if row.get("graphs") == 1]
    print(
        f"{len(built)} built of {len(rows)}; {len(whole)} are one graph; {len(wrong)} wrong or died"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
