"""Numbers that are computed in many steps, and objects at the end of long paths: no walk may need the stack of C for each step."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fixtures.subject import EAGER

pytestmark = pytest.mark.skipif(EAGER, reason="nothing is recorded")

# The thread's stack is a sixteenth of the usual one, so that 5,000 steps show what 80,000 would.
NUMBERS = """
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

LIST = """
import itertools, threading
import torch
import frametap

class Node:
    def __init__(self, value, rest):
        self.value, self.rest = value, rest

def nodes(node):
    while node is not None:
        yield node
        node = node.rest

def f(x, node):
    total = 0.0
    while node is not None:
        total += node.value
        node = node.rest
    return x * total

def main():
    g = frametap.compile(f)
    x = torch.ones(2)
    first = None
    for i in range(10000):
        first = Node(float(i % 3), first)
    def check():
        for _ in range(2):
            assert torch.equal(g(x, first), f(x, first))
    check()
    for value in (7.0, 8.0, "drop"):
        at = next(itertools.islice(nodes(first), 9000, None))
        if value == "drop":
            at.rest = None
        else:
            at.value = value
        check()
    misses = [text.want for text in frametap.explain(g).miss_texts]
    assert misses == ["== 0.0", "type(Node) watched"], misses
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
    _succeeds(NUMBERS.format(uses=uses))


def test_list() -> None:
    _succeeds(LIST)


def _succeeds(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
