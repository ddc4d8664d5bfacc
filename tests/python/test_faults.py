"""Exceptions of replays: the program's go to the program. All others are reported and counted, and their graphs are
given up.
"""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import traceback
import warnings

import pytest
import torch
from torch import nn

import frametap
from frametap import BackendError, FrametapWarning

FAILED = ValueError("kernel failed")


def failing(when=lambda n: True, error=FAILED, after=None):
    """A backend whose code raises at the calls for which `when` says so."""

    def backend(gm, examples):
        def run(*args):
            run.calls += 1
            if after is not None:
                after(gm, args)
            if when(run.calls):
                raise copy.copy(error)  # the traceback of one object would keep every caller alive
            return gm.forward(*args)

        run.calls = 0
        backend.runs.append(run)
        return run

    backend.runs = []
    return backend


def f(x):
    return torch.relu(x * 2) + 1


def warned(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [str(w.message) for w in caught if issubclass(w.category, FrametapWarning)]


def test_a_fault_is_said_counted_and_given_up_after_three():
    backend = failing()
    g = frametap.compile(f, backend=backend)
    g(torch.ones(2))
    said = []
    for _ in range(6):
        result, texts = warned(lambda: g(torch.ones(2)))
        said += texts
        assert result.tolist() == [3, 3]
    assert len(said) == 1
    assert "'backend' raised ValueError: kernel failed" in said[0]
    assert backend.runs[0].calls == 3
    report = frametap.explain(g)
    assert report.faults == 3
    assert len(report.fault_reports) == 3
    assert report.aborts[0].reason == "replay_failed"
    assert "3 faults" in str(report)
    assert "ValueError: kernel failed" in str(report)
    assert "backend='native'" in str(report)
    assert report.hits == 0


def test_another_segment_is_not_given_up_with_it():
    backend = failing()
    g = frametap.compile(f, backend=backend, dynamic=False)
    for n in (2, 3):
        for _ in range(5):
            warned(lambda n=n: g(torch.ones(n)))
    assert [run.calls for run in backend.runs] == [3, 3]
    assert frametap.explain(g).faults == 6


def test_one_fault_does_not_end_it():
    backend = failing(lambda n: n == 2)
    g = frametap.compile(f, backend=backend)
    for _ in range(6):
        result, _ = warned(lambda: g(torch.ones(2)))
        assert result.tolist() == [3, 3]
    assert frametap.explain(g).hits == 4
    assert frametap.explain(g).faults == 1


def test_strict_raises():
    g = frametap.compile(f, backend=failing(), options={"strict": True})
    g(torch.ones(2))
    for _ in range(5):
        with pytest.raises(BackendError, match="ValueError: kernel failed") as raised:
            g(torch.ones(2))
        assert isinstance(raised.value.__cause__, ValueError)
    assert frametap.explain(g).faults == 5


def test_a_warning_that_is_an_error_is_raised():
    g = frametap.compile(f, backend=failing())
    g(torch.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(FrametapWarning, match="kernel failed"):
            g(torch.ones(2))
    assert warned(lambda: g(torch.ones(2)))[0].tolist() == [3, 3]


def pick(x, i):
    return x[i] * 2


@pytest.mark.parametrize(
    "backend", ["native", "reference", "eager", "aot_eager", failing(lambda n: False)]
)
def test_the_programs_exception_is_the_programs(backend):
    g = frametap.compile(pick, backend=backend)
    x = torch.arange(3.0)
    for _ in range(3):
        g(x, torch.tensor([0, 1]))
    for _ in range(6):
        with pytest.raises(IndexError):
            warned(lambda: g(x, torch.tensor([0, 7])))
    result, said = warned(lambda: g(x, torch.tensor([2, 0])))
    assert result.tolist() == [4, 0]
    assert said == []
    report = frametap.explain(g)
    assert report.faults == 0
    assert report.aborts == []


def caught(x, i):
    try:
        return x[i] * 2
    except IndexError:
        return x


@pytest.mark.parametrize("backend", ["native", "reference", "eager"])
def test_an_exception_that_the_program_catches_is_no_fault(backend):
    g = frametap.compile(caught, backend=backend)
    x = torch.arange(3.0)
    for _ in range(3):
        g(x, torch.tensor([0, 1]))
    for _ in range(5):
        result, said = warned(lambda: g(x, torch.tensor([0, 7])))
        assert result is x
        assert said == []
    assert frametap.explain(g).faults == 0
    assert g(x, torch.tensor([1])).tolist() == [2]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=["interrupt", "exit"])
def test_what_interrupts_the_program_goes_to_it(error):
    g = frametap.compile(f, backend=failing(error=error))
    g(torch.ones(2))
    for _ in range(4):
        with pytest.raises(type(error)):
            g(torch.ones(2))
    assert frametap.explain(g).faults == 0


@pytest.mark.parametrize("error", [MemoryError(), RecursionError(), torch.OutOfMemoryError("full")])
def test_want_of_memory_or_stack_is_no_fault(error):
    g = frametap.compile(f, backend=failing(error=error))
    for _ in range(5):
        result, said = warned(lambda: g(torch.ones(2)))
        assert result.tolist() == [3, 3]
        assert said == []
    assert frametap.explain(g).faults == 0


class Broken(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_an_exception_without_words():
    g = frametap.compile(f, backend=failing(error=Broken()))
    g(torch.ones(2))
    result, said = warned(lambda: g(torch.ones(2)))
    assert result.tolist() == [3, 3]
    assert "Broken" in said[0]


def test_random_numbers_are_drawn_once():
    def noisy(x):
        return x + torch.rand(2)

    def draw(gm, args):
        torch.rand(5)

    g = frametap.compile(noisy, backend=failing(after=draw))
    g(torch.ones(2))
    for seed in range(5):
        torch.manual_seed(seed)
        want = noisy(torch.ones(2)), torch.get_rng_state()
        torch.manual_seed(seed)
        try:
            got, _ = warned(lambda: g(torch.ones(2)))
        except BackendError:
            continue  # where the draws cannot be taken back
        assert torch.equal(got, want[0])
        assert torch.equal(torch.get_rng_state(), want[1])


def test_after_writes_it_is_an_error_that_says_so():
    bn = nn.BatchNorm1d(2)
    g = frametap.compile(
        bn, backend=failing(lambda n: n > 2, after=lambda gm, args: bn.running_mean.add_(1))
    )
    x = torch.randn(4, 2)
    for _ in range(3):
        g(x)
    with pytest.raises(BackendError, match="cannot be taken back") as raised:
        g(x)
    assert isinstance(raised.value.__cause__, ValueError)
    assert frametap.explain(g).faults == 1


def test_after_writes_it_is_given_up_after_three_too():
    def program(x):
        x.add_(1)
        return x * 2

    backend = failing(after=lambda gm, args: gm.forward(*args))
    g = frametap.compile(program, backend=backend)
    g(torch.ones(2))
    for _ in range(3):
        with pytest.raises(BackendError, match="cannot be taken back"):
            g(torch.ones(2))
    for _ in range(2):
        assert torch.equal(g(torch.ones(2)), torch.full((2,), 4.0))
    assert frametap.explain(g).faults == 3


@pytest.mark.parametrize(
    ("results", "words"),
    [
        (lambda x: (x, x), "gave 2 results, the graph has 1"),
        (lambda x: (), "gave 0 results, the graph has 1"),
        (lambda x: None, "'tensor' expected, got NoneType"),
        (lambda x: ("text",), "'tensor' expected, got str"),
        (lambda x: {"a": x}, "'tensor' expected, got dict"),
        (lambda x: (v for v in [x]), "'tensor' expected, got generator"),
        (lambda x: (3.0,), "'tensor' expected, got float"),
        (lambda x: (torch.ones(5),), r"f32\[2\] expected, got f32\[5\]"),
        (lambda x: (torch.ones(2, 1),), r"f32\[2\] expected, got f32\[2, 1\]"),
        (lambda x: (torch.ones(2, dtype=torch.float64),), r"f32\[2\] expected, got f64\[2\]"),
        (lambda x: (torch.ones(2, device="meta"),), r"f32\[2\] expected, got f32\[2\] meta"),
    ],
)
def test_wrong_results_are_errors_at_the_first_run(results, words):
    def wrong(gm, examples):
        return lambda *args: results(*args)

    g = frametap.compile(f, backend=wrong)
    g(torch.ones(2))
    for _ in range(4):
        with pytest.raises(BackendError, match=words) as raised:
            g(torch.ones(2))
        assert "'wrong'" in str(raised.value)


def test_sizes_that_follow_from_elements_are_not_compared():
    def masked(x):
        return x * 2, torch.bincount(x.long())

    g = frametap.compile(masked, backend=lambda gm, examples: gm.forward)
    for top in (2, 3, 5, 9):
        assert g(torch.tensor([0.0, top]))[1].numel() == top + 1


def test_a_backend_that_cannot_compile_is_an_error_at_the_first_call():
    def broken(gm, examples):
        raise KeyError("lowering")

    g = frametap.compile(f, backend=broken)
    with pytest.raises(
        BackendError, match="'broken' could not compile a graph: KeyError: 'lowering'"
    ) as raised:
        g(torch.ones(2))
    assert isinstance(raised.value.__cause__, KeyError)
    assert traceback.extract_tb(raised.value.__cause__.__traceback__)[-1].name == "broken"
    line = f.__code__.co_firstlineno + 1
    assert raised.value.__notes__ == [f"the graph of f that begins at {__file__}:{line}"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strct": True}, "unknown option 'strct'; did you mean 'strict'"),
        ({"segment_limits": 3}, "did you mean 'segment_limit'"),
        ({"strict": 1}, "strict must be True or False"),
        ({1: 1}, "unknown option 1; there is by_identity, segment_limit, strict"),
    ],
)
def test_misspelt_options(options, words):
    with pytest.raises(frametap.FrametapError, match=words):
        frametap.compile(f, options=options)


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_numbers_that_need_more_than_64_bits_are_no_fault(backend):
    def floats(x, a):
        b = a * 2.0
        return x * 2, int(b), int(b) % 7

    def ints(x, a, b):
        return x * 2, a * b

    rows = [
        (floats, [(2.5,), (3.5,), (4.5,), (1e30,), (1e300,), (1e30,), (1e30,), (5.5,)]),
        (ints, [(2, 3), (4, 5), (6, 7), (2**40, 2**40), (2**40, 2**41), (2**40, 2**42), (8, 9)]),
    ]
    for f, calls in rows:
        captured = frametap.compile(f, backend=backend, options={"strict": True})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for numbers in calls:
                assert captured(torch.ones(1), *numbers)[1:] == f(torch.ones(1), *numbers)[1:]
        assert frametap.explain(captured).hits >= 3, "the graph is of use afterwards, too"


def test_the_log_has_it():
    program = (
        "import torch, frametap\n"
        "def bad(gm, ex):\n    def run(*a): raise ValueError('kernel failed')\n    return run\n"
        "g = frametap.compile(lambda x: x + 1, backend=bad)\n"
        "for _ in range(5): g(torch.ones(2))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FRAMETAP_LOG": "faults,aborts"},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in run.stderr.splitlines() if line.startswith("frametap: ")]
    kinds = [line.split()[1] for line in lines]
    assert [kind for kind in kinds if kind != "left"] == ["fault", "fault", "fault", "abort"]
    assert "ValueError: kernel failed" in lines[0]
    assert run.stderr.count("FrametapWarning") == 1


STATES = {
    "grad": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "deterministic": (
        lambda: torch.use_deterministic_algorithms(True),
        torch.are_deterministic_algorithms_enabled,
    ),
    "anomaly": (lambda: torch.autograd.set_detect_anomaly(True), torch.is_anomaly_enabled),
    "autocast": (
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.is_autocast_enabled("cpu"),
    ),
    "autocast dtype": (
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.get_autocast_dtype("cpu"),
    ),
    "autocast cache": (
        lambda: torch.set_autocast_cache_enabled(False),
        torch.is_autocast_cache_enabled,
    ),
    "inference": (
        lambda: torch.autograd.grad_mode._enter_inference_mode(True),
        torch.is_inference_mode_enabled,
    ),
    "functorch": (
        lambda: torch._C._functorch._vmap_increment_nesting(2, "error"),
        torch._C._functorch.maybe_current_level,
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_thread_state_is_as_before_where_a_backend_fails(name):
    change, read = STATES[name]
    before = read()

    def switch(gm, args):
        switch.kept = change()

    g = frametap.compile(f, backend=failing(after=switch))
    g(torch.ones(2))
    for _ in range(3):
        assert warned(lambda: g(torch.ones(2)))[0].tolist() == [3, 3]
        assert read() == before
    switch.kept = None
    gc.collect()
    assert read() == before


def in_modes(w, i):
    with torch.no_grad():
        a = w * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            b = a @ a
            with torch.inference_mode():
                c = w[i] * 2
        d = w[i] * b[0, 0]
    return a.sum() + c.sum() + d.sum()


def no_grad(w, i):
    with torch.no_grad():
        return w[i] * 2


def enabled(w, i):
    with torch.enable_grad():
        return w[i] * 2


def inference(w, i):
    with torch.inference_mode():
        return (w[i] * 2).sum().clone()


def cast(w, i):
    with torch.autocast("cpu"):
        return (w @ w)[i]


def world():
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
    )


@pytest.mark.parametrize(
    "backend", ["native", "reference", "eager", "aot_eager", failing(lambda n: False)]
)
@pytest.mark.parametrize("program", [no_grad, enabled, inference, cast, in_modes])
@pytest.mark.parametrize("outside", [True, False], ids=["grad", "no_grad"])
def test_thread_state_after_an_op_that_raises(program, backend, outside):
    w = torch.ones(3, 3)
    g = frametap.compile(program, backend=backend)
    with torch.set_grad_enabled(outside):
        before = world()
        for _ in range(2):
            g(w, torch.tensor([0, 1]))
        for _ in range(3):
            with pytest.raises(IndexError):
                g(w, torch.tensor([0, 7]))
            assert world() == before
            gc.collect()
            assert world() == before
        g(w, torch.tensor([0, 1]))
    assert frametap.explain(g).faults == 0


def test_W1_sizes_for_which_the_program_raises_cannot_be_compiled() -> None:
    """Under open sizes a backend compiles in a replay, where the op raises."""

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        return x.reshape(nn.functional.pad(x, (0, n % 3)).shape)

    compiled = frametap.compile(f, backend="aot_eager", dynamic=True)
    for n in (3, 6, 3):
        assert compiled(torch.ones(2, 3), n).shape == (2, 3)
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"shape '\[2, 4\]' is invalid for input of size 6"):
            compiled(torch.ones(2, 3), 1)
    assert compiled(torch.ones(2, 3), 9).shape == (2, 3)
