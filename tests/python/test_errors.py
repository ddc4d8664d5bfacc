"""Bad input: each gives one clear exception that says what, where, why and what to do, and changes nothing."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap

pytestmark = [] if not EAGER else [pytest.mark.skip(reason="asks about frametap's exceptions")]


# -- fullgraph --


def branches_on_tensor(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:
        y = y + 1
    return y


def prints(x: Tensor) -> Tensor:
    y = x * 2
    print("in the middle")
    return y + 1


def line_of(function: Any, text: str) -> int:
    import inspect

    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


@pytest.mark.parametrize(
    ("function", "text", "reason"),
    [
        (branches_on_tensor, "if y.sum()", "branch_on_tensor"),
        (prints, "print(", "input_output"),
    ],
)
def test_fullgraph_names_the_break(function: Any, text: str, reason: str) -> None:
    f = frametap.compile(function, fullgraph=True)
    with pytest.raises(frametap.FullGraphError) as caught:
        f(torch.ones(2))
    error = caught.value
    assert error.reason == reason
    assert error.position.startswith(f"{function.__name__}:{line_of(function, text)}")
    assert error.advice
    for part in (error.position, error.advice):
        assert part in str(error)
    assert isinstance(error, frametap.FrametapError)


def test_fullgraph_accepts_one_graph() -> None:
    f = frametap.compile(lambda x: (x + 1).relu(), fullgraph=True)
    for _ in range(3):
        assert torch.equal(f(torch.ones(2)), torch.ones(2) * 2)
    assert len(frametap.segments(f)) == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (lambda x, d: x @ torch.ones(7), RuntimeError),
        (lambda x, d: (x + 1) * d.pop("missing"), KeyError),
        (lambda x, d: (x + 1) * d["missing"], KeyError),
    ],
    ids=["op", "mutation", "look-up"],
)
def test_fullgraph_lets_exceptions_pass(body: Any, error: type[Exception]) -> None:
    """An uncaught exception is the program's result, also under fullgraph."""
    inner = frametap.compile(lambda x, d: [body(x, d)], fullgraph=True)
    for f in (frametap.compile(body, fullgraph=True), inner):
        for _ in range(3):
            with pytest.raises(error) as caught:
                f(torch.ones(2, 2), {})
            assert not isinstance(caught.value, frametap.FrametapError)


def test_fullgraph_names_an_exception_that_is_caught() -> None:
    def tried(x: Tensor) -> Tensor:
        try:
            return x @ torch.ones(7)
        except RuntimeError:
            return x

    f = frametap.compile(lambda x: tried(x + 1) * 2, fullgraph=True)
    with pytest.raises(frametap.FullGraphError, match="exception"):
        f(torch.ones(2, 2))


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(2, 2)
        self.calls = 0
        self.log: list[int] = []
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.log.append(self.calls)
        x = F.dropout(x, 0.5) if x.shape[0] > 9 else x
        y = self.lin(x)
        if y.sum() > 0:
            return y
        return -y


def test_fullgraph_leaves_python_state_unchanged() -> None:
    """The call is refused before the break: attributes and lists are as they were, and so is the random state."""
    module = Stateful()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    random = torch.get_rng_state()
    f = frametap.compile(module, fullgraph=True)
    for _ in range(3):
        with pytest.raises(frametap.FullGraphError):
            f(torch.ones(1, 2))
    assert module.calls == 0
    assert module.log == []
    assert torch.equal(random, torch.get_rng_state())
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])
    assert torch.is_grad_enabled()
    # The function itself still works, as do other captures of it.
    want = module.lin(torch.ones(1, 2))
    again = frametap.compile(module)(torch.ones(1, 2))
    assert torch.equal(again, want if want.sum() > 0 else -want)
    assert module.calls == 1


def test_fullgraph_leaves_tensors_unchanged() -> None:
    """Elements, version counters and gradient histories of written tensors, views and sparse tensors included."""

    def f(x: Tensor, made: Tensor, s: Tensor) -> None:
        x.add_(1)
        made[0].mul_(5)
        s.mul_(2)
        print(end="")

    w = torch.ones(2, requires_grad=True)
    x, made, s = torch.ones(2), w * 1, torch.eye(2).to_sparse()
    saves_x = (w * x).sum()
    versions = [t._version for t in (x, made, s)]
    history = made.grad_fn
    with pytest.raises(frametap.FullGraphError):
        frametap.compile(f, fullgraph=True)(x, made, s)
    assert x.tolist() == [1.0, 1.0]
    assert s.to_dense().tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert [t._version for t in (x, made, s)] == versions
    assert made.grad_fn is history
    (saves_x + made.sum()).backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2.0, 2.0]


# -- compile --


@pytest.mark.parametrize("thing", [3, "text", None.__class__, object(), [1]])
def test_not_a_callable(thing: Any) -> None:
    if isinstance(thing, type):
        pytest.skip("a class is callable")
    with pytest.raises((frametap.FrametapError, TypeError)) as caught:
        frametap.compile(thing)
    assert isinstance(caught.value, frametap.FrametapError)
    assert type(thing).__name__ in str(caught.value)


def test_wrong_backend_names_the_nearest() -> None:
    with pytest.raises(frametap.BackendError) as caught:
        frametap.compile(lambda x: x, backend="nativ")
    assert "nativ" in str(caught.value)
    assert "'native'" in str(caught.value) or "native" in str(caught.value).replace("nativ,", "")


def test_far_backend_name_lists_all() -> None:
    with pytest.raises(frametap.BackendError) as caught:
        frametap.compile(lambda x: x, backend="zzzzzz")
    assert "zzzzzz" in str(caught.value)
    assert "native" in str(caught.value)
    assert "reference" in str(caught.value)


@pytest.mark.parametrize("backend", [3, object(), [], b"native"])
def test_backend_of_a_wrong_type(backend: Any) -> None:
    with pytest.raises(frametap.FrametapError):
        frametap.compile(lambda x: x, backend=backend)


def test_backend_that_fails_is_named_or_stepped_over() -> None:
    """A backend's own exception never changes what a call returns, unless it is asked for with fullgraph."""

    def broken(gm: Any, example_inputs: Any) -> Any:
        raise ArithmeticError("cannot compile this")

    f = frametap.compile(lambda x: x * 2, backend=broken)
    try:
        got = f(torch.ones(2))
    except frametap.BackendError as error:
        assert "cannot compile this" in str(error)
    else:
        assert torch.equal(got, torch.ones(2) * 2)
        assert "cannot compile this" in str(frametap.explain(f)) or "backend" in str(
            frametap.explain(f)
        )


@pytest.mark.parametrize(
    "options",
    [{"dynamic": "yes"}, {"options": 3}, {"options": {"no_such_option": 1}}, {"mode": "fast"}],
)
def test_wrong_options(options: dict[str, Any]) -> None:
    with pytest.raises((frametap.FrametapError, TypeError)) as caught:
        frametap.compile(lambda x: x, **options)
    assert next(iter(options)) in str(caught.value) or "no_such_option" in str(caught.value)


# -- segments, graph, guards, explain --


@pytest.mark.parametrize("name", ["segments", "graph", "guards", "explain"])
def test_asked_of_something_not_captured(name: str) -> None:
    with pytest.raises(frametap.FrametapError) as caught:
        getattr(frametap, name)(lambda x: x)
    assert "compile" in str(caught.value)


def test_graph_of_a_function_that_was_not_called() -> None:
    f = frametap.compile(lambda x: x)
    assert list(frametap.segments(f)) == []
    with pytest.raises(frametap.FrametapError) as caught:
        frametap.graph(f)
    assert "call" in str(caught.value)


def test_graph_of_a_function_with_several() -> None:
    f = frametap.compile(branches_on_tensor)
    f(torch.ones(2))
    with pytest.raises(frametap.FrametapError) as caught:
        frametap.graph(f)
    assert "segments" in str(caught.value)


# -- quantize --


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)).eval()


@pytest.mark.parametrize("data", [[], (), iter(())], ids=["list", "tuple", "iterator"])
def test_empty_calibration_data(data: Any) -> None:
    with pytest.raises(frametap.QuantizationError) as caught:
        frametap.quantize(small_net(), data)
    assert "empty" in str(caught.value)


def test_calibration_data_of_a_wrong_shape() -> None:
    net = small_net()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    with pytest.raises(frametap.QuantizationError) as caught:
        frametap.quantize(net, [torch.randn(2, 3, 8, 8)])
    assert "3" in str(caught.value)
    for name, value in net.state_dict().items():
        assert torch.equal(value, before[name])


def test_calibration_data_of_a_wrong_type() -> None:
    with pytest.raises(frametap.QuantizationError):
        frametap.quantize(small_net(), ["no tensor"])
    with pytest.raises(frametap.QuantizationError):
        frametap.quantize(small_net(), 3)


def test_calibration_data_with_nan() -> None:
    batch = torch.randn(2, 1, 8, 8)
    batch[0, 0, 0, 0] = float("nan")
    with pytest.raises(frametap.QuantizationError) as caught:
        frametap.quantize(small_net(), [batch])
    assert "nan" in str(caught.value).lower() or "finite" in str(caught.value).lower()


def test_quantize_something_that_is_no_model() -> None:
    with pytest.raises(frametap.FrametapError):
        frametap.quantize(3, [torch.ones(1)])


# -- save and load --


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    net = small_net()
    f = frametap.compile(net)
    with torch.no_grad():
        f(torch.randn(2, 1, 8, 8))
    path = tmp_path / "net.frametap"
    frametap.save(f, path)
    return path


def test_save_before_a_call(tmp_path: Path) -> None:
    path = tmp_path / "never.frametap"
    with pytest.raises(frametap.ArtifactError):
        frametap.save(frametap.compile(small_net()), path)
    assert not path.exists()


def test_load_of_no_file(tmp_path: Path) -> None:
    with pytest.raises(frametap.ArtifactError) as caught:
        frametap.load(tmp_path / "absent.frametap")
    assert "absent.frametap" in str(caught.value)


@pytest.mark.parametrize("where", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_load_of_a_cut_file(saved: Path, where: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * where)])
    with pytest.raises(frametap.ArtifactError) as caught:
        frametap.load(saved)
    assert saved.name in str(caught.value)


@pytest.mark.parametrize("step", range(40))
def test_load_of_a_file_with_one_changed_byte(saved: Path, step: int) -> None:
    """Refused, or the byte was one that means nothing: then the outputs are the same."""
    want = frametap.load(saved)(torch.ones(2, 1, 8, 8))
    data = bytearray(saved.read_bytes())
    data[len(data) * step // 40] ^= 0x40
    saved.write_bytes(bytes(data))
    try:
        program = frametap.load(saved)
    except frametap.ArtifactError as error:
        assert saved.name in str(error)
    else:
        assert torch.equal(program(torch.ones(2, 1, 8, 8)), want)


def test_load_of_foreign_files(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("no program\n" * 50)
    weights = tmp_path / "weights.pt"
    torch.save({"a": torch.ones(2)}, weights)
    for path in (text, weights, tmp_path):
        with pytest.raises(frametap.ArtifactError) as caught:
            frametap.load(path)
        assert path.name in str(caught.value)


def test_load_with_another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = small_net()
    f = frametap.compile(net)
    with torch.no_grad():
        f(torch.randn(2, 1, 8, 8))
    path = tmp_path / "old.frametap"
    with monkeypatch.context() as patched:
        patched.setattr(torch, "__version__", "1.99.0+cpu")
        frametap.save(f, path)
    with pytest.raises(frametap.ArtifactError) as caught:
        frametap.load(path)
    assert "1.99.0" in str(caught.value)
    assert torch.__version__.split("+")[0] in str(caught.value)


def test_loaded_program_refuses_other_inputs(saved: Path) -> None:
    program = frametap.load(saved)
    for wrong in (torch.ones(2, 3, 8, 8), torch.ones(2, 1, 8, 8).double(), 3):
        with pytest.raises((frametap.FrametapError, TypeError)):
            program(wrong)


# -- exceptions of the user's code --


class Mine(Exception):
    pass


def raises_mine(x: Tensor, n: int) -> Tensor:
    y = x * 2
    if n > 1:
        raise Mine("n is", n)
    return y


def calls_raiser(x: Tensor, n: int) -> Tensor:
    return raises_mine(x + 1, n) * 3


def user_trace(error: BaseException) -> list[tuple[str, int | None]]:
    return [
        (frame.name, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == __file__ and not frame.name.startswith("test_")
    ]


def test_user_exceptions_pass_unchanged() -> None:
    f = frametap.compile(calls_raiser)
    f(torch.ones(2), 1)
    for _ in range(3):
        with pytest.raises(Mine) as want:
            calls_raiser(torch.ones(2), 5)
        with pytest.raises(Mine) as got:
            f(torch.ones(2), 5)
        assert type(got.value) is Mine
        assert got.value.args == ("n is", 5)
        assert user_trace(got.value) == user_trace(want.value)
    assert torch.equal(f(torch.ones(2), 1), calls_raiser(torch.ones(2), 1))


def test_exceptions_of_ops_pass_unchanged() -> None:
    def multiply(x: Tensor, w: Tensor) -> Tensor:
        y = x + 1
        return y @ w

    f = frametap.compile(multiply)
    f(torch.ones(2, 3), torch.ones(3, 2))
    for _ in range(3):
        with pytest.raises(RuntimeError) as want:
            multiply(torch.ones(2, 3), torch.ones(2, 2))
        with pytest.raises(RuntimeError) as got:
            f(torch.ones(2, 3), torch.ones(2, 2))
        assert type(got.value) is RuntimeError
        assert str(got.value) == str(want.value)
        assert user_trace(got.value) == user_trace(want.value)


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, StopIteration]
)
def test_all_kinds_of_exceptions_pass(kind: type[BaseException]) -> None:
    def stops(x: Tensor) -> Tensor:
        x = x + 1
        raise kind("stop")

    f = frametap.compile(stops)
    for _ in range(3):
        with pytest.raises(kind):
            f(torch.ones(2))
    assert torch.is_grad_enabled()


def test_argument_errors_name_the_users_function() -> None:
    f = frametap.compile(raises_mine)
    for args in ((), (1, 2, 3)):
        with pytest.raises(TypeError) as want:
            raises_mine(*args)
        with pytest.raises(TypeError) as got:
            f(*args)
        assert str(got.value) == str(want.value)
