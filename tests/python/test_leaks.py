"""Memory and reference counts after a hundred thousand captured calls, and the objects that die together.

`FRAMETAP_LEAK_CALLS` changes the number of calls.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap, needs_capture

CALLS = int(os.environ.get("FRAMETAP_LEAK_CALLS", "20000" if EAGER else "100000"))


class Refused(Exception):
    pass


TABLE = {"scale": 2.0}
SHARED = object()
LOG: list[Any] = []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: Tensor, how: int = 0, **options: Any) -> dict[str, Any]:
        self.calls += 1
        h = self.lin(x) * TABLE["scale"]
        if how == 1:
            print(end="")  # a call of something unknown
            h = h + 1
        elif how == 2:
            raise Refused(h)
        elif how == 3:
            try:
                h = h @ torch.ones(3)
            except RuntimeError:
                h = h * 2
        elif how == 4:
            h = h if h.sum() > 0 else -h
        LOG.append(len(LOG))
        LOG.clear()
        return {"h": h, "tag": SHARED, "options": options}


def resident_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def watched(net: nn.Module, x: Tensor) -> dict[str, int]:
    """Reference counts of things that the calls touch."""
    objects = {
        "shared": SHARED,
        "table": TABLE,
        "log": LOG,
        "net": net,
        "lin": net.lin,
        "weight": net.lin.weight,
        "x": x,
        "class": Net,
        "forward": Net.forward,
        "globals": globals(),
        "exception": Refused,
        "none": None,
    }
    gc.collect()
    return {name: sys.getrefcount(thing) for name, thing in objects.items()}


def make_calls(f: Any, x: Tensor, count: int) -> None:
    for i in range(count):
        try:
            f(x if i % 3 else -x, i % 5, step=i)
        except Refused:
            pass


@pytest.mark.slow
@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
def test_calls_leave_nothing(grad: bool) -> None:
    net = Net()
    f = frametap.compile(net)
    x = torch.randn(2, 4)
    with torch.set_grad_enabled(grad):
        make_calls(f, x, CALLS // 5)  # the history of misses is full then
        if not EAGER:
            reasons = {row.reason for row in frametap.explain(f).breaks}
            assert reasons >= {"input_output", "branch_on_tensor"}
        counts, blocks, resident = watched(net, x), sys.getallocatedblocks(), resident_kb()
        make_calls(f, x, CALLS // 2)
        after, blocks_after, resident_after = (
            watched(net, x),
            sys.getallocatedblocks(),
            resident_kb(),
        )
    assert LOG == []
    none = after.pop("none") - counts.pop("none")
    # None is shared with everything that runs or dies meanwhile; the rarest path is taken by one call in fifteen.
    assert abs(none) < CALLS // 50
    assert after == counts
    assert blocks_after - blocks < 500
    assert resident_after - resident < 2048, f"{resident} -> {resident_after} kB"
    if not EAGER:
        assert frametap.explain(f).hits > CALLS // 4  # it was captured calls that left nothing


def test_fresh_captures_leave_nothing() -> None:
    """Capture, call, drop: code objects, segments and pins go."""

    def once() -> None:
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        f = frametap.compile(net)
        for _ in range(3):
            f(torch.ones(1, 4))
        names: dict[str, Any] = {}
        exec("def g(x):\n    return x * 2 + 1\n", names)  # noqa: S102 - a fresh code object
        g = frametap.compile(names["g"])
        for _ in range(3):
            g(torch.ones(2))

    for _ in range(20):
        once()
    gc.collect()
    blocks, resident = sys.getallocatedblocks(), resident_kb()
    for _ in range(200):
        once()
    gc.collect()
    assert sys.getallocatedblocks() - blocks < 2000
    assert resident_kb() - resident < 4096


def test_a_captured_model_dies() -> None:
    net = nn.Linear(4, 4)
    weight, model = weakref.ref(net.weight), weakref.ref(net)
    f = frametap.compile(net)
    for _ in range(3):
        f(torch.ones(1, 4))
    del f, net
    gc.collect()
    assert model() is None
    assert weight() is None


def test_a_model_dies_that_a_captured_function_has_used() -> None:
    box = {"net": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))}
    f = frametap.compile(lambda x: box["net"](x))
    for _ in range(3):
        f(torch.ones(2, 4))
    weights = [weakref.ref(tensor) for tensor in box["net"].state_dict(keep_vars=True).values()]
    del box["net"]
    gc.collect()
    assert [ref() for ref in weights] == [None] * len(weights)


class OwnCompiler:
    """An object that compiles a function with a method of its own."""

    def __init__(self, keeps: str) -> None:
        self.error = ValueError("kernel failed")
        self.keeps = keeps
        self.run = frametap.compile(lambda x: x * 2 + 1, backend=self.build)

    def build(self, gm: Any, examples: Any) -> Any:
        if self.keeps == "backend":
            return gm.forward

        def kernel(*args: Any) -> Any:
            if self.keeps == "error":
                raise self.error
            return gm.forward(*args)

        return kernel


@needs_capture
@pytest.mark.filterwarnings("ignore::frametap.FrametapWarning")
@pytest.mark.parametrize("keeps", ["backend", "kernel", "error"])
def test_a_compiler_dies_that_holds_what_it_has_compiled(keeps: str) -> None:
    owner = OwnCompiler(keeps)
    for _ in range(3):
        assert owner.run(torch.ones(2)).tolist() == [3, 3]
    dead = weakref.ref(owner)
    del owner
    gc.collect()
    assert dead() is None


@needs_capture
def test_weights_of_a_graph() -> None:
    """A segment does not keep them; a graph does, and says what is gone by the time it is asked for."""
    nets = [nn.Linear(2, 2, bias=False)]
    f = frametap.compile(lambda x: nets[0](x))
    f(torch.ones(1, 2))
    weight = nets[0].weight
    graph = frametap.graph(f)
    held = next(tensor for tensor in graph.weights if tensor is not None)
    assert held.data_ptr() == weight.data_ptr()
    assert torch.equal(held, weight)
    del weight, nets[0]
    gc.collect()
    assert any(tensor is not None for tensor in graph.weights)
    del graph, held
    gone = frametap.graph(f)
    assert "linear" in str(gone)
    with pytest.raises(frametap.FrametapError, match="was freed or replaced since the capture"):
        _ = gone.weights


def test_arguments_and_results_die() -> None:
    def body(x: Tensor, box: Any) -> Tensor:
        y = x * 2
        id(box)
        return y + 1

    class Box:
        pass

    f = frametap.compile(body)
    for _ in range(3):
        x, box = torch.ones(2), Box()
        y = f(x, box)
        refs = [weakref.ref(thing) for thing in (x, box, y)]
        del x, box, y
        assert [ref() for ref in refs] == [None, None, None]


def test_exceptions_do_not_hold_arguments() -> None:
    def body(x: Tensor) -> Tensor:
        y = x * 2
        raise Refused(y.shape[0])

    f = frametap.compile(body)
    for _ in range(3):
        x = torch.ones(2)
        ref = weakref.ref(x)
        try:
            f(x)
        except Refused:
            pass
        del x
        assert ref() is None


@needs_capture
def test_reset_lets_go() -> None:
    held = nn.Linear(4, 4)
    ref = weakref.ref(held)
    f = frametap.compile(lambda x, m: m(x))
    for _ in range(2):
        f(torch.ones(1, 4), held)
    frametap.reset(f)
    del held
    gc.collect()
    assert ref() is None


def test_peak_memory_of_recording_and_replay() -> None:
    """Intermediates die at their last use: sixteen of 40 MB each never live together.

    In a process of its own: what is free in the heap of one that has run a thousand tests serves some calls, not others.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        plain, recording, replay = pool.apply(peaks_of_a_chain)
    assert plain > 60 * 1024  # two live at a time
    assert recording <= plain + 20 * 1024
    assert replay <= plain + 20 * 1024


def peaks_of_a_chain() -> tuple[int, int, int]:
    """Kilobytes that a plain call, a recording and a replay need. Each tensor is mapped for itself by malloc."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(16):
            x = x + 1
        return x

    f = frametap.compile(chain)
    x = torch.zeros(10 << 20)
    f(x[:4])
    plain = peak_kb_of(lambda: chain(x))
    frametap.reset()
    return plain, peak_kb_of(lambda: f(x)), peak_kb_of(lambda: f(x))


def peak_kb_of(action: Any) -> int:
    """The growth of the process' high-water mark, reset before the action."""
    Path("/proc/self/clear_refs").write_text("5")
    start = resident_kb()
    action()
    status = Path("/proc/self/status").read_text()
    high = int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
    return high - start


PROGRAM = """
import torch, frametap
def f(x, how):
    y = x * 2
    print(how)
    return [y, how] if how else y
g = frametap.compile(f)
for how in (0, 1, 0):
    g(torch.ones(2, requires_grad=True), how)
model = frametap.compile(torch.nn.Linear(2, 2))
model(torch.ones(1, 2)).sum().backward()
try:
    frametap.compile(f, fullgraph=True)(torch.ones(2), 0)
except frametap.FullGraphError:
    pass
"""


def report_at_exit(program: str) -> str:
    """Returns the report of objects of frametap that are alive after the end of the interpreter (ir/leaks.h)."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FRAMETAP_SELF_CHECK": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return "".join(line for line in done.stderr.splitlines() if line.startswith("frametap:"))


@needs_capture
def test_nothing_is_left_at_exit() -> None:
    assert report_at_exit(PROGRAM) == ""


@needs_capture
def test_what_is_left_at_exit_is_reported() -> None:
    leak = "import ctypes; ctypes.pythonapi.Py_IncRef(ctypes.py_object(g))"
    report = report_at_exit(PROGRAM + leak)
    assert report.startswith("frametap: left at exit, ")
    assert "segments" in report
    assert "stores of segments" in report


@needs_capture
def test_a_call_of_numpy_ends_with_the_recording_that_is_given_up() -> None:
    """It was kept by the address of its frame's notes, and another frame at that address took it for its own."""
    program = """
import numpy as np, frametap
def f(a):
    return np.exp(a) - 1
for n in range(1, 20):
    frametap._C.stress(f"abort:{n}")
    frametap.compile(f)(np.arange(3.0))
    frametap._C.stress("")
"""
    assert report_at_exit(program) == ""
