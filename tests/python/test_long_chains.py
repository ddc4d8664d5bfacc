"""Numbers that are computed in many steps: no walk through them may need the stack of C for each step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fixtures.subject import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is recorded")

# The thread's stack is a sixteenth of the usual one, so that 5,000 steps show what 80,000 would.
PROGRAM = """
import functools, threading
import torch
import frametap

@functools.lru_cache
def scale(n):
    return n + 1

def f(x):
    n = x.shape[0]
    for _ in range(5000):
        n = n * 3 % 7 + 1
    {uses}

def main():
    g = frametap.compile(f)
    for size in (3, 4, 3, 5):
        x = torch.ones(size)
        assert repr(g(x)) == repr(f(x)), size
    print("same")

threading.stack_size(512 << 10)
thread = threading.Thread(target=main)
thread.start()
thread.join()
"""


@pytest.mark.parametrize(
    "uses",
    [
        "return x * 2 if n > 5 else x",
        "return x if n == 3 else -x",
        "return x * scale(n)",
        "return x * torch.div(torch.tensor(n), 2, rounding_mode='floor').item()",
        "return x * len(str(n))",
    ],
)
def test_numbers(uses: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(uses=uses)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
