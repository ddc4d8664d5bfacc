"""fullgraph=True refuses before it acts: what would end the graph is not done, and what the call has done is taken back."""

from __future__ import annotations

import collections
import contextlib
import contextvars
import io
import logging
import math
import random
import select
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap

pytestmark = [] if not EAGER else [pytest.mark.skip(reason="asks about frametap's exceptions")]

VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE")
VARIABLE_SET: contextvars.ContextVar[int] = contextvars.ContextVar("VARIABLE_SET")
GLOBAL = 0


class World:
    """The objects that the refused calls may change. `snapshot` reads all of them."""

    def __init__(self) -> None:
        sys.modules.pop("this", None)  # another test of the process may have imported it
        self.log: list[Any] = []
        self.deque: collections.deque[Any] = collections.deque([1], maxlen=5)
        self.weight = torch.ones(2, requires_grad=True)
        self.buffer = torch.ones(2)
        self.dict: dict[Any, Any] = {"a": 1, "b": 2}
        self.ordered = collections.OrderedDict(a=1, b=2, c=3)
        self.ordered.move_to_end("a")
        self.set = {1, 2}
        self.number = 0
        self.generator = torch.Generator().manual_seed(0)
        self.array = np.ones(2)
        self.cell = 0
        VARIABLE_SET.set(1)

    def snapshot(self) -> dict[str, Any]:
        return {
            "log": list(self.log),
            "deque": list(self.deque),
            "grad": self.weight.grad,
            "requires grad": (self.weight.requires_grad, self.buffer.requires_grad),
            "buffer": (self.buffer.tolist(), self.buffer.shape, self.buffer._version),
            "dict": list(self.dict.items()),
            "ordered": list(self.ordered.items()),
            "set": set(self.set),
            "attributes": sorted(vars(self)),
            "number": self.number,
            "generator": self.generator.get_state().tolist(),
            "array": self.array.tolist(),
            "cell": self.cell,
            "global": GLOBAL,
            "grad mode": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(),
            "autocast": (
                torch.is_autocast_enabled("cpu"),
                torch.get_autocast_dtype("cpu"),
                torch.is_autocast_cache_enabled(),
            ),
            "function modes": torch._C._len_torch_function_stack(),
            "dispatch modes": torch._C._len_torch_dispatch_stack(),
            "default dtype": torch.get_default_dtype(),
            "attention": (
                torch.backends.cuda.flash_sdp_enabled(),
                torch._C._get_overrideable_sdp_enabled(),
                torch._C._get_sdp_priority_order(),
            ),
            "default device": torch.get_default_device(),
            "forward level": torch.autograd.forward_ad._current_level,
            "transforms": torch._C._functorch.peek_interpreter_stack(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "anomaly": torch.is_anomaly_enabled(),
            "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[2]),
            "variables": (VARIABLE.get(None), VARIABLE_SET.get(None)),
            "filters": list(warnings.filters),
            "cudnn": torch.backends.cudnn.flags.__module__ and torch._C._get_cudnn_benchmark(),
            "level": logging.getLogger("frametap-test").level,
        }


Act = Callable[[World, Tensor], object]


def unknown_c_code(w: World, x: Tensor) -> None:
    select.select([], [], [], 0)
    w.deque.append(1)


def set_global(w: World, x: Tensor) -> None:
    global GLOBAL
    GLOBAL += 1


def scaled_grad(w: World, x: Tensor) -> None:
    (w.weight * x).sum().backward()


def autograd_grad(w: World, x: Tensor) -> object:
    return torch.autograd.grad((w.weight * x).sum(), w.weight)


def dual(w: World, x: Tensor) -> None:
    with torch.autograd.forward_ad.dual_level():
        torch.autograd.forward_ad.make_dual(x, x)


def function_mode(w: World, x: Tensor) -> None:
    with torch.overrides.BaseTorchFunctionMode():
        w.log.append(x + 1)


def device_context(w: World, x: Tensor) -> None:
    with torch.device("cpu"):
        w.log.append(torch.ones(2))


def functional(w: World, x: Tensor) -> object:
    return torch.func.grad(lambda t: (t * t).sum())(x)


def mapped(w: World, x: Tensor) -> object:
    return torch.vmap(lambda t: w.log.append(1) or t * 2)(x)  # type: ignore[func-returns-value]


def write_file(w: World, x: Tensor) -> None:
    with open(tempfile.gettempdir() + "/frametap-test-must-not-exist", "w") as out:
        out.write("x")


LOGGER = logging.getLogger("frametap-test")


def to_numpy(w: World, x: Tensor) -> object:
    w.array += 1
    return x.numpy()


def random_of_generator(w: World, x: Tensor) -> object:
    return torch.rand(2, generator=w.generator)


def branches(w: World, x: Tensor) -> None:
    if (x * 2).sum() > 0:
        w.log.append("taken")


def branches_on_item(w: World, x: Tensor) -> None:
    if x.sum().item() > 0:
        w.log.append("taken")


def asserts(w: World, x: Tensor) -> None:
    assert x.sum() > 0, w.log.append("asserted")  # type: ignore[func-returns-value]


def loops_over_an_iterator(w: World, x: Tensor) -> None:
    for one in map(w.log.append, iter(w.deque)):
        w.number += 1 if one is None else 2


def opens_a_class(w: World, x: Tensor) -> None:
    class Made:
        w.log.append("class body")


def imports(w: World, x: Tensor) -> None:
    import this  # noqa: F401


def sorts(w: World, x: Tensor) -> None:
    w.log.extend([3, 1, 2])
    w.log.sort(key=lambda n: print("said although refused") or n)  # type: ignore[func-returns-value]


class Multiplies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        print("said although refused")
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


@torch.library.custom_op("frametap_test::says", mutates_args=())
def says(x: Tensor) -> Tensor:
    print("said although refused")
    return x.clone()


with contextlib.redirect_stdout(io.StringIO()):
    says(
        torch.ones(2)
    )  # torch imports modules at the first call, which is work of a first call to us


CAUSES: list[Act] = [
    unknown_c_code,
    scaled_grad,
    autograd_grad,
    dual,
    function_mode,
    device_context,
    functional,
    mapped,
    write_file,
    to_numpy,
    random_of_generator,
    branches,
    branches_on_item,
    asserts,
    opens_a_class,
    imports,
    sorts,
    lambda w, x: print("said although refused"),
    lambda w, x: torch.set_default_dtype(torch.float64),
    lambda w, x: torch.set_default_device("cpu"),
    lambda w, x: torch.default_generator.manual_seed(3),
    lambda w, x: LOGGER.handle(LOGGER.makeRecord("", 1, "", 1, "said although refused", (), None)),
    lambda w, x: random.random(),
    lambda w, x: np.random.rand(),
    lambda w, x: warnings.simplefilter("ignore"),
    lambda w, x: w.buffer.resize_(5),
    lambda w, x: w.buffer.requires_grad_(),
    lambda w, x: w.buffer.numpy().fill(3),
    lambda w, x: setattr(w.weight, "grad", torch.ones(2)),
    lambda w, x: w.weight.register_hook(print),
    lambda w, x: torch.use_deterministic_algorithms(True),
    lambda w, x: torch.autograd.set_detect_anomaly(True),
    lambda w, x: x.tolist() and w.buffer.data_ptr() and print("said although refused"),
    lambda w, x: Multiplies.apply(x),
    lambda w, x: says(x),
    lambda w, x: torch._C._autograd._profiler_enabled() or print("said although refused"),
    lambda w, x: exec("w.log.append('executed')"),  # noqa: S102
    lambda w, x: w.array.fill(7),
]


def change_all(w: World, x: Tensor) -> Tensor:
    """The effects that a graph can have, and the effects that have to be taken back."""
    w.log.append(x)
    w.dict["c"] = 3
    del w.dict["a"]
    torch.backends.cuda.enable_flash_sdp(False)
    torch._C._set_sdp_use_overrideable(False)
    torch._C._set_sdp_priority_order([0, 1, 2, 3, 4])
    w.ordered["z"] = 1
    w.set.add(3)
    w.number += 1
    w.made = w.number  # type: ignore[attr-defined]
    w.buffer.add_(1)
    w.buffer.mul_(2)
    set_global(w, x)
    for i in range(20):
        w.log.append(i)
    return torch.nn.functional.dropout(x, 0.5) + 1


def in_modes(w: World, x: Tensor, act: Act) -> None:
    y = change_all(w, x)
    with torch.no_grad(), torch.autocast("cpu"):
        y = y @ torch.ones(2, 2)
        act(w, x)


def in_finally(w: World, x: Tensor, act: Act) -> None:
    torch.set_grad_enabled(False)
    try:
        change_all(w, x)
        act(w, x)
    finally:
        w.log.append("finally")
        print("said although refused")


class Manager:
    def __init__(self, w: World) -> None:
        self.w = w

    def __enter__(self) -> None:
        self.w.number += 1

    def __exit__(self, *exc: object) -> bool:
        print("said although refused")
        self.w.number = -1
        return True


def in_manager(w: World, x: Tensor, act: Act) -> None:
    with Manager(w):
        change_all(w, x)
        [act(w, x) for _ in range(2)]


def in_handler_of_all(w: World, x: Tensor, act: Act) -> None:
    try:
        change_all(w, x)
        act(w, x)
    except BaseException:
        w.log.append("handled")
        print("said although refused")
        raise


def in_nested_blocks(w: World, x: Tensor, act: Act) -> None:
    change_all(w, x)
    try:
        with Manager(w), Manager(w):
            try:
                raise ValueError
            except ValueError as e:
                try:
                    act(w, x)
                finally:
                    w.log.append(e)
    except RuntimeError as e:
        w.log.append(e)
    finally:
        print("said although refused")


def with_variables(w: World, x: Tensor, act: Act) -> None:
    VARIABLE.set(3)
    token = VARIABLE_SET.set(4)
    change_all(w, x)
    act(w, x)
    VARIABLE_SET.reset(token)


class Model(nn.Module):
    def __init__(self, w: World, act: Act) -> None:
        super().__init__()
        self.w, self.act, self.lin = w, act, nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.calls = 1
        y = self.lin(change_all(self.w, x))
        self.act(self.w, y.detach())
        return y


def in_module(w: World, x: Tensor, act: Act) -> None:
    Model(w, act)(x)


@pytest.mark.parametrize(
    "around",
    [in_modes, in_finally, in_manager, in_handler_of_all, in_nested_blocks, with_variables],
)
@pytest.mark.parametrize("act", CAUSES, ids=range(len(CAUSES)))
def test_refusal_leaves_nothing(
    act: Act, around: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    w = World()
    x = torch.ones(2)
    before = w.snapshot()
    for _ in range(2):
        with pytest.raises(frametap.FullGraphError):
            frametap.compile(around, fullgraph=True)(w, x, act)
        after = w.snapshot()
        for what, value in before.items():
            assert same(after[what], value), what
    said = capfd.readouterr()
    assert "although refused" not in said.out + said.err


def same(a: Any, b: Any) -> bool:
    return bool(a is b or a == b)


@pytest.mark.parametrize("act", CAUSES, ids=range(len(CAUSES)))
def test_refused_module_leaves_nothing(act: Act, capfd: pytest.CaptureFixture[str]) -> None:
    w = World()
    model = Model(w, act)
    before, attributes = w.snapshot(), sorted(vars(model))
    captured = frametap.compile(model, fullgraph=True)
    for _ in range(2):
        with pytest.raises(frametap.FullGraphError):
            captured(torch.ones(2))
        after = w.snapshot()
        for what, value in before.items():
            assert same(after[what], value), what
        assert sorted(vars(model)) == attributes
    said = capfd.readouterr()
    assert "although refused" not in said.out + said.err


# -- the program's own exceptions --


def op_raises(x: Tensor) -> Tensor:
    return x @ torch.ones(7)


def raises(x: Tensor) -> Tensor:
    raise ValueError("of the program")


def key_error(x: Tensor) -> Tensor:
    return {"a": x}["b"]


def index_error(x: Tensor) -> Tensor:
    return x[9]


@contextlib.contextmanager
def logged(log: list[Any]) -> Any:
    log.append("in")
    try:
        yield
    finally:
        log.append("out")


def body_no_grad(f: Callable[[Tensor], Tensor], x: Tensor, log: list[Any]) -> Tensor:
    with torch.no_grad():
        log.append(1)
        return f(x + 1)


def body_finally(f: Callable[[Tensor], Tensor], x: Tensor, log: list[Any]) -> Tensor:
    torch.set_grad_enabled(False)
    try:
        return f(x + 1)
    finally:
        log.append("finally")
        torch.set_grad_enabled(True)


def body_other_class(f: Callable[[Tensor], Tensor], x: Tensor, log: list[Any]) -> Tensor:
    try:
        return f(x + 1)
    except ZeroDivisionError:
        log.append("not so")
        return x


def body_manager(f: Callable[[Tensor], Tensor], x: Tensor, log: list[Any]) -> Tensor:
    with logged(log):
        return f(x + 1)


class Noisy:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __enter__(self) -> None:
        torch.set_grad_enabled(False)

    def __exit__(self, *exc: object) -> None:
        print(end="")
        torch.set_grad_enabled(True)
        self.log.append(str(exc[1]))


def body_noisy_manager(f: Callable[[Tensor], Tensor], x: Tensor, log: list[Any]) -> Tensor:
    with Noisy(log), torch.no_grad():
        return f(x + 1)


def body_noisy_finally(f: Callable[[Tensor], Tensor], x: Tensor, log: list[Any]) -> Tensor:
    try:
        try:
            return f(x + 1)
        finally:
            print(end="")
            log.append("inner")
    except ZeroDivisionError:
        return x
    finally:
        log.append("outer")


@pytest.mark.parametrize(
    "body",
    [
        body_no_grad,
        body_finally,
        body_other_class,
        body_manager,
        body_noisy_manager,
        body_noisy_finally,
    ],
)
@pytest.mark.parametrize("f", [op_raises, raises, key_error, index_error])
def test_exception_is_the_programs_own(
    f: Callable[[Tensor], Tensor], body: Callable[..., Tensor]
) -> None:
    def run(call: Callable[..., Tensor]) -> tuple[Any, ...]:
        log: list[Any] = []
        x = torch.ones(2)
        with pytest.raises(Exception) as caught:
            call(f, x, log)
        state = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")
        return type(caught.value), str(caught.value), log, state

    captured = frametap.compile(body, fullgraph=True)
    want = run(body)
    assert want[3] == (True, False)
    for _ in range(3):
        assert run(captured) == want


def caught_by_class(x: Tensor, log: list[Any]) -> Tensor:
    try:
        return op_raises(x + 1)
    except RuntimeError:
        log.append("handled")
        return x


def caught_bare(x: Tensor, log: list[Any]) -> Tensor:
    try:
        return op_raises(x + 1)
    except:  # noqa: E722
        log.append("handled")
        return x


def suppressed(x: Tensor, log: list[Any]) -> Tensor:
    with contextlib.suppress(RuntimeError):
        op_raises(x + 1)
    log.append("handled")
    return x


def returns_in_finally(x: Tensor, log: list[Any]) -> Tensor:
    try:
        return op_raises(x + 1)
    finally:
        return x  # noqa: B012, SIM107


class Lazy:
    @property
    def value(self) -> Tensor:
        torch.ones(2)[9]
        raise AssertionError

    def __getattr__(self, name: str) -> object:
        raise AttributeError(name)


def caught_after_finally(x: Tensor, log: list[Any]) -> Tensor:
    def inner() -> Tensor:
        with torch.no_grad():
            return op_raises(x)

    try:
        return inner()
    except (ValueError, RuntimeError) as e:
        log.append(str(e))
        return x


@pytest.mark.parametrize(
    "f", [caught_by_class, caught_bare, suppressed, returns_in_finally, caught_after_finally]
)
def test_exception_of_an_op_that_is_caught_is_refused(f: Callable[..., Tensor]) -> None:
    log: list[Any] = []
    x = torch.ones(2)
    captured = frametap.compile(f, fullgraph=True)
    for _ in range(2):
        with pytest.raises(frametap.FullGraphError, match="exception"):
            captured(x, log)
        assert log == []
        assert torch.is_grad_enabled()


def test_exception_of_python_that_is_caught_is_part_of_the_graph() -> None:
    def f(x: Tensor, d: dict[str, int]) -> Tensor:
        try:
            n = d["n"]
        except KeyError:
            n = 7
        try:
            raise ValueError(n)
        except ValueError as e:
            y = x * e.args[0]
        return y + math.pi

    captured = frametap.compile(f, fullgraph=True)
    x = torch.ones(2)
    for d in ({}, {}, {"n": 3}, {}):
        assert torch.equal(captured(x, d), f(x, d))


def test_many_changes_of_one_container_are_taken_back() -> None:
    """The list is copied once, not at each append: 4,000 copies of 100,000 items would need 3 GB."""
    log = list(range(100_000))

    def f(x: Tensor) -> Tensor:
        for i in range(4000):
            log.append(i)  # noqa: PERF402
        print(end="")
        return x

    with pytest.raises(frametap.FullGraphError):
        frametap.compile(f, fullgraph=True)(torch.ones(1))
    assert len(log) == 100_000


def _numbers(x: Tensor) -> Iterator[Tensor]:
    try:
        yield x + 1
        yield x + 2
    finally:
        x.numel()


def _returns_generator(x: Tensor) -> object:
    return _numbers(x)


def _keeps_begun_generator(x: Tensor) -> object:
    rows = _numbers(x)
    next(rows)
    return rows


@pytest.mark.parametrize("f", [_returns_generator, _keeps_begun_generator])
def test_result_that_cannot_be_made_again_is_refused(f: Callable[[Tensor], object]) -> None:
    captured = frametap.compile(f, fullgraph=True)
    for _ in range(3):
        with pytest.raises(frametap.FullGraphError, match=f.__name__) as error:
            captured(torch.ones(2))
        assert error.value.reason in ("escaping_object", "generator_dropped")
        assert error.value.advice


def test_refused_result_leaves_nothing() -> None:
    seen: list[int] = []
    total = torch.zeros(2)

    def f(x: Tensor) -> object:
        seen.append(1)
        total.add_(x)
        return _numbers(x)

    captured = frametap.compile(f, fullgraph=True)
    for _ in range(3):
        with pytest.raises(frametap.FullGraphError):
            captured(torch.ones(2))
    assert seen == []
    assert total.tolist() == [0, 0]


def test_generator_function_is_refused() -> None:
    captured = frametap.compile(_numbers, fullgraph=True)
    with pytest.raises(frametap.FullGraphError, match="no graph of _numbers") as error:
        captured(torch.ones(2))
    assert error.value.reason == "generator_function"
    assert "compile the functions that it calls" in error.value.advice
