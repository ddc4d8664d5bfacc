"""A process ends while a captured call is under way on another thread.

No step runs an op: where a thread is in one, torch ends the process by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from fixtures.subject import EAGER

pytestmark = [] if not EAGER else [pytest.mark.skip(reason="asks about frametap's threads")]

PROGRAM = """
import threading, time, torch, frametap

class Waits(torch.nn.Module):
    def forward(self, x):
        while True:
            x = {step}
            time.sleep(0.001)

def waits(x):
    while True:
        x = {step}
        time.sleep(0.001)

target = frametap.compile({target})
threading.Thread(target=target, args=(torch.ones(2),), daemon=True).start()
time.sleep(0.3)
"""


def assert_ends_well(program: str) -> None:
    # The self-check would report the objects that the thread still holds.
    environment = {k: v for k, v in os.environ.items() if k != "FRAMETAP_SELF_CHECK"}
    ended = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("target", ["waits", "Waits()"])
@pytest.mark.parametrize("step", ["x", "sorted([x], key=lambda t: 1)[0]"])
def test_daemon_thread_in_a_captured_call(target: str, step: str) -> None:
    """CPython ends the thread in the middle of the call; the process must not die of it."""
    for _ in range(2):
        assert_ends_well(PROGRAM.format(target=target, step=step))


BACKEND = """
import threading, time, torch, frametap

def backend(gm, examples):
    results = []
    def run(*args):
        time.sleep(0.001)
        if not results:  # once: torch's own bindings end the process if a thread is stopped in one
            results.append(gm.forward(*args))
        return results[0]
    return run

target = frametap.compile(lambda x: x.view(-1), backend=backend)

def loop():
    x = torch.ones(2)
    while True:
        target(x)

threading.Thread(target=loop, daemon=True).start()
time.sleep(0.5)
"""


def test_daemon_thread_in_the_code_of_a_backend() -> None:
    """A replay without a frame runs it: no hook of ours stops the thread there."""
    assert_ends_well(BACKEND)
