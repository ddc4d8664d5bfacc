"""Signals, deep recursion, forks, other interpreters, the end of the process: captured functions continue as plain ones
do.
"""

from __future__ import annotations

import _thread
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap


@pytest.fixture
def ticking() -> Iterator[list[int]]:
    """A signal every half millisecond; the handler runs Python and torch code."""
    ticks: list[int] = []

    def tick(number: int, frame: object) -> None:
        ticks.append(int((torch.ones(2) * number).sum()))
        sum(str(i) != "7" for i in range(3))
        # Armed again only now: a handler slower than the interval would never let the program continue.
        signal.setitimer(signal.ITIMER_REAL, 0.0005)

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    yield ticks
    signal.signal(
        signal.SIGALRM, signal.SIG_IGN
    )  # first: a handler that still runs would arm the timer again
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.BatchNorm1d(3))
        self.calls = 0

    def forward(self, x: Tensor, how: int) -> Tensor:
        self.calls += 1
        for _ in range(3):
            x = self.layers(x)
        if how == 1 and x.sum() > 1e9:
            x = x + 1
        return x * how


def test_signals_while_recording_and_replaying(ticking: list[int]) -> None:
    net, twin = Net(), Net()
    twin.load_state_dict(net.state_dict())
    f = frametap.compile(net)
    end = time.monotonic() + 1.5
    n = 0
    while time.monotonic() < end:
        if n % 7 == 0:
            frametap.reset()
        x = torch.randn(4, 3)
        assert torch.equal(f(x, n % 3), twin(x, n % 3))
        n += 1
    assert net.calls == twin.calls == n
    assert torch.equal(net.layers[2].running_mean, twin.layers[2].running_mean)
    assert ticking and set(ticking) == {2 * signal.SIGALRM}


def test_signal_handler_that_raises() -> None:
    """It raises wherever the program is; the next call is as good as any."""

    class Enough(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise Enough

    net = Net()
    f = frametap.compile(net)
    state = {"raised": 0}
    before = signal.signal(signal.SIGALRM, handler)
    try:
        for i in range(60):
            if i % 3 == 0:
                frametap.reset()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + i * 0.0001)
                while True:
                    f(torch.randn(4, 3), 1)
            except Enough:
                state["raised"] += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert state["raised"] == 60
    net.eval()
    x = torch.randn(4, 3)
    assert torch.equal(f(x, 1), net(x, 1))


def test_keyboard_interrupt_in_a_loop() -> None:
    def loops(x: Tensor) -> Tensor:
        n = 0
        try:
            while True:
                x = x + 1
                n += 1
                if n == 20:
                    _thread.interrupt_main()
        except KeyboardInterrupt:
            return x * 0 + 1
        finally:
            seen.append(n >= 20)

    seen: list[bool] = []
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        f = frametap.compile(loops)
        for _ in range(3):
            assert torch.equal(f(torch.zeros(1)), torch.ones(1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [True] * 3


def test_exception_sent_to_a_thread() -> None:
    f = frametap.compile(Net())
    caught: list[type] = []
    started = threading.Event()

    def work() -> None:
        try:
            while True:
                f(torch.randn(2, 3), 1)
                started.set()
        except BaseException as error:  # noqa: BLE001
            caught.append(type(error))

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(LookupError)
    )
    thread.join(20)
    assert caught == [LookupError]


# -- recursion --


def down(x: Tensor, n: int) -> Tensor:
    if n == 0:
        return x + 1
    return down(x, n - 1) * 1


class Deep:
    def __getattr__(self, name: str) -> Any:
        if name == "end":
            return 1
        return getattr(self, name)


def endless(x: Tensor) -> Tensor:
    x = x + 1
    return endless(x)


def depth_reached(f: Callable[..., Any]) -> int:
    low, high = 0, 3000
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            f(torch.ones(1), middle)
            low = middle
        except RecursionError:
            high = middle
    return low


def test_recursion_error_comes_at_the_same_depth() -> None:
    """But for the few calls that a replay does not make, and the compiled callable itself."""
    want = depth_reached(down)
    f = frametap.compile(down)
    assert abs(depth_reached(f) - want) <= 4
    assert torch.equal(f(torch.ones(1), 20), torch.ones(1) * 2)


@pytest.mark.parametrize("limit", [200, 1000, 20000])
def test_endless_recursion(limit: int) -> None:
    f = frametap.compile(endless)
    # Through C code plain Python needs its stack, too.
    g = frametap.compile(lambda x: x + Deep().other) if limit < 20000 else f
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        for _ in range(3):
            for function in (f, g):
                with pytest.raises(RecursionError, match="maximum recursion depth exceeded"):
                    function(torch.ones(1))
    finally:
        sys.setrecursionlimit(before)
    assert torch.equal(frametap.compile(down)(torch.ones(1), 5), torch.ones(1) * 2)


UNDER_ANOTHER_HOOK = """
import sys, torch, frametap

@torch._dynamo.disable
def refused(x):
    return x + 2

try:
    # torch leaves its hook installed after this.
    torch.compile(lambda x: refused(x), fullgraph=True, backend="eager")(torch.ones(1))
except torch._dynamo.exc.Unsupported:
    pass

def endless(x):
    x = x + 1
    return endless(x)

f = frametap.compile(endless)
sys.setrecursionlimit(20000)
for _ in range(3):
    try:
        f(torch.ones(1))
    except RecursionError:
        print("RecursionError")
"""


def test_endless_recursion_under_the_hook_of_torch() -> None:
    run = subprocess.run(
        [sys.executable, "-c", UNDER_ANOTHER_HOOK],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.split() == ["RecursionError"] * 3


def test_deep_recursion_in_a_thread_with_a_small_stack() -> None:
    f = frametap.compile(down)
    results: list[Any] = []

    def work() -> None:
        sys.setrecursionlimit(3000)
        try:
            results.append(f(torch.ones(1), 900))
        except BaseException as error:  # noqa: BLE001
            results.append(error)

    before = sys.getrecursionlimit()
    size = threading.stack_size(2 << 20)
    try:
        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
    finally:
        threading.stack_size(size)
        sys.setrecursionlimit(before)
    assert all(torch.equal(r, torch.ones(1) * 2) for r in results)


def test_recursion_through_the_captured_function() -> None:
    """Each level calls the compiled object again, during a recording and without one."""

    def steps(x: Tensor, n: int) -> Tensor:
        if n == 0:
            return x
        print(end="")
        return f(x + 1, n - 1)

    f = frametap.compile(steps)
    for n in (3, 40, 3, 40):
        assert f(torch.zeros(1), n).item() == n
    before = sys.getrecursionlimit()
    # A compiler of torch that ran before raises the limit of the process. Calls through C code need its stack.
    sys.setrecursionlimit(1000)
    try:
        for _ in range(2):
            with pytest.raises(RecursionError):
                f(torch.zeros(1), 10**6)
    finally:
        sys.setrecursionlimit(before)


# -- processes --


def in_child(x: Tensor) -> list[float]:
    return (COMPILED(x, 1) + COMPILED(x, 2)).flatten().tolist()


PLAIN = Net().eval()
COMPILED = frametap.compile(PLAIN)


def test_fork() -> None:
    x = torch.ones(2, 3)
    want = in_child(x)
    for reset in (False, True):
        if reset:
            frametap.reset()
        child = os.fork()
        if child == 0:
            try:
                os._exit(0 if in_child(x) == want == in_child(x) else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_fork_while_recording_and_while_another_thread_replays() -> None:
    stop = threading.Event()
    # Parameters of its own: torch locks a mutex of each while it runs an op, which a child would find locked for ever.
    other = frametap.compile(Net().eval())

    def work() -> None:
        while not stop.is_set():
            other(torch.randn(2, 3), 2)

    def forks(x: Tensor) -> int:
        y = x + 1
        child = os.fork()
        if child == 0:
            ok = False
            try:
                ok = torch.equal(y * 2, torch.ones(2) * 4) and len(in_child(torch.ones(1, 3))) == 3
            finally:
                os._exit(0 if ok else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    f = frametap.compile(forks)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert [f(torch.ones(2)) for _ in range(3)] == [0, 0, 0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method: str) -> None:
    x = torch.ones(2, 3)
    with multiprocessing.get_context(method).Pool(1) as pool:
        got = pool.map(in_child, [x] * 3)
    assert [len(row) for row in got] == [6] * 3
    if method == "fork":
        assert got == [in_child(x)] * 3


def script(text: str, *options: str) -> subprocess.CompletedProcess[str]:
    package = "" if EAGER else "import frametap\n"
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", *options, "-c", package + textwrap.dedent(text)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(EAGER, reason="nothing of frametap is loaded")
def test_other_interpreters_are_refused() -> None:
    done = script(
        """
        import _xxsubinterpreters as interpreters, torch
        f = frametap.compile(lambda x: x + 1)
        f(torch.ones(1))
        made = interpreters.create()
        try:
            interpreters.run_string(made, "import frametap")
        except interpreters.RunFailedError as error:
            print(str(error), flush=True)  # each interpreter has a buffer of its own
        interpreters.run_string(made, "print([i for i in map(str, range(2))], flush=True)")
        interpreters.destroy(made)
        print(f(torch.ones(1)).item())
        """
    )
    assert done.returncode == 0, done.stderr
    assert "ImportError" in done.stdout and "interpreter" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["['0', '1']", "2.0"]


@pytest.mark.skipif(EAGER, reason="nothing of frametap is loaded")
@pytest.mark.parametrize(
    "end",
    [
        "pass",
        "sys.exit(0)",
        # (One that computes is ended by CPython in the middle of torch's C++ code, which plain torch does not survive.)
        "threading.Thread(target=sleeper, args=(torch.ones(2),), daemon=True).start(); asleep.wait(); time.sleep(0.1)",
        "atexit.register(lambda: f(torch.ones(2), 2))",
        "sys.keep = Keeper(); sys.modules['keeper'] = sys.keep",
        "f.itself = f; net = [f]; net.append(net)",
        "del f; sys.modules.pop('frametap')",
    ],
)
def test_the_process_ends(end: str) -> None:
    done = script(
        f"""
        import atexit, sys, threading, time, torch
        class Keeper:
            def __del__(self):
                y = f(torch.ones(2), 3)
        @frametap.compile
        def f(x, n):
            y = x * n
            print(end="")
            return y + 1
        asleep = threading.Event()
        @frametap.compile
        def sleeper(x):
            y = x + 1
            asleep.set()
            time.sleep(1000)
            return y
        for n in range(3):
            f(torch.ones(2), n)
        {end}
        """
    )
    said = done.stderr.splitlines()
    # CPython leaves the thread in the middle of its call, with all that the call holds
    if "daemon" in end:
        assert said.pop().startswith("frametap: left at exit, ")
    assert (done.returncode, said) == (0, [])


@pytest.mark.skipif(EAGER, reason="nothing of frametap is loaded")
def test_what_a_compiled_function_held_is_freed_beside_the_exception() -> None:
    """Freeing a code object may run Python code, which must not find the call's exception set."""
    done = script(
        """
        import ctypes, gc, os, torch, weakref
        released = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda extra: None)
        request = ctypes.pythonapi._PyEval_RequestCodeExtraIndex
        request.argtypes = [type(released)]
        request(released)
        frametap.compile(lambda x: x + 1)(torch.ones(2))

        def f():
            space = {}
            exec("def made(): pass", globals(), space)
            made = space["made"]
            del space
            ref = weakref.ref(made.__code__)
            del made
            gc.collect()
            raise ValueError

        try:
            frametap.compile(f)()
        except BaseException as error:
            print(repr(error), flush=True)
        os._exit(0)  # not with the callback still registered
        """
    )
    assert (done.stdout, done.stderr) == ("ValueError()\n", "")
