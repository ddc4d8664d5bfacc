"""Backends (GraphModule, example_inputs) -> callable. P1–P4 are the laws of _callable.py."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import frametap
from frametap import _C
from frametap._backend_names import resolve_backend
from frametap._callable import MAX_VARIANTS
from frametap._errors import BackendError

TRAIN = """
graph (%x : f32[8, 4], %w : f32[6, 4], %b : f32[6], %s : f32[6], %v : f32[6]) {
  %h = aten.linear(%x, %w, %b)
  %n = aten.batch_norm(%h, None, None, %s, %v, True, 0.1, 1e-05, False)
  %r = aten.relu(%n)
  %l = aten.sum(%r)
  return %l, %r
}
"""


def parameters() -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [
        torch.randn(8, 4),
        torch.randn(6, 4, requires_grad=True),
        torch.randn(6, requires_grad=True),
        torch.zeros(6),
        torch.ones(6),
    ]


def compiled(text: str, backend, examples=None) -> _C.Executable:
    return _C.compile(resolve_backend(backend), _C.parse_graph(text), examples)


@pytest.mark.parametrize("name", ["eager", "aot_eager", "inductor"])
def test_training_step_equals_the_reference(name):
    want, got = parameters(), parameters()
    expected = compiled(TRAIN, "reference").run(want)
    results = compiled(TRAIN, name).run(got)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if name == "inductor" else {"rtol": 0, "atol": 0}
    for a, b in zip(results, expected, strict=True):
        torch.testing.assert_close(a, b, **tolerance)
    (expected[0] + expected[1].square().sum()).backward()
    (results[0] + results[1].square().sum()).backward()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, **tolerance)  # batch norm's statistics were written
    for i in (1, 2):
        torch.testing.assert_close(got[i].grad, want[i].grad, rtol=1e-4, atol=1e-4)


def test_inputs_may_have_the_names_of_keywords():
    text = "graph (%in : f32[2], %class : f32[2]) {\n  %0 = aten.mul.Tensor(%in, %class)\n  return %0\n}\n"
    (result,) = compiled(text, "eager").run([torch.ones(2), torch.full((2,), 3.0)])
    assert result.tolist() == [3, 3]


def test_examples_come_early_or_at_the_first_run():
    seen = []

    def backend(gm, examples):
        seen.append([tuple(x.shape) for x in examples])
        return gm.forward

    run = compiled(TRAIN, backend)
    assert seen == []
    run.run(parameters())
    run.run(parameters())
    assert seen == [[(8, 4), (6, 4), (6,), (6,), (6,)]]
    compiled(TRAIN, backend, parameters())
    assert len(seen) == 2


SCALED = """
graph (%x : f32[3], %n : int, %k : float) {
  %m : int = int.add(%n, 1)
  %0 = aten.mul.Tensor(%x, %k)
  return %0, %m
}
"""


def test_examples_have_the_metadata_of_the_entry():
    """The op that ends the graph has run before the graph is compiled."""

    def f(x):
        y = x.view(-1) * 2
        x.transpose_(0, 1)
        return y, x.shape

    seen = []

    def backend(gm, examples):
        seen.extend((e.shape, e.stride(), e.requires_grad) for e in examples)
        return gm.forward

    frametap.compile(f, backend=backend)(torch.ones(2, 3))
    assert seen == [((2, 3), (3, 1), False)]
    g = frametap.compile(f, backend="aot_eager")
    for _ in range(3):
        y, shape = g(torch.ones(2, 3))
        assert torch.equal(y, torch.full((6,), 2.0))
        assert shape == (3, 2)


def test_P1_a_variant_for_each_number_that_an_op_takes():
    compiles = []

    def backend(gm, examples):
        compiles.append(len(examples))
        return gm.forward

    run = compiled(SCALED, backend)
    for k in (2.0, 3.0, 2.0, -0.0, 0.0):
        got = run.run([torch.ones(3), 7, k])
        assert got[0].tolist() == [k] * 3
        assert got[1] == 8
    assert compiles == [1, 1, 1, 1]
    assert str(run.run([torch.ones(3), 1, -0.0])[0][0].item()) == "-0.0"


def test_P2_a_counter_makes_no_variant():
    compiles = []

    def backend(gm, examples):
        compiles.append(1)
        return gm.forward

    run = compiled(SCALED, backend)
    assert [run.run([torch.ones(3), n, 1.0])[1] for n in range(20)] == list(range(1, 21))
    assert compiles == [1]


def test_P4_too_many_variants_run_uncompiled(caplog):
    compiles = []

    def backend(gm, examples):
        compiles.append(1)
        return gm.forward

    run = compiled(SCALED, backend)
    with caplog.at_level(logging.WARNING, "frametap"):
        for n in range(MAX_VARIANTS + 5):
            assert run.run([torch.ones(3), n, float(n)])[0].tolist() == [float(n)] * 3
    assert len(compiles) == MAX_VARIANTS
    assert len(caplog.records) == 1


def test_P1_shared_memory_of_written_inputs():
    text = """
graph (%x : f32[4], %y : f32[4]) {
  %0 = aten.add_.Tensor(%x, 1)
  %1 = aten.mul.Tensor(%y, 2)
  return %1
}
"""
    run = compiled(text, "aot_eager")
    x = torch.zeros(4)
    assert run.run([torch.zeros(4), torch.zeros(4)])[0].tolist() == [0.0] * 4
    assert run.run([x, x])[0].tolist() == [2.0] * 4
    base = torch.zeros(5)
    assert run.run([base[:4], base[1:]])[0].tolist() == [2.0, 2.0, 2.0, 0.0]
    assert run.run([torch.zeros(4), torch.zeros(4)])[0].tolist() == [0.0] * 4


def test_P1_dropout_that_gives_its_argument_back():
    text = """
graph (%x : f32[4]) {
  %0 = aten.dropout(%x, 0.5, False)
  %1 = aten.add_.Tensor(%0, 1)
  %2 = aten.dropout(%1, 0.0, True)
  %3 = aten.add_.Tensor(%2, 1)
  return %3
}
"""
    x = torch.zeros(4)
    assert compiled(text, "aot_eager").run([x])[0].tolist() == [2.0] * 4
    assert x.tolist() == [2.0] * 4


def test_inductor_numbers_views_and_random_numbers():
    text = """
graph (%x : f32[16, 8], %k : float) {
  %0 = aten.t(%x)
  %1 = aten.dropout(%0, 0.5, True)
  %2 = aten.mul.Tensor(%1, %k)
  return %2
}
"""
    x = torch.randn(8, 16).t()
    run = compiled(text, "inductor")
    for k in (2.0, 3.0):
        torch.manual_seed(3)
        want = compiled(text, "reference").run([x, k])[0]
        torch.manual_seed(3)
        got = run.run([x, k])[0]
        torch.testing.assert_close(got, want)


def test_a_second_backward_is_possible():
    inputs = parameters()
    loss = compiled(TRAIN, "aot_eager").run(inputs)[0]
    loss.backward(retain_graph=True)
    once = inputs[1].grad.clone()
    loss.backward()
    torch.testing.assert_close(inputs[1].grad, 2 * once)


ONE = """
graph (%x : f32[2]) {
  %y : f32[2] = aten.neg(%x)
  return %y
}
"""


def test_one_result_need_not_be_in_a_tuple():
    run = compiled(ONE, lambda gm, examples: lambda x: -x)
    assert run.run([torch.ones(2)])[0].tolist() == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda x: (x, x), "gave 2 results, the graph has 1: %y"),
        (lambda x: (), "gave 0 results"),
        (lambda x: ("no",), "wrong result 0 .%y.: .*tensor.* expected, got str"),
        (3, "returned int; it must return a callable"),
    ],
)
def test_wrong_results_are_told(returned, words):
    with pytest.raises(BackendError, match=words):
        compiled(ONE, lambda gm, examples: returned).run([torch.ones(2)])


def test_a_backend_that_raises_is_named_and_is_the_cause():
    def faulty(gm, examples):
        raise TypeError("cannot do that")

    with pytest.raises(
        BackendError, match="'faulty' could not compile .*TypeError: cannot do that"
    ) as e:
        compiled(ONE, faulty, [torch.ones(2)])
    assert isinstance(e.value.__cause__, TypeError)
    assert traceback.extract_tb(e.value.__cause__.__traceback__)[-1].name == "faulty"
    with pytest.raises(BackendError, match="'faulty' could not compile .*TypeError: cannot") as e:
        compiled(ONE, faulty).run([torch.ones(2)])
    assert isinstance(e.value.__cause__, TypeError)


def test_exceptions_of_ops_pass_through():
    text = "graph (%x : f32[2], %y : f32[2]) {\n  %0 = aten.add.Tensor(%x, %y)\n  return %0\n}\n"
    for name in ("reference", "native", "eager"):
        with pytest.raises(RuntimeError, match="must match the size") as e:
            compiled(text, name).run([torch.ones(2), torch.ones(3)])
        assert type(e.value) is RuntimeError
        assert "C++" not in str(e.value)


def test_unknown_names_give_the_nearest():
    with pytest.raises(
        BackendError, match="no backend is called 'inducter'; did you mean 'inductor'"
    ):
        resolve_backend("inducter")
    with pytest.raises(BackendError, match="got int"):
        resolve_backend(3)
    assert resolve_backend("native").name == "native"


def test_wrong_inputs_are_told():
    with pytest.raises(BackendError, match="takes 1 inputs, 2 were given"):
        compiled(ONE, "reference").run([torch.ones(2), 1])
    with pytest.raises(BackendError, match="input %x: .*'tensor' expected, got int"):
        compiled(ONE, "reference").run([1])


# -- open sizes (P3) --


class Counting:
    """A backend, and how often it was asked."""

    def __init__(self, name: str) -> None:
        import torch._dynamo

        self._backend = torch._dynamo.lookup_backend(name)
        self.examples: list[list[Any]] = []

    def __call__(self, module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        self.examples.append(examples)
        return self._backend(module, examples)


def halves(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0] // 2, -1) * max(x.shape[0], 3)


def test_P3_one_compile_for_many_sizes():
    backend = Counting("aot_eager")
    captured = frametap.compile(halves, backend=backend, dynamic=True)
    for n in (4, 6, 10, 4):
        x = torch.randn(n, 3)
        assert torch.equal(captured(x), halves(x))
    assert frametap.explain(captured).recordings == 1
    assert len(backend.examples) == 1
    (example,) = backend.examples[0]
    assert isinstance(example.shape[0], torch.SymInt)


def test_P3_conditions_that_do_not_hold_give_another_variant():
    backend = Counting("aot_eager")
    captured = frametap.compile(halves, backend=backend, dynamic=True)
    for n in (4, 2, 2, 6):  # 2 // 2 is one: symbols stand for more than that
        x = torch.randn(n, 3)
        assert torch.equal(captured(x), halves(x))
    assert len(backend.examples) == 2


def test_without_dynamic_the_first_sizes_are_constants():
    backend = Counting("aot_eager")
    captured = frametap.compile(halves, backend=backend)
    for n in (4, 6, 8, 10):
        x = torch.randn(n, 3)
        assert torch.equal(captured(x), halves(x))
    shapes = [[type(n) for n in example.shape] for (example,) in backend.examples]
    assert shapes == [[int, int], [torch.SymInt, torch.SymInt]]
    never = frametap.compile(halves, backend=Counting("aot_eager"), dynamic=False)
    for n in (4, 6, 8):
        never(torch.randn(n, 3))
    assert frametap.explain(never).recordings == 3


def test_P3_sizes_of_parameters_are_constants_and_gradients_are_right():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
    backend = Counting("aot_eager")
    captured = frametap.compile(model, backend=backend, dynamic=True)
    for n in (4, 7, 5):
        x = torch.randn(n, 3)
        got = torch.autograd.grad(captured(x).square().sum(), model.parameters())
        want = torch.autograd.grad(model(x).square().sum(), model.parameters())
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b)
    assert len(backend.examples) == 1
    symbols = [sum(isinstance(n, torch.SymInt) for n in x.shape) for x in backend.examples[0]]
    assert sorted(symbols) == [0, 0, 0, 0, 2]


def test_P3_numbers_are_symbols_or_constants():
    def f(x: torch.Tensor, n: int, s: float) -> tuple[torch.Tensor, int]:
        return x.new_zeros(n, x.shape[0]) + s, n * 2

    backend = Counting("aot_eager")
    captured = frametap.compile(f, backend=backend, dynamic=True)
    for n in (3, 5, 9):
        got, want = captured(torch.ones(n + 1), n, 0.5), f(torch.ones(n + 1), n, 0.5)
        assert torch.equal(got[0], want[0])
        assert got[1] == want[1]
        assert type(got[1]) is int
    assert len(backend.examples) == 1
    captured(torch.ones(4), 3, 1.5)
    assert len(backend.examples) == 1
    assert frametap.explain(captured).recordings == 1


def float_chain(x: torch.Tensor, s: float) -> tuple[torch.Tensor, torch.Tensor, float]:
    y = x.clone()
    y *= s
    y.add_(s * 2 + 1)
    z = 1.5 * s - (s * x + y) / s
    return z, x * s - (s + y), s * 3


FLOATS = [0.5, -0.0, 1e39, 1e-300, 3.1e-39, float("inf"), float("nan"), 1 / 3, 16777217.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_P3_floats_are_tensors_where_no_op_can_tell(dtype):
    backend = Counting("aot_eager")
    captured = frametap.compile(float_chain, backend=backend, dynamic=True)
    x = torch.randn(3, 2).to(dtype)
    for s in FLOATS:
        got, want = captured(x, s), float_chain(x, s)
        for a, b in zip(got[:2], want[:2], strict=True):
            assert a.dtype == b.dtype
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        assert repr(got[2]) == repr(want[2])
    assert len(backend.examples) == 1
    assert [t.dtype for t in backend.examples[0][1:]] == [torch.float64] * 3


@pytest.mark.parametrize(
    "x",
    [
        torch.tensor(2.0),
        torch.arange(3),
        torch.ones(2).half(),
        torch.ones(2, dtype=torch.complex64),
    ],
    ids=["no dimensions", "int", "half", "complex"],
)
def test_P3_floats_are_constants_where_their_kind_counts(x):
    def f(x: torch.Tensor, s: float) -> torch.Tensor:
        return x * s

    backend = Counting("aot_eager")
    captured = frametap.compile(f, backend=backend, dynamic=True)
    for s in (0.1, 1 / 3):
        got, want = captured(x, s), f(x, s)
        assert got.dtype == want.dtype
        assert torch.equal(got, want)
    assert len(backend.examples) == 2


def test_P3_a_float_that_one_op_takes_as_such_is_a_constant():
    def f(x: torch.Tensor, s: float, t: float) -> torch.Tensor:
        return (x * s) ** s + t

    backend = Counting("aot_eager")
    captured = frametap.compile(f, backend=backend, dynamic=True)
    x = torch.rand(3)
    for s, t in ((2.0, 0.5), (2.0, 1.5), (3.0, 1.5), (3.0, 2.5)):
        assert torch.equal(captured(x, s, t), f(x, s, t))
    assert len(backend.examples) == 2


@pytest.mark.parametrize("numbers", [range(2, 22), [0.5 + i / 7 for i in range(20)]])
def test_a_number_that_has_changed_is_open_from_then_on(numbers):
    def f(x: torch.Tensor, n: float, m: int) -> torch.Tensor:
        return (x * n).relu() + x.shape[0] * m

    backend = Counting("aot_eager")
    captured = frametap.compile(f, backend=backend)
    grads = (False, True) if isinstance(numbers, range) else (False,)
    for n in numbers:
        for grad in grads:
            x = torch.randn(4, 3, requires_grad=grad)
            assert torch.equal(captured(x, n, 7), f(x, n, 7))
    assert frametap.explain(captured).recordings == 2 * len(grads)
    assert len(backend.examples) == 2 * len(grads)
    tensors = [t for given in backend.examples for t in given if isinstance(t, torch.Tensor)]
    assert not any(isinstance(size, torch.SymInt) for t in tensors for size in t.shape)
    names = [guard.source for guard in frametap.guards(captured) if guard.kind == "=="]
    assert "L.m" in names


def test_P3_a_backend_that_takes_no_symbols_gets_the_very_sizes(caplog):
    import torch._dynamo

    aot_eager = torch._dynamo.lookup_backend("aot_eager")

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        if any(isinstance(n, torch.SymInt) for x in examples for n in x.shape):
            raise NotImplementedError("no symbols here")
        return aot_eager(module, examples)

    captured = frametap.compile(halves, backend=backend, dynamic=True)
    with caplog.at_level(logging.WARNING, "frametap"):
        for n in (4, 6, 4):
            x = torch.randn(n, 3)
            assert torch.equal(captured(x), halves(x))
    assert "no symbols here" in caplog.text
    assert frametap.explain(captured).recordings == 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_a_graph_takes_for_granted_is_found_out(backend):
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.contiguous().view(-1) * x.shape[0]

    captured = frametap.compile(f, backend=backend, dynamic=True)
    other = torch.arange(12.0).view(3, 4).t()
    for x in (torch.randn(4, 3), torch.randn(6, 3), other, torch.randn(5, 3), other):
        assert torch.equal(captured(x), f(x))
    assert frametap.explain(captured).recordings == 3  # strides are guarded from then on


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_numbers_that_nobody_uses_raise_and_ints_do_not_overflow(backend):
    def unused(x: torch.Tensor, n: float) -> torch.Tensor:
        int(n)
        return x * 2

    def product(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int]:
        return x * (n * 2**40), n

    captured = frametap.compile(unused, backend=backend)
    for n in (2.5, 3.5, 4.5):
        assert torch.equal(captured(torch.ones(2), n), torch.full((2,), 2.0))
    with pytest.raises(OverflowError, match="cannot convert float infinity to integer"):
        captured(torch.ones(2), float("inf"))
    captured = frametap.compile(product, backend=backend)
    for n in (3, 2, 5):
        assert torch.equal(captured(torch.ones(2), n)[0], product(torch.ones(2), n)[0])
    with pytest.raises(OverflowError, match="int too big to convert"):
        captured(torch.ones(2), 2**40)
    assert frametap.explain(captured).hits >= 1


def test_patches_of_modules_while_compiling_are_no_changes():
    """Compilers replace torch.nn.Module.__call__ while they trace; guards on classes must not miss."""
    models = [torch.nn.Linear(3, 3) for _ in range(2)]
    captured = [frametap.compile(model, backend="aot_eager") for model in models]
    for _ in range(3):
        for model, f in zip(models, captured, strict=True):
            x = torch.randn(2, 3)
            assert torch.equal(f(x), model(x))
    assert [frametap.explain(f).recordings for f in captured] == [1, 1]


def test_what_compilers_import_is_seen_by_no_guard():
    """In a fresh process: imports register classes with abstract bases, on which isinstance depends."""
    program = """
import collections.abc, torch, frametap

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2 if isinstance(x, collections.abc.Sized) else x

captured = frametap.compile(Model(), backend="inductor")
for _ in range(3):
    captured(torch.ones(2))
print(frametap.explain(captured).recordings)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert run.stdout.split() == ["1"], run.stderr


def test_patches_that_stay_are_changes():
    class Model(torch.nn.Module):
        scale = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale

    model = Model()
    captured = frametap.compile(model)
    x = torch.ones(2)
    assert torch.equal(captured(x), x * 2)
    Model.scale = 3
    assert torch.equal(captured(x), x * 3)
    call = torch.nn.Module.__call__
    torch.nn.Module.__call__ = lambda *_: None
    torch.nn.Module.__call__ = call
    before = frametap.explain(captured).recordings
    assert torch.equal(captured(x), x * 3)
    assert frametap.explain(captured).recordings == before
    base = torch.nn.Module
    try:
        base.__call__ = lambda self, x: x * 7
        assert torch.equal(model(x), x * 7)
        assert torch.equal(captured(x), x * 7)
    finally:
        base.__call__ = call
    assert torch.equal(captured(x), x * 3)


def _behaving(**kinds: Any) -> Any:
    """A backend whose callable runs the graph module, and does what it should not."""

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        def run(*args: Any) -> Any:
            if "before" in kinds:
                kinds["before"](*args)
            results = gm(*args)
            return kinds["after"](results) if "after" in kinds else results

        return run

    return backend


@pytest.mark.parametrize(
    "switch",
    [
        lambda *_: torch.set_grad_enabled(False),
        lambda *_: torch.set_autocast_enabled("cpu", True),
        lambda *_: torch.set_default_dtype(torch.float64),
        lambda *_: torch.use_deterministic_algorithms(True),
    ],
)
def test_switches_that_a_backend_leaves_are_put_back(switch: Any) -> None:
    def state() -> tuple[Any, ...]:
        return (
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
        )

    f = frametap.compile(lambda x: x * 2, backend=_behaving(before=switch))
    want = state()
    for _ in range(3):
        f(torch.ones(2))
        assert state() == want


def test_a_result_of_another_class_is_refused() -> None:
    class Other(torch.Tensor):
        pass

    backend = _behaving(after=lambda results: tuple(t.as_subclass(Other) for t in results))
    f = frametap.compile(lambda x: x * 2, backend=backend)
    f(torch.ones(2))
    with pytest.raises(frametap.BackendError, match="got Other"):
        f(torch.ones(2))


def test_a_backend_that_writes_to_what_the_graph_reads_and_raises_is_refused() -> None:
    def write(*args: torch.Tensor) -> None:
        args[0].add_(1)
        raise RuntimeError("half way")

    f = frametap.compile(lambda x: x * 2, backend=_behaving(before=write))
    f(torch.ones(2))
    with pytest.raises(frametap.BackendError, match="half way, after it had written"):
        f(torch.ones(2))


def _mapped(change: Any) -> Any:
    def backend(module: Any, examples: list[Any]) -> Any:
        return lambda *inputs: tuple(change(result) for result in module(*inputs))

    return backend


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (torch.Tensor.double, r"f32\[\?, \?\] expected, got f64\[2, 3\]"),
        (lambda t: t.to("meta"), r"got f32\[2, 3\] meta"),
        (lambda t: t[None], r"got f32\[1, 2, 3\]"),
    ],
    ids=["dtype", "device", "rank"],
)
def test_wrong_results_of_open_sizes_are_told(change: Any, words: str) -> None:
    compiled = frametap.compile(lambda x: x * 2, backend=_mapped(change))
    compiled(torch.ones(2, 3))
    compiled(torch.ones(4, 3))  # the sizes are open from here on
    with pytest.raises(BackendError, match=words):
        compiled(torch.ones(2, 3))


def test_a_rank_that_follows_from_open_sizes_is_no_fault() -> None:
    compiled = frametap.compile(lambda x: (x * 2).squeeze(), backend=_mapped(lambda t: t))
    for size in (2, 4, 1, 2, 1):
        x = torch.ones(size, 3)
        assert torch.equal(compiled(x), (x * 2).squeeze())


def test_a_parameter_in_place_of_a_tensor_is_refused() -> None:
    compiled = frametap.compile(lambda x: x * 2, backend=_mapped(torch.nn.Parameter))
    compiled(torch.ones(2))
    with pytest.raises(BackendError, match=r"a torch.Tensor expected, got Parameter"):
        compiled(torch.ones(2))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_a_compilation_is_itself(interrupt: type[BaseException]) -> None:
    def backend(module: Any, examples: list[Any]) -> Any:
        raise interrupt

    compiled = frametap.compile(lambda x: x * 2, backend=backend)
    for _ in range(2):
        with pytest.raises(interrupt):
            compiled(torch.ones(2))


def _resized(x: torch.Tensor, n: int) -> tuple[Any, ...]:
    out = torch.zeros(n)
    torch.add(x, 1, out=out)
    return out.shape, out.numel(), out * 2, out.view(-1).shape


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("dynamic", [None, True])
def test_out_that_an_op_resizes_has_its_new_sizes(dynamic: bool | None) -> None:
    captured = frametap.compile(_resized, backend="aot_eager", dynamic=dynamic)
    for size, n in [(3, 3), (5, 3), (4, 0), (4, 4), (6, 2)]:
        for _ in range(2):
            want, got = _resized(torch.ones(size), n), captured(torch.ones(size), n)
            assert (got[0], got[1], got[3]) == (want[0], want[1], want[3])
            assert got[2].equal(want[2])


@pytest.mark.parametrize("dynamic", [None, True])
def test_P1_one_tensor_in_two_places_that_are_written(dynamic: bool | None) -> None:
    def f(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            a.mul_(2)
            b.add_(1)
        return w @ a

    captured = frametap.compile(f, backend="aot_eager", dynamic=dynamic)
    for is_one in (False, True, True, False, True):
        results = []
        for call in (f, captured):
            a, w = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
            b = a if is_one else torch.full((2, 2), 3.0, requires_grad=True)
            result = call(a, b, w)
            result.sum().backward()
            results.append([t.tolist() for t in (result, a, b, w, a.grad, w.grad)])
        assert results[0] == results[1]


@pytest.mark.parametrize("dynamic", [None, True])
def test_numbers_of_numpy_are_left_to_python(dynamic: bool | None) -> None:
    def f(x: torch.Tensor, n: Any) -> tuple[Any, ...]:
        return x * n, x.new_full((2,), n) + 1, n + 1, type(n)

    captured = frametap.compile(f, backend="aot_eager", dynamic=dynamic)
    for n in (np.int64(1), np.int64(1), np.int64(2), np.float64(0.5), 4, np.int32(3)):
        want, got = f(torch.ones(4), n), captured(torch.ones(4), n)
        assert want[0].equal(got[0]) and want[1].equal(got[1]) and want[2:] == got[2:]


def test_a_checkpoint_of_a_captured_function_recomputes_what_its_forward_saved() -> None:
    from torch.utils.checkpoint import checkpoint

    w = torch.randn(3, generator=torch.Generator().manual_seed(1)).requires_grad_()

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout((x * w).sin(), 0.5) * w

    captured = frametap.compile(block, backend="aot_eager")
    for _ in range(3):
        grads = []
        for call in (block, captured):
            torch.manual_seed(0)
            x = torch.ones(3, requires_grad=True)
            checkpoint(call, x, use_reentrant=False).sum().backward()
            grads.append((x.grad, w.grad))
            w.grad = None
        assert grads[0][0].equal(grads[1][0]) and grads[0][1].equal(grads[1][1])


@pytest.mark.parametrize("op", [torch.dropout, torch.feature_dropout, torch.alpha_dropout])
@pytest.mark.parametrize("dynamic", [None, True])
def test_dropout_draws_as_many_random_numbers_as_plain_python(
    op: Callable[..., torch.Tensor], dynamic: bool | None
) -> None:
    def f(x: torch.Tensor, p: float) -> tuple[torch.Tensor, torch.Tensor]:
        return op(x, p, True) + 1, torch.rand(2)

    captured = frametap.compile(f, backend="aot_eager", dynamic=dynamic)
    x = torch.tensor([[1.0, -1.0, float("nan")]], requires_grad=True)
    for p in (0.5, 0.2, 1.0, 1.0, 0.0, 0.0, 1.0):
        results = []
        for call in (f, captured):
            torch.manual_seed(0)
            dropped, drawn = call(x, p)
            (grad,) = torch.autograd.grad(dropped.sum(), x)
            results.append(str((dropped.tolist(), drawn.tolist(), grad.tolist())))
        assert results[0] == results[1]


def test_threads_compile_one_after_the_other() -> None:
    def f(x: torch.Tensor, k: int) -> torch.Tensor:
        return torch.layer_norm(x.sin() * k, (4,)) + x.shape[0]

    captured = frametap.compile(f, backend="aot_eager")
    errors: list[object] = []

    def work(seed: int) -> None:
        for i in range(40):
            x = torch.full((1 + (i + seed) % 5, 4), 0.5, requires_grad=i % 2 == 0)
            try:
                assert captured(x, i % 3).shape == x.shape
            except (BackendError, SystemError) as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_shared_memory_that_a_compiler_refuses_runs_uncompiled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    w = torch.ones(2, 2, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        w.data.mul_(2)
        return w @ x

    captured = frametap.compile(f, backend="aot_eager")
    results = []
    with caplog.at_level(logging.WARNING, "frametap"):
        for call in (f, captured):
            with torch.no_grad():
                w.fill_(1)
            results.append([call(x).tolist() for x in (torch.ones(2, 2), w.data, w.data, w)])
    assert results[0] == results[1]
    assert "share memory" in caplog.text


def test_a_module_that_runs_as_it_is_counts_writes_as_plain_python_does() -> None:
    def f(x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.zeros(2), torch.full((x.shape[0],), 3.0), torch.randn(2).add_(x)]

    captured = frametap.compile(f, backend="eager")
    for _ in range(3):
        assert [t._version for t in captured(torch.ones(2))] == [0, 0, 1]


def test_gradients_of_a_graph_that_begins_under_autocast_are_computed_without_it() -> None:
    layer = torch.nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            print(end="")  # ends the graph
            y = layer(x)
        return y.float() + layer(x)

    captured = frametap.compile(f, backend="aot_eager")
    for _ in range(3):
        grads = []
        for call in (f, captured):
            x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
            call(x).square().sum().backward()
            grads.append((x.grad, layer.weight.grad))
            layer.zero_grad()
        for want, got in zip(*grads, strict=True):
            assert torch.equal(want, got)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_recurrent_layers(kind: str, is_packed: bool) -> None:
    layer = getattr(torch.nn, kind)(2, 3, num_layers=2)

    def f(x: torch.Tensor) -> torch.Tensor:
        if is_packed:
            x = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]))
            return layer(x)[0].data
        return layer(x)[0]

    captured = frametap.compile(f, backend="aot_eager")
    for has_grad in (True, False, True):
        results = []
        for call in (f, captured):
            x = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))
            with torch.set_grad_enabled(has_grad):
                y = call(x)
            if has_grad:
                y.sum().backward()
            results.append([y, *(p.grad for p in layer.parameters() if has_grad)])
            layer.zero_grad()
        for want, got in zip(*results, strict=True):
            torch.testing.assert_close(got, want)


def test_sparse_tensors_are_left_to_python() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ y).relu() + y.to_sparse().to_dense()

    captured = frametap.compile(f, backend="aot_eager")
    for _ in range(3):
        for x in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr(), torch.eye(2)):
            assert torch.equal(captured(x, torch.ones(2, 2)), f(x, torch.ones(2, 2)))


def test_a_tensor_that_counts_as_a_number_runs_uncompiled() -> None:
    x = torch.ones(3, requires_grad=True)
    number = (x * 1.1).grad_fn._saved_other
    captured = frametap.compile(lambda n: n * 0.5, backend="aot_eager")
    for n in (number, number, torch.tensor(1.1, dtype=torch.float64), number, torch.tensor(1.1)):
        want, got = n * 0.5, captured(n)
        assert (got.dtype, got.item()) == (want.dtype, want.item())


def test_a_view_of_a_tensor_without_memory_raises() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x[0].relu()

    captured = frametap.compile(f, backend="aot_eager")
    for size in (16, 16, 0, 16):
        raised = []
        for call in (f, captured):
            x = torch.ones(2, 2)
            x.untyped_storage().resize_(size)
            try:
                raised.append(str(call(x).tolist()))
            except RuntimeError as error:
                raised.append(str(error))
        assert raised[0] == raised[1]


def test_a_graph_that_the_tracer_refuses_runs_uncompiled(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        n = torch.div(x.size(0), 2, rounding_mode="trunc")
        n.view(1).add_(1)
        return x.new_zeros((n, 2)), n.item() * x

    captured = frametap.compile(f, backend="aot_eager")
    with caplog.at_level(logging.WARNING, "frametap"):
        for size in (4, 4, 6, 6):
            for want, got in zip(f(torch.ones(size)), captured(torch.ones(size)), strict=True):
                assert torch.equal(want, got)
    assert "AssertionError: aot_autograd expected" in caplog.text
    assert "The graph runs uncompiled." in caplog.text


def test_a_compiler_below_the_tracer_that_raises_is_named() -> None:
    from torch._dynamo.backends.common import aot_autograd

    def inner(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        raise RuntimeError("no such machine")

    captured = frametap.compile(lambda x: x * 2, backend=aot_autograd(fw_compiler=inner))
    for has_grad in (False, True):
        with pytest.raises(BackendError, match="no such machine"):
            captured(torch.ones(2, requires_grad=has_grad))


def _penalty(x: torch.Tensor, w: torch.Tensor, k: float) -> torch.Tensor:
    return ((x @ w).sin() * k).square().sum() + w.exp().sum()


@pytest.mark.parametrize("dynamic", [None, True])
def test_second_derivatives(dynamic: bool | None) -> None:
    captured = frametap.compile(_penalty, backend="aot_eager", dynamic=dynamic)
    for rows, k in ((2, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (4, 2.0)):
        results = []
        for call in (_penalty, captured):
            generator = torch.Generator().manual_seed(1)
            x = torch.randn(rows, 3, generator=generator).requires_grad_()
            w = torch.randn(3, 2, generator=generator).requires_grad_()
            scale = torch.ones((), requires_grad=True)
            loss = call(x * scale, w, k)
            (grad,) = torch.autograd.grad(loss, x, create_graph=True)
            (loss + grad.norm()).backward()
            results.append([grad, x.grad, w.grad, scale.grad])
        for want, got in zip(*results, strict=True):
            torch.testing.assert_close(got, want)


def test_second_derivatives_that_nothing_asks_for_are_not_missed() -> None:
    captured = frametap.compile(lambda x: (x**3).sum(), backend="aot_eager")
    x = torch.tensor([1.0, 2.0])
    for _ in range(3):
        hessian = torch.autograd.functional.hessian(captured, x)
        assert hessian.tolist() == [[6.0, 0.0], [0.0, 12.0]]


@pytest.mark.filterwarnings("ignore:Anomaly")
def test_anomaly_mode_of_a_tracer_is_not_that_of_other_threads() -> None:
    """A recording that another thread makes meanwhile is used again."""
    inside, go = threading.Event(), threading.Event()

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        with torch.autograd.detect_anomaly(check_nan=False):
            inside.set()
            go.wait(20)
        return module.forward

    slow = frametap.compile(lambda x: x * 2, backend=backend)
    thread = threading.Thread(target=slow, args=(torch.ones(2),))
    thread.start()
    assert inside.wait(20)
    other = frametap.compile(lambda x: x * 3)
    other(torch.ones(2))
    go.set()
    thread.join()
    other(torch.ones(2))
    assert frametap.explain(other).recordings == 1
    assert not torch.is_anomaly_enabled()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_op_that_writes_to_memory_twice_is_left_to_python(backend):
    def scale(xs, ys):
        torch._foreach_add_(xs, ys, alpha=2)
        torch._foreach_mul_(xs, 0.5)
        return [x + 1 for x in xs]

    captured = frametap.compile(scale, backend=backend)
    for first, second in ((slice(3), slice(3, 6)), (slice(3), slice(1, 4)), (slice(3), slice(3))):
        for _ in range(2):
            results = []
            for function in (scale, captured):
                memory = torch.arange(6.0)
                written = function([memory[first], memory[second]], [torch.ones(3)] * 2)
                results.append([memory.tolist(), *(x.tolist() for x in written)])
            assert results[0] == results[1], (first, second)
