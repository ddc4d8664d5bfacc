"""Every program of this folder, captured and plain, on each backend that must not change results."""

from __future__ import annotations

import pytest

from fixtures.subject import own_faults

from .backends import NOT_COMPARED, cases, compare_under
from .harness import Difference, Program, all_programs, compare

PROGRAMS = {program.name: program for program in all_programs()}


@cases(list(PROGRAMS), ["native", "reference"])
def test_same(name: str, backend: str) -> None:
    plain_run, captured_run = compare_under(backend, PROGRAMS[name])
    # A graph of torch's compilers may raise where the program does not.
    if backend not in NOT_COMPARED:
        made = [f for f in captured_run.captured if f is not None]
        assert [fault for f in made for fault in own_faults(f)] == []
    plain_run.close()
    captured_run.close()


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 120


SEES = {
    "a value": ("def f(x):\n    return x + 1", "def f(x):\n    return x + 2"),
    "a type": ("def f(x):\n    return [x]", "def f(x):\n    return (x,)"),
    "an alias": ("def f(x):\n    return x", "def f(x):\n    return x.clone()"),
    "a mutation": ("def f(x):\n    return x.add(1)", "def f(x):\n    return x.add_(1).clone()"),
    "printing": ("def f(x):\n    print(1)", "def f(x):\n    pass"),
    "a line": ("def f(x):\n    raise ValueError", "def f(x):\n\n    raise ValueError"),
    "a global": ("n = 0\ndef f(x):\n    pass", "n = 0\ndef f(x):\n    global n; n += 1"),
    "random state": ("def f(x):\n    pass", "def f(x):\n    torch.rand(1); return None"),
    "a gradient": (
        "def f(x):\n    return x.requires_grad_().sum()",
        "def f(x):\n    return x.requires_grad_().sum().detach()",
    ),
    "key order": ("def f(x):\n    return {1: 1, 2: 2}", "def f(x):\n    return {2: 2, 1: 1}"),
    "an attribute": (
        "class B: pass\nb = B()\ndef f(x):\n    pass",
        "def f(x):\n    b.n = 1",
    ),
    "grad mode": ("def f(x):\n    pass", "def f(x):\n    torch.set_grad_enabled(False)"),
    "a stride": (
        "def f(x):\n    return torch.ones(1, 2)",
        "def f(x):\n    return torch.ones(2, 1).t()",
    ),
    "a view": ("def f(x):\n    return x[:1]", "def f(x):\n    return x[:1].clone()"),
    "a parameter": (
        "m = nn.Linear(1, 1)\ndef f(x):\n    pass",
        "def f(x):\n    m.weight.data.zero_()",
    ),
    "a parameter's gradient": (
        "m = nn.Linear(1, 1)\ndef f(x):\n    pass",
        "def f(x):\n    m(x[:1]).backward()",
    ),
    "training mode": ("m = nn.ReLU()\ndef f(x):\n    pass", "def f(x):\n    m.eval()"),
    "an exception's text": (
        "def f(x):\n    raise ValueError(1)",
        "def f(x):\n    raise ValueError(2)",
    ),
    "an exception's cause": (
        "def f(x):\n    raise ValueError(1)",
        "def f(x):\n    raise ValueError(1) from KeyError(2)",
    ),
    "a closure": (
        "def make():\n    n = 0\n    def f(x):\n        return n\n    return f\nf = make()",
        "f.__closure__[0].cell_contents = 1\ng = f\ndef f(x):\n    return g(x)",
    ),
    "a zero's sign": ("def f(x):\n    return 0.0", "def f(x):\n    return -0.0"),
}


@pytest.mark.parametrize("what", SEES)
def test_the_harness_sees(what: str) -> None:
    """A harness that never complains proves nothing: here the second run executes another program."""
    one, other = SEES[what]
    call = "f(ones(2))" + ("  # raises ValueError" if "raise" in one else "")
    programs = [Program(what, "same.txt", code, 1, call, 9) for code in (one, other)]

    def wrong(f: object, **_: object) -> object:
        names = f.__globals__  # type: ignore[attr-defined]
        exec(compile(programs[1].code, "same.txt", "exec"), names)  # noqa: S102 - a test program
        return names["f"]

    with pytest.raises(Difference):
        compare(programs[0], wrong)
