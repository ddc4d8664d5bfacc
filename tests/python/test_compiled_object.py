"""The compiled form of a function is used as the function is: copied, pickled, bound, looked at, called wrongly."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import pydoc
import types
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.subject import EAGER, frametap, needs_capture


def plain(x: Tensor, scale: float = 2.0, *more: float, shift: float = 0.0, **rest: Any) -> Tensor:
    """Scales and shifts."""
    return (x * scale + shift).relu()


wrapped = frametap.compile(plain)


@frametap.compile
def decorated(x: Tensor) -> Tensor:
    return x + 1


async def waits(x: Tensor) -> Tensor:
    return x + 1


def yields(x: Tensor) -> Any:
    yield x + 1


class Holder:
    def method(self, a: Any, b: Any) -> Any:
        return a, b


# -- copies and pickles --


def test_copies_of_a_function_are_the_function() -> None:
    for f in (wrapped, decorated):
        assert copy.copy(f) is f
        assert copy.deepcopy(f) is f
        assert copy.deepcopy({"f": [f]})["f"][0] is f


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_by_name(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(decorated, protocol)) is decorated
    # The name leads to the function that was captured: that is what comes back.
    assert pickle.loads(pickle.dumps(wrapped, protocol)) is plain
    assert pickle.loads(pickle.dumps(frametap.compile(plain), protocol)) is plain


def test_what_cannot_be_pickled_is_told_as_of_a_function() -> None:
    def local(x: Tensor) -> Tensor:
        return x

    def other(x: Tensor) -> Tensor:
        return x

    other.__qualname__ = "plain"
    absent = types.FunctionType(plain.__code__, globals(), "absent")
    for f in (local, other, absent, lambda x: x):
        for dumps in (pickle.dumps, pickle._dumps):
            with pytest.raises((pickle.PicklingError, AttributeError)) as want:
                dumps(f)
            with pytest.raises(type(want.value)) as got:
                dumps(frametap.compile(f))
            assert str(got.value) == str(want.value)


class Model:
    """A class with captured methods."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    @frametap.compile
    def run(self, x: Tensor) -> Tensor:
        """Runs."""
        return x * self.scale

    def plain(self, x: Tensor) -> Tensor:
        return x - self.scale

    @staticmethod
    @frametap.compile
    def static(x: Tensor) -> Tensor:
        return x * 2

    @classmethod
    @frametap.compile
    def made(cls, x: Tensor) -> tuple[str, Tensor]:
        return cls.__name__, x * 3


def test_copies_of_methods() -> None:
    model, x = Model(2.0), torch.ones(2)
    for captured in (model.run, frametap.compile(model.plain)):
        captured(x)
        twin, clone = copy.copy(captured), copy.deepcopy(captured)
        sent = pickle.loads(pickle.dumps(captured))
        model.scale = 5.0
        assert torch.equal(twin(x), captured(x))
        for other in (clone, sent):
            assert other.__self__ is not model
            assert other.__self__.scale == 2.0
            assert not torch.equal(other(x), captured(x))
        assert type(clone) is type(captured)
        assert clone.__name__ == captured.__name__
        model.scale = 2.0


@needs_capture
def test_a_deep_copy_has_the_options() -> None:
    strict = frametap.compile(Model(2.0).plain, fullgraph=True, options={"segment_limit": 3})
    settings = frametap._C.settings(copy.deepcopy(strict))
    assert settings == frametap._C.settings(strict)
    assert (settings["fullgraph"], settings["segment_limit"]) == (True, 3)


def test_a_deep_copy_of_a_partial_is_independent() -> None:
    f = frametap.compile(functools.partial(Model.plain, Model(2.0)))
    x = torch.ones(2)
    want = f(x)
    clone = copy.deepcopy(f)
    clone.args[0].scale = 7.0
    assert torch.equal(f(x), want)
    assert torch.equal(clone(x), x - 7)


# -- what a function looks like --


def test_attributes_of_the_function() -> None:
    f = frametap.compile(plain)
    assert f.__wrapped__ is plain or EAGER
    for name in (
        *functools.WRAPPER_ASSIGNMENTS,
        *("__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"),
    ):
        assert getattr(f, name) == getattr(plain, name), name
    assert inspect.signature(f) == inspect.signature(plain)
    assert inspect.getsource(f) == inspect.getsource(plain)
    assert inspect.getdoc(f) == inspect.getdoc(plain)
    f.tag = "x"
    assert vars(f)["tag"] == "x"


def test_help() -> None:
    want = pydoc.plain(pydoc.render_doc(plain)).splitlines()
    assert pydoc.plain(pydoc.render_doc(frametap.compile(plain))).splitlines()[1:] == want[1:]
    page = pydoc.plain(pydoc.render_doc(Model))
    assert "run(self, x" in page
    assert "Runs." in page


@pytest.mark.parametrize("f", [plain, waits, yields, Holder().method], ids=lambda f: f.__name__)
def test_what_inspect_says(f: Any) -> None:
    captured = frametap.compile(f)
    for question in (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
        inspect.isroutine,
        callable,
    ):
        assert question(captured) == question(f), question


def test_defaults_may_be_set() -> None:
    def scaled(x: Tensor, scale: float = 2.0, *, shift: float = 0.0) -> Tensor:
        return x * scale + shift

    f = frametap.compile(scaled)
    x = torch.ones(2)
    for _ in range(2):
        assert torch.equal(f(x), x * 2)
    f.__defaults__ = (3.0,)
    f.__kwdefaults__ = {"shift": 1.0}
    assert scaled.__defaults__ == (3.0,)
    for _ in range(2):
        assert torch.equal(f(x), x * 3 + 1)
    del f.__defaults__
    with pytest.raises(TypeError):
        f(x)


# -- how it is held and bound --


def test_bound_as_a_function_is() -> None:
    a, b, x = Model(2.0), Model(5.0), torch.ones(2)
    Model.late = frametap.compile(lambda self, x: x + self.scale)  # type: ignore[attr-defined]
    try:
        for _ in range(3):
            assert torch.equal(a.run(x), x * 2)
            assert torch.equal(Model.run(b, x), x * 5)
            assert torch.equal(a.late(x), x + 2)  # type: ignore[attr-defined]
            assert torch.equal(Model.static(x), x * 2)
            assert torch.equal(a.static(x), x * 2)
            assert Model.made(x)[0] == a.made(x)[0] == "Model"
            assert torch.equal(functools.partial(wrapped, scale=4.0)(x), x * 4)
            assert torch.equal(functools.partial(a.run)(x), x * 2)
    finally:
        del Model.late  # type: ignore[attr-defined]
    assert a.run == a.run
    assert a.run != b.run
    assert a.run.__func__ is Model.__dict__["run"]


def test_keys_and_weak_references() -> None:
    f, g = frametap.compile(lambda x: x + 1), frametap.compile(lambda x: x + 2)
    names = {f: "f", g: "g"}
    assert (names[f], names[g]) == ("f", "g")
    assert f != g
    f(torch.ones(2))
    gone: list[str] = []
    reference = weakref.ref(f, lambda _: gone.append("f"))
    assert reference() is f
    del f, names
    gc.collect()
    assert reference() is None
    assert gone == ["f"]


class Deco:
    """A decorator that binds as it likes."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.name = ""

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"{owner.__name__}.{name}"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


class PartialDeco(Deco):
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return functools.partial(self, instance)


def test_other_objects_are_bound_as_their_classes_say() -> None:
    class Own:
        scale = 3.0
        partial = frametap.compile(functools.partial(torch.mul, torch.full((2,), 2.0)))
        builtin = frametap.compile(torch.relu)
        cached = frametap.compile(functools.lru_cache(lambda self: self.scale))
        bound = frametap.compile(Deco(lambda self, x: x * self.scale))
        partly = frametap.compile(PartialDeco(lambda self, x: x * self.scale))
        plain = frametap.compile(Callable())

    own, x = Own(), torch.ones(2)
    for _ in range(3):
        assert torch.equal(own.partial(x), x * 2)
        assert torch.equal(own.builtin(-x), x * 0)
        assert own.cached() == Own.cached(own) == 3
        assert torch.equal(own.bound(x), x * 3)
        assert torch.equal(own.partly(x), x * 3)
        assert torch.equal(own.plain(x), x * 2)
    assert own.bound.name == Own.bound.name == "Own.bound"
    if not EAGER:
        assert frametap.explain(Own.bound).hits > 0


def test_names_that_type_knows() -> None:
    class Base:
        heard: tuple[str, ...] = ()

        @frametap.compile
        def __init_subclass__(cls, **keywords: Any) -> None:
            cls.heard = (*cls.heard, cls.__name__, *keywords)

        @frametap.compile
        def __class_getitem__(cls, key: Any) -> Any:
            return cls, key

        @frametap.compile
        def __new__(cls, scale: float) -> Any:
            self = object.__new__(cls)
            self.scale = scale  # type: ignore[attr-defined]
            return self

    class Sub(Base, tag=1):
        pass

    for _ in range(3):
        assert Sub.heard == ("Sub", "tag")
        assert Sub[int] == (Sub, int)
        assert Sub(2.0).scale == 2.0  # type: ignore[attr-defined]
        assert Sub(2.0).__new__(Sub, 3.0).scale == 3.0  # type: ignore[attr-defined]


# -- attributes of objects that are not functions --


class Callable:
    count = 0
    scale = 2.0

    def __call__(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.scale


def test_attributes_of_a_callable_object() -> None:
    thing = Callable()
    f, x = frametap.compile(thing), torch.ones(2)
    for i in range(3):
        assert torch.equal(f(x), x * 2)
        assert f.count == thing.count == i + 1
    f.scale = 5.0
    f.tag = "t"
    assert torch.equal(f(x), x * 5)
    assert vars(f) == {"count": 4, "scale": 5.0, "tag": "t"}
    del f.scale
    assert torch.equal(f(x), x * 2)
    assert isinstance(f, Callable)
    assert "scale" in dir(f)
    with pytest.raises(AttributeError, match="'Callable' object has no attribute 'nothing'"):
        _ = f.nothing
    assert f == thing
    assert thing == f
    assert {f: 1}[thing] == 1
    assert inspect.signature(f) == inspect.signature(thing)


def test_truth_of_a_callable_object() -> None:
    class Stages(list):  # type: ignore[type-arg]
        def __call__(self, x: Tensor) -> Tensor:
            return x * 2

    f = frametap.compile(Stages())
    g = frametap.compile(lambda x: x * 2 if f else x * 3)
    for _ in range(3):
        assert not f
        assert torch.equal(g(torch.ones(2)), torch.full((2,), 3.0))
    f.append(1)
    assert f
    assert torch.equal(g(torch.ones(2)), torch.full((2,), 2.0))


def test_a_proxy_of_a_module() -> None:
    class Proxy:
        def __init__(self, of: Any) -> None:
            object.__setattr__(self, "of", of)

        def __getattribute__(self, name: str) -> Any:
            of = object.__getattribute__(self, "of")
            return of if name == "of" else getattr(of, name)

        def __setattr__(self, name: str, value: Any) -> None:
            setattr(self.of, name, value)

        def __call__(self, x: Tensor) -> Any:
            return self.of(x)

    f = frametap.compile(Proxy(torch.nn.Linear(2, 2)))
    assert isinstance(f, torch.nn.Linear)
    f.bias = None
    assert f.of.bias is None
    for _ in range(3):
        assert torch.equal(f(torch.ones(2)), f.weight.sum(1))


def test_copies_of_a_callable_object() -> None:
    f, x = frametap.compile(Callable()), torch.ones(2)
    for make in (copy.copy, copy.deepcopy, lambda f: pickle.loads(pickle.dumps(f))):
        f(x)
        other = make(f)
        assert other.count == f.count
        other.scale = 7.0
        assert torch.equal(other(x), x * 7)
        assert torch.equal(f(x), x * 2)
        assert other != f


def test_attributes_of_a_partial_and_of_a_builtin() -> None:
    x = torch.ones(2)
    f = frametap.compile(functools.partial(torch.add, x, alpha=2))
    assert (f.func, f.args[0] is x, f.keywords) == (torch.add, True, {"alpha": 2})
    f.tag = 1
    assert f.tag == 1
    assert frametap.compile(torch.relu).__name__ == "relu"
    assert frametap.compile(torch.relu) == torch.relu
    cached = frametap.compile(functools.lru_cache(plain))
    assert cached(x) is cached(x)
    assert cached.cache_info().hits == 1
    assert cached.__wrapped__ is plain
    assert inspect.signature(cached) == inspect.signature(plain)


def test_attributes_of_a_bound_method() -> None:
    model = Model(2.0)
    Model.plain.tag = "t"  # type: ignore[attr-defined]
    f = frametap.compile(model.plain)
    assert f.__func__ is Model.plain
    assert f.__self__ is model
    assert f.tag == "t"
    assert f == model.plain
    assert f != Model(2.0).plain
    assert hash(f) == hash(model.plain)
    steps = [model.plain]
    steps.remove(f)
    assert steps == []


def test_a_step_that_a_scheduler_follows() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], 0.5)
    optimizer.step = frametap.compile(optimizer.step)  # type: ignore[method-assign]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(2):
        parameter.grad = torch.ones(2)
        optimizer.step()
        scheduler.step()
    assert torch.allclose(parameter, torch.full((2,), 0.45))


# -- wrong arguments --

CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1,), {}),
    ((1, 2, 3, 4, 5), {}),
    ((1, 2), {"a": 1}),
    ((1, 2), {"nonsense": 1}),
    ((1,), {"b": 2, "c": 3, "nonsense": 4}),
    ((), {"a": 1}),
    ((), {"a": 1, "b": 2}),
    ((1, 2), {1: 2}),  # type: ignore[dict-item]
    ((1, 2, 3), {"c": 1}),
]


def positional(a: Any, b: Any) -> Any:
    return a, b


def with_default(a: Any, b: Any, c: Any = 3) -> Any:
    return a, b, c


def only_positional(a: Any, b: Any, /) -> Any:
    return a, b


def only_keyword(a: Any, *, b: Any, c: Any) -> Any:
    return a, b, c


def none_at_all() -> None:
    return None


def with_rest(a: Any, /, *rest: Any, b: Any, **names: Any) -> Any:
    return a, rest, b, names


def outcome(f: Any, args: Any, kwargs: Any) -> Any:
    try:
        return f(*args, **kwargs)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize(
    "f",
    [positional, with_default, only_positional, only_keyword, none_at_all, with_rest],
    ids=lambda f: f.__name__,
)
def test_missing_and_surplus_arguments(f: Any) -> None:
    captured = frametap.compile(f)
    for _ in range(3):
        for args, kwargs in CALLS:
            assert outcome(captured, args, kwargs) == outcome(f, args, kwargs), (args, kwargs)


def test_missing_and_surplus_arguments_of_methods_and_modules() -> None:
    class Module(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return a, b

    holder, module = Holder(), Module()
    for captured, eager in (
        (frametap.compile(holder.method), holder.method),
        (frametap.compile(module), module),
    ):
        for _ in range(3):
            for args, kwargs in CALLS:
                assert outcome(captured, args, kwargs) == outcome(eager, args, kwargs)
