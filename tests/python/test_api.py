"""The public functions, as a user calls them."""

from __future__ import annotations

import copy
import functools
import inspect
import operator
import pickle
import threading
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.models import MODELS
from fixtures.subject import EAGER, frametap, needs_capture


def scaled(x: Tensor, scale: float = 2.0) -> Tensor:
    """Scales."""
    return (x * scale).relu()


# -- forms of compile --


@pytest.mark.parametrize(
    "form",
    [
        lambda f: frametap.compile(f),
        lambda f: frametap.compile()(f),
        lambda f: frametap.compile(backend="reference")(f),
        lambda f: frametap.compile(f, backend="native", fullgraph=True),
        lambda f: frametap.compile(f, dynamic=True),
        lambda f: frametap.compile(f, dynamic=False),
        lambda f: frametap.compile(f, disable=True),
        lambda f: frametap.compile(frametap.compile(f)),
    ],
    ids=["plain", "called", "with options", "keywords", "dynamic", "static", "disabled", "twice"],
)
def test_forms_of_compile(form: Any) -> None:
    f = form(scaled)
    for scale in (2.0, 2.0, 3.0):
        for size in (2, 3):
            x = torch.arange(size) - 1.0
            assert torch.equal(f(x, scale=scale), scaled(x, scale))


def test_functions_keep_their_names() -> None:
    f = frametap.compile(scaled)
    assert f.__name__ == "scaled"
    assert f.__qualname__ == scaled.__qualname__
    assert f.__module__ == scaled.__module__
    assert f.__doc__ == "Scales."
    assert inspect.signature(f) == inspect.signature(scaled)
    assert inspect.unwrap(f) is scaled


class Model:
    """A class with captured methods."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    @frametap.compile
    def run(self, x: Tensor) -> Tensor:
        return x * self.scale

    @frametap.compile(fullgraph=True)
    def strict(self, x: Tensor) -> Tensor:
        return x + self.scale

    @staticmethod
    @frametap.compile
    def static(x: Tensor) -> Tensor:
        return x * 2

    @classmethod
    @frametap.compile
    def made(cls, x: Tensor) -> tuple[str, Tensor]:
        return cls.__name__, x * 3


def test_methods() -> None:
    a, b = Model(2.0), Model(5.0)
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(a.run(x), x * 2)
        assert torch.equal(b.run(x), x * 5)
        assert torch.equal(Model.run(b, x), x * 5)
        assert torch.equal(a.strict(x), x + 2)
        assert torch.equal(Model.static(x), x * 2)
        name, y = a.made(x)
        assert name == "Model"
        assert torch.equal(y, x * 3)
    bound = a.run
    a.scale = 7.0
    assert torch.equal(bound(x), x * 7)
    f = frametap.compile(b.run)
    assert torch.equal(f(x), x * 5)


def test_callables_of_other_kinds() -> None:
    class Callable:
        def __call__(self, x: Tensor) -> Tensor:
            return x * 4

    x = torch.ones(2)
    for f, want in (
        (frametap.compile(functools.partial(scaled, scale=3.0)), x * 3),
        (frametap.compile(lambda x: x * 2), x * 2),
        (frametap.compile(Callable()), x * 4),
        (frametap.compile(torch.relu), x),
    ):
        for _ in range(2):
            assert torch.equal(f(x), want)


@needs_capture
def test_a_name_that_setattr_is_given_is_guarded() -> None:
    """`object.__setattr__` in an overridden one: a segment of one name does not serve another."""

    class Checked:
        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

    store = frametap.compile(Checked.__setattr__)
    for name in ("a", "b", "a", "c"):
        thing = Checked()
        store(thing, name, 1)
        assert vars(thing) == {name: 1}


class Slotted:
    __slots__ = ("a",)


@pytest.mark.parametrize(
    ("change", "make"),
    [
        (lambda d: d.popitem(), dict),
        (lambda d: d.pop("missing"), dict),
        (lambda d: d.__delitem__("missing"), dict),
        (lambda xs: xs.pop(), list),
        (lambda xs: xs.remove(5), list),
        (lambda xs: xs.insert("a", 1), list),
        (lambda xs: xs.extend(5), list),
        (lambda xs: xs.__setitem__(3, 1), list),
        (lambda thing: setattr(thing, "b", 1), Slotted),
        (lambda thing: delattr(thing, "a"), Slotted),
    ],
)
def test_a_change_that_fails_is_not_repeated(change: Any, make: Any) -> None:
    """An exception from a mutation that the program catches inside of a call."""

    def tried(thing: Any) -> str:
        try:
            change(thing)
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            return type(error).__name__
        return "done"

    def body(x: Tensor, thing: Any) -> tuple[Tensor, str]:
        return x + 1, tried(thing)

    f = frametap.compile(body)
    for _ in range(3):
        got, want = f(torch.ones(2), make()), body(torch.ones(2), make())
        assert torch.equal(got[0], want[0])
        assert got[1] == want[1] != "done"


# -- modules --


def test_module_behaves_as_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    f = frametap.compile(model)
    assert isinstance(f, nn.Module)
    assert list(f.state_dict()) == list(model.state_dict())
    assert [id(p) for p in f.parameters()] == [id(p) for p in model.parameters()]
    assert [name for name, _ in f.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert f.training
    f.eval()
    assert not model.training
    assert not model[1].training
    f.train()
    assert model[1].training
    f.requires_grad_(False)
    assert not model[0].weight.requires_grad
    f.extra = 5
    assert model.extra == 5
    f.load_state_dict(model.state_dict())
    f.to(torch.float64)
    assert model[0].weight.dtype == torch.float64
    out = f(torch.ones(1, 4, dtype=torch.float64))
    assert out.dtype == torch.float64
    assert f[0] is model[0]


def test_module_in_module() -> None:
    inner = nn.Linear(2, 2)
    outer = nn.Sequential(frametap.compile(inner), nn.ReLU())
    x = torch.ones(1, 2)
    for _ in range(3):
        assert torch.equal(outer(x), inner(x).relu())
    assert len(list(outer.parameters())) == 2


def test_copies_are_independent() -> None:
    model = nn.Linear(2, 2)
    f = frametap.compile(model)
    x = torch.ones(1, 2)
    f(x)
    twin = copy.deepcopy(f)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert torch.equal(twin(x), torch.zeros(1, 2))
    assert torch.equal(f(x), model(x))


def test_state_dict_is_pickled_without_a_prefix() -> None:
    model = nn.Linear(2, 2)
    restored = pickle.loads(pickle.dumps(frametap.compile(model).state_dict()))
    nn.Linear(2, 2).load_state_dict(restored)


def test_training_loop() -> None:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    twin = copy.deepcopy(plain)
    x = torch.randn(16, 2)
    y = x.sum(1, keepdim=True)
    for model, callable_ in ((plain, plain), (twin, frametap.compile(twin))):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.mse_loss(callable_(x), y).backward()
            optimizer.step()
    for one, other in zip(plain.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, other)


# -- what was captured --


@needs_capture
def test_segments_graph_guards() -> None:
    f = frametap.compile(scaled)
    f(torch.ones(2, 3))
    (segment,) = frametap.segments(f)
    assert segment.name == "scaled#0"
    assert segment.exit.kind == "return"
    assert "aten.mul" in segment.text()
    assert "aten.relu" in segment.text()
    assert "aten.relu" in str(frametap.graph(f))
    assert [n.op for n in segment.graph.nodes] == [n.op for n in frametap.graph(f).nodes]
    guards = frametap.guards(f)
    assert guards
    for guard in guards:
        assert str(guard)
        assert str(guard.kind)
        assert str(guard.source)
    assert any("x" in str(g.source) for g in guards)
    hits = segment.hits
    f(torch.ones(2, 3))
    assert frametap.segments(f)[0].hits == hits + 1


@needs_capture
def test_guards_name_the_line_that_read() -> None:
    def f(x: Tensor) -> Tensor:
        if x.shape[0] > 2:
            return x
        return -x

    line = inspect.getsourcelines(f)[1] + 1
    g = frametap.compile(f)
    g(torch.ones(3))
    assert any(f":{line}" in str(guard.position) for guard in frametap.guards(g))


@needs_capture
def test_explain() -> None:
    def f(x: Tensor) -> Tensor:
        x = x * 2
        print(end="")
        if x.sum() > 0:
            return x + 1
        return x - 1

    line = inspect.getsourcelines(f)[1]
    g = frametap.compile(f)
    g(torch.ones(2))
    g(torch.ones(2))
    g(-torch.ones(2))
    g(torch.ones(2, dtype=torch.float64))
    report = frametap.explain(g)
    text = str(report)
    assert report.graph_count == len(frametap.segments(g)) >= 3
    assert report.break_count == len(report.breaks) >= 2
    assert {f"{line + 2}", f"{line + 3}"} <= {str(b.position).split(":")[1] for b in report.breaks}
    for broken in report.breaks:
        assert str(broken.position) in text
        assert broken.advice in text
    assert report.recordings >= 3
    assert report.hits >= 1
    assert report.misses
    assert "f32" in text
    assert "f64" in text


@needs_capture
def test_a_graph_of_another_caller_is_a_miss_in_words() -> None:
    def inner(x: Tensor) -> Tensor:
        x = x + 1
        print(end="")
        return x * 2

    def f(x: Tensor) -> Tensor:
        x = inner(x)
        return inner(x) + 3

    line = inspect.getsourcelines(f)[1]
    g = frametap.compile(f)
    g(torch.ones(2))
    [miss] = frametap.explain(g).miss_texts
    assert miss.source == "caller"
    assert f":{line + 1}:" in miss.want
    assert f":{line + 2}:" in miss.got
    assert miss.why


@needs_capture
def test_a_graph_of_other_globals_is_a_miss_in_words() -> None:
    def inner(x: Tensor) -> Tensor:
        return x + scale  # type: ignore[name-defined]  # noqa: F821

    a, b = (types.FunctionType(inner.__code__, {"scale": scale}) for scale in (1, 5))

    @frametap.compile
    def f(x: Tensor, g: object) -> list[Tensor]:
        return [*map(operator.methodcaller("__call__", x), [g])]  # C code calls it

    f(torch.ones(2), a)
    f(torch.ones(2), b)
    assert any(miss.source == "G" for miss in frametap.explain(f).miss_texts)
    assert all(miss.source and miss.why for miss in frametap.explain(f).miss_texts)


@needs_capture
def test_explain_counts_time() -> None:
    def f(x: Tensor) -> Tensor:
        x = x + 1
        print(end="")
        return x * 2

    g = frametap.compile(f)
    assert frametap.explain(g).recording_seconds == 0
    g(torch.ones(2))
    report = frametap.explain(g)
    each = [segment.recording_seconds for segment in report.segments]
    assert len(each) == 2
    assert all(seconds > 0 for seconds in each)
    assert sum(each) <= report.recording_seconds < 10
    assert frametap._C.counts(g)["recording_seconds"] == report.recording_seconds
    assert str(report).count(" ms") == 3
    g(torch.ones(2))
    assert frametap.explain(g).recording_seconds == report.recording_seconds
    with torch.device("cpu"):
        g(torch.ones(2))  # given up
    assert frametap.explain(g).recording_seconds > report.recording_seconds
    frametap.reset(g)
    assert frametap.explain(g).recording_seconds == 0


@needs_capture
def test_what_intercepts_torch_is_told() -> None:
    f = frametap.compile(scaled)
    for _ in range(2):
        torch.func.vmap(f)(torch.ones(2, 2))
        with torch.device("cpu"):
            f(torch.ones(2))
    report = frametap.explain(f)
    assert [(a.reason, a.given_up) for a in report.aborts] == [("modes_active", True)] * 2
    assert "torch.func" in str(report)
    assert "default device" in str(report)


@needs_capture
def test_a_miss_is_told_in_words() -> None:
    f = frametap.compile(scaled)
    f(torch.ones(2))
    f(torch.ones(2, dtype=torch.float64))
    text = str(frametap.explain(f))
    assert "dtype" in text
    assert "x" in text


@needs_capture
def test_reset() -> None:
    f, g = frametap.compile(scaled), frametap.compile(lambda x: x + 1)
    for h in (f, g):
        h(torch.ones(2))
        assert len(frametap.segments(h)) == 1
    frametap.reset(f)
    assert len(frametap.segments(f)) == 0
    assert len(frametap.segments(g)) == 1
    f(torch.ones(2))
    assert len(frametap.segments(f)) == 1
    frametap.reset()
    assert len(frametap.segments(f)) == len(frametap.segments(g)) == 0


@needs_capture
def test_disable() -> None:
    f = frametap.compile(scaled, disable=True)
    assert torch.equal(f(torch.ones(2)), scaled(torch.ones(2)))
    try:
        assert len(frametap.segments(f)) == 0
    except frametap.FrametapError:
        pass  # `f` may be the function itself


@needs_capture
@pytest.mark.parametrize(("dynamic", "segments"), [(None, 1), (True, 1), (False, 3)])
def test_dynamic(dynamic: bool | None, segments: int) -> None:
    f = frametap.compile(scaled, dynamic=dynamic)
    for size in (2, 3, 4, 3):
        f(torch.ones(size, 5))
    assert len(frametap.segments(f)) == segments


@needs_capture
def test_a_counter_and_a_string_record_what_they_must() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = 0

        def forward(self, x: Tensor, mode: str) -> Tensor:
            self.step += 1
            return x * self.step if mode == "a" else x

    net = Net()
    f = frametap.compile(net)
    for _ in range(20):
        assert torch.equal(f(torch.ones(2), "b"), torch.ones(2))
    assert net.step == 20
    assert len(frametap.segments(f)) == 1  # a counter that decides no branch is an input
    f(torch.ones(2), "a")
    assert len(frametap.segments(f)) == 2


@needs_capture
def test_variants_are_never_given_up() -> None:
    """Twenty string values: one segment each, all of them hit afterwards."""

    def f(x: Tensor, name: str) -> Tensor:
        return x * len(name) if name.startswith("n") else x

    g = frametap.compile(f)
    names = ["n" * (i + 1) for i in range(20)]
    for name in names:
        g(torch.ones(2), name)
    before = frametap.explain(g).recordings
    for name in names:
        assert torch.equal(g(torch.ones(2), name), f(torch.ones(2), name))
    assert frametap.explain(g).recordings == before


# -- backends --


@pytest.mark.parametrize("backend", ["native", "reference", "eager", "aot_eager"])
def test_backends_agree(backend: str) -> None:
    case = MODELS["mlp"]
    model = case.build()
    f = frametap.compile(model, backend=backend)
    for batch in (4, 4, 6):
        inputs = case.inputs(batch)
        torch.testing.assert_close(f(**inputs), model(**inputs), rtol=0, atol=0)


@needs_capture
def test_callable_backend_sees_an_fx_graph() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen.append((gm, example_inputs))
        return gm.forward

    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    f = frametap.compile(model, backend=backend)
    x = torch.ones(1, 2)
    for _ in range(2):
        assert torch.equal(f(x), model(x))
    ((gm, _),) = seen
    assert isinstance(gm, torch.fx.GraphModule)
    gm.graph.lint()
    calls = [n for n in gm.graph.nodes if n.op == "call_function"]
    assert [str(n.target) for n in calls] == ["aten.linear.default", "aten.relu.default"]
    for node in calls:
        assert "forward" in node.meta["stack_trace"]
        assert node.meta["nn_module_stack"]
    # Fake values cost more than the capture; they are made where they are asked for.
    with_values = frametap.fx.to_fx(frametap.graph(f))
    for node in with_values.graph.nodes:
        if node.op == "call_function":
            assert isinstance(node.meta["val"], Tensor)


@needs_capture
def test_frametap_as_a_backend_of_torch_compile() -> None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution("frametap")
    except PackageNotFoundError:
        pytest.skip("the entry point exists after installation")
    case = MODELS["mlp"]
    model = case.build()
    f = torch.compile(model, backend="frametap")
    for batch in (4, 4):
        inputs = case.inputs(batch)
        torch.testing.assert_close(f(**inputs), model(**inputs), rtol=0, atol=0)
    torch._dynamo.reset()


@needs_capture
def test_backend_of_torch_compile_by_function() -> None:
    """The function that the entry point names, handed over as it is: needs no installation."""
    from frametap._torch_backend import frametap_backend

    case = MODELS["mlp"]
    model = case.build()
    f = torch.compile(model, backend=frametap_backend)
    inputs = case.inputs(4)
    got, want = f(**inputs), model(**inputs)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    grads = torch.autograd.grad(got.sum(), list(model.parameters()))
    for one, other in zip(
        grads, torch.autograd.grad(want.sum(), list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    torch._dynamo.reset()


# -- together with other things --


def test_threads() -> None:
    model = MODELS["mlp"].build().eval()
    f = frametap.compile(model)
    failed: list[Any] = []

    def work(seed: int) -> None:
        try:
            for i in range(30):
                x = torch.randn(1 + (seed + i) % 4, 16)
                with torch.no_grad():
                    if not torch.equal(f(x), model(x)):
                        failed.append((seed, i))
        except Exception as error:  # noqa: BLE001 - a thread's exception would be lost
            failed.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_tracing_functions_are_called_as_ever() -> None:
    """Debuggers, profilers and coverage see every line: frametap steps aside."""
    import sys

    f = frametap.compile(scaled)
    f(torch.ones(2))
    lines: list[int] = []

    def trace(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code is scaled.__code__ and event == "line":
            lines.append(frame.f_lineno)
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        got = f(torch.ones(2))
    finally:
        sys.settrace(old)
    assert torch.equal(got, torch.ones(2) * 2)
    assert lines == [inspect.getsourcelines(scaled)[1] + 2]


def test_inside_torch_compile_and_around_it() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager")
    f = frametap.compile(lambda x: compiled(x) + 1)
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(f(x), x * 3)
    torch._dynamo.reset()


@pytest.mark.skipif(EAGER, reason="asks about the package")
def test_the_package_says_what_it_has() -> None:
    for name in (
        *("compile", "segments", "graph", "guards", "explain", "reset", "quantize", "save", "load"),
        *("FrametapError", "FullGraphError", "BackendError", "QuantizationError", "ArtifactError"),
    ):
        assert name in frametap.__all__
        assert getattr(frametap, name).__doc__
    assert frametap.__version__
