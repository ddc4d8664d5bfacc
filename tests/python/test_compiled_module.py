"""The compiled form of a module is used as the module is: its class, copies, slots, end; see also test_api.py."""

from __future__ import annotations

import abc
import copy
import gc
import pickle
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

from fixtures.subject import EAGER, frametap, needs_capture


class Net(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Counted(Net):
    calls = 0

    def predict(self, x: Tensor) -> Any:
        type(self).calls += 1
        return self(x)

    @classmethod
    def make(cls, scale: float) -> Counted:
        return cls(scale)

    def clone(self) -> Counted:
        other = type(self).__new__(type(self))
        Net.__init__(other, self.scale + 1)
        return other


def same(f: Any, want: float) -> bool:
    x = torch.ones(2)
    return all(torch.equal(f(x), x * want) for _ in range(3))


# -- its class --


def test_other_instances_of_its_class_are_themselves() -> None:
    f = frametap.compile(Counted(2.0))
    assert same(f, 2)
    assert same(type(f)(5.0), 5)
    assert same(f.__class__(7.0), 7)
    assert same(f.make(9.0), 9)
    assert same(f.clone(), 3)
    assert same(type("Sub", (type(f),), {"extra": 1})(4.0), 4)
    assert same(f, 2)


def test_part_of_a_sequential() -> None:
    f = frametap.compile(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    x = torch.ones(2)
    assert f(x).shape == (1,)
    assert f[:1](x).shape == (3,)


def test_what_class_it_is() -> None:
    f = frametap.compile(Counted(2.0))
    assert f.__class__ is Counted
    assert isinstance(f, Counted)
    assert isinstance(Counted(1.0), type(f))
    assert not isinstance(Net(1.0), type(f))
    assert issubclass(Counted, type(f))
    assert type(f).__bases__ == (Net,)
    assert pickle.loads(pickle.dumps(type(f))) is Counted


def test_what_is_set_on_its_class() -> None:
    class Own(Counted):
        pass

    f = frametap.compile(Own(2.0))
    f.predict(torch.ones(2))
    assert Own.calls == 1
    assert same(f, 2)
    with mock.patch.object(type(f), "forward", lambda self, x: x * 100):
        assert same(f, 100)
    assert same(f, 2)
    f.__class__.forward = lambda self, x: x * 50
    assert same(f, 50)
    del type(f).forward
    assert same(f, 2)


def test_bases_hear_of_no_other_class() -> None:
    heard = []

    class Told(nn.Module):
        def __init_subclass__(cls, *, tag: str) -> None:
            heard.append(cls)

    class Meta(abc.ABCMeta):
        def __init__(cls, *args: Any) -> None:
            super().__init__(*args)
            heard.append(cls)

    class One(Told, tag="a"):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Two(Net, metaclass=Meta):
        pass

    f, g = frametap.compile(One()), frametap.compile(Two(3.0))
    assert heard == [One, Two]
    assert same(f, 2)
    assert same(g, 3)
    assert same(type(g)(4.0), 4)
    assert isinstance(Two(1.0), Two)
    assert isinstance(Two(1.0), type(g))


def test_abstract_classes() -> None:
    class Base(nn.Module, abc.ABC):
        @abc.abstractmethod
        def forward(self, x: Tensor) -> Tensor: ...

    class Own(Base):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Registered(abc.ABC):
        pass

    Registered.register(Own)
    f = frametap.compile(Own())
    assert same(f, 2)
    assert isinstance(f, Base)
    assert isinstance(f, Registered)
    assert isinstance(Own(), type(f))
    assert isinstance(Own(), Own)
    for kind in (Own, Base, Registered, type(f)):
        assert not isinstance(nn.ReLU(), kind)
        assert not issubclass(nn.ReLU, kind)
        assert issubclass(type(f), kind)


def test_a_class_with_a_new_of_its_own() -> None:
    class Own(Net):
        def __new__(cls, scale: float) -> Any:
            return super().__new__(cls)

    assert same(frametap.compile(Own(2.0)), 2)


def test_modules_of_fx_and_of_jit() -> None:
    f = frametap.compile(torch.fx.symbolic_trace(Net(2.0)))
    assert same(f, 2)
    next(node for node in f.graph.nodes if node.op == "call_function").args = (
        *next(node.args[:1] for node in f.graph.nodes if node.op == "call_function"),
        7.0,
    )
    f.recompile()
    assert same(f, 7)
    assert same(copy.deepcopy(f), 7)
    assert same(frametap.compile(torch.jit.trace(Net(3.0), torch.ones(2))), 3)


@pytest.mark.parametrize("given_to", ["compiled", "original"])
def test_another_class_is_assigned(given_to: str) -> None:
    class Other(Net):
        def forward(self, x: Tensor) -> Tensor:
            return x * 100

        def only_here(self) -> int:
            return 1

    net = Counted(2.0)
    f = frametap.compile(net)
    assert same(f, 2)
    (f if given_to == "compiled" else net).__class__ = Other
    assert same(f, 100)
    assert (type(f).__name__, f.only_here()) == ("Other", 1)
    assert not isinstance(f, Counted)
    assert isinstance(net, Other)


def test_parametrizations() -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    f = frametap.compile(net)
    want = f(x)
    nn.utils.parametrizations.weight_norm(f)
    for _ in range(3):
        assert torch.allclose(f(x), want)
    assert f.weight.shape == net.weight.shape
    with torch.no_grad():
        f.parametrizations.weight.original0.mul_(2)
        assert torch.allclose(f(x) - f.bias, (want - f.bias) * 2)
    nn.utils.parametrize.remove_parametrizations(f, "weight")
    assert torch.allclose(f(x) - f.bias, (want - f.bias) * 2)
    assert f.__class__ is nn.Linear


def test_lazy_modules() -> None:
    f = frametap.compile(nn.LazyLinear(3))
    for _ in range(3):
        assert f(torch.ones(1, 2)).shape == (1, 3)
    assert f.__class__ is nn.Linear
    assert not isinstance(f, nn.LazyLinear)


def test_code_inside_meets_an_equal_module() -> None:
    seen: dict[nn.Module, Tensor] = {}
    net = Net(2.0)
    f, x = frametap.compile(net), torch.ones(2)
    f.register_forward_hook(lambda module, args, out: seen.__setitem__(module, out))
    assert same(f, 2)
    assert torch.equal(seen[f], x * 2)
    assert f in [net]
    assert f == net
    assert net == f
    assert f != Net(2.0)
    assert len(list(nn.ModuleList([net, f]).modules())) == 2
    assert frametap.compile(net) == f


# -- copies, state, end --


def test_a_shallow_copy_is_another_module() -> None:
    f = frametap.compile(Net(2.0))
    other = copy.copy(f)
    other.scale = 5.0
    assert same(f, 2)
    assert same(other, 5)
    assert type(other).__name__ == "Net"


def test_slots_are_shared() -> None:
    class Tagged:
        __slots__ = ("tag",)

    class Own(Tagged, Net):
        def __init__(self) -> None:
            super().__init__(2.0)
            self.tag = 4.0

        def forward(self, x: Tensor) -> Tensor:
            return x * self.tag

    net = Own()
    f = frametap.compile(net)
    assert same(f, 4)
    f.tag += 1
    assert net.tag == 5
    assert same(f, 5)
    del f.tag
    assert not hasattr(net, "tag")


@needs_capture
def test_state_that_cannot_be_shared_is_refused() -> None:
    class Own(nn.Module, list):  # type: ignore[misc,type-arg]
        pass

    with pytest.raises(frametap.FrametapError, match="state that is not in their __dict__"):
        frametap.compile(Own())


def test_a_finaliser_runs_once() -> None:
    log = []

    class Own(Net):
        def __del__(self) -> None:
            log.append("closed")

    f = frametap.compile(Own(2.0))
    assert same(f, 2)
    del f
    gc.collect()
    assert log == ["closed"]


def test_as_a_child_of_what_is_captured() -> None:
    """Questions about its class in a graph are answered for the class of the original."""
    child = frametap.compile(Counted(2.0))

    def body(x: Tensor) -> tuple[Any, ...]:
        y = child(x * 2)
        return (
            y,
            isinstance(child, Counted),
            isinstance(child, nn.Linear),
            child.__class__ is Counted,
            type(child)(3.0).scale,
            child.scale,
        )

    f = frametap.compile(body)
    for _ in range(4):
        y, *rest = f(torch.ones(2))
        assert torch.equal(y, torch.full((2,), 4.0))
        assert rest == [True, False, True, 3.0, 2.0]
    if not EAGER:
        assert frametap.explain(f).hits > 0
