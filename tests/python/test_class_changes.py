"""A class whose version differs is looked at again: it is a miss only if something that the recording read of it differs."""

from __future__ import annotations

import collections.abc
import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import frametap

LACKS = object()


@contextmanager
def patched(owner: type, name: str, value: Any) -> Iterator[None]:
    before = owner.__dict__.get(name, LACKS)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is LACKS:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def model() -> tuple[type[nn.Module], nn.Module]:
    class Model(nn.Module):
        scale = 2.0

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.linear(x)) * self.scale

        def act(self, x: Tensor) -> Tensor:
            return torch.relu(x)

    return Model, Model()


def recordings(captured: Any, plain: nn.Module, x: Tensor) -> int:
    before = frametap.explain(captured).recordings
    assert torch.equal(captured(x), plain(x))
    return frametap.explain(captured).recordings - before


def compiles_a_function(x: Tensor) -> None:
    torch.compile(lambda y: nn.functional.relu(y) + 1, backend="eager")(x)


def compiles_a_module(x: Tensor) -> None:
    torch.compile(nn.Linear(4, 4), backend="aot_eager")(x)


def traces(x: Tensor) -> None:
    torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))


def exports(x: Tensor) -> None:
    torch.export.export(nn.Linear(4, 4), (x,))


def registers(x: Tensor) -> None:
    class Registered:
        pass

    collections.abc.Sequence.register(Registered)


def patches_for_a_moment(x: Tensor) -> None:
    call = nn.Module.__call__
    with patched(nn.Module, "__call__", lambda self, *args: call(self, *args)):
        pass


@pytest.mark.parametrize(
    "deed",
    [compiles_a_function, compiles_a_module, traces, exports, registers, patches_for_a_moment],
)
def test_what_leaves_classes_as_they_are_is_no_miss(deed: Callable[[Tensor], None]) -> None:
    _, plain = model()
    captured, x = frametap.compile(plain), torch.randn(2, 4)
    captured(x)
    deed(x)
    assert recordings(captured, plain, x) == 0


@pytest.mark.parametrize("name", ["unrelated", "__annotations__", "__doc__"])
@pytest.mark.parametrize("where", ["own", "base", "inner"])
def test_what_nobody_read_is_no_miss(where: str, name: str) -> None:
    own, plain = model()
    captured, x = frametap.compile(plain), torch.randn(2, 4)
    captured(x)
    owner = {"own": own, "base": nn.Module, "inner": nn.Linear}[where]
    value: Any = {} if name == "__annotations__" else "value"
    with patched(owner, name, value):
        assert recordings(captured, plain, x) == 0
    assert recordings(captured, plain, x) == 0


CHANGES: dict[str, Any] = {
    "act": lambda self, x: x + 1,
    "scale": 3.0,
    "forward": lambda self, x: x,
    "linear": property(lambda self: torch.relu),
    "__getattribute__": lambda self, name: nn.Module.__getattribute__(self, name),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_read_is_a_miss_until_it_is_put_back(name: str) -> None:
    own, plain = model()
    captured, x = frametap.compile(plain), torch.randn(2, 4)
    captured(x)
    with patched(own, name, CHANGES[name]):
        assert recordings(captured, plain, x) == 1
    assert recordings(captured, plain, x) == 0


def test_a_deleted_override_is_a_miss() -> None:
    class Base(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor()

        def factor(self) -> float:
            return 2.0

    class Derived(Base):
        def factor(self) -> float:
            return 3.0

    plain = Derived()
    captured, x = frametap.compile(plain), torch.randn(2, 4)
    captured(x)
    del Derived.factor
    assert recordings(captured, plain, x) == 1


def test_a_constructor_counts_where_instances_are_made() -> None:
    class Part:
        def __init__(self) -> None:
            self.factor = 2.0

    def scaled(x: Tensor) -> Tensor:
        return x * Part().factor

    captured, x = frametap.compile(scaled), torch.ones(2)
    assert torch.equal(captured(x), x * 2)

    def init(self: Part) -> None:
        self.factor = 5.0

    with patched(Part, "__init__", init):
        assert torch.equal(captured(x), x * 5)
    assert torch.equal(captured(x), x * 2)


def test_a_name_that_is_computed_counts() -> None:
    class Holder:
        part_0 = 2.0

    holder = Holder()

    def scaled(x: Tensor, index: int) -> Tensor:
        return x * getattr(holder, f"part_{index}")

    captured, x = frametap.compile(scaled), torch.ones(2)
    assert torch.equal(captured(x, 0), x * 2)
    with patched(Holder, "part_0", 7.0):
        assert torch.equal(captured(x, 0), x * 7)


class Base:
    scale = 2.0
    __match_args__ = ("scale",)

    def __init__(self) -> None:
        self.own = 1.0

    def scaled(self) -> float:
        return self.scale


def in_pattern(owner: Any) -> float:
    match owner():
        case Base(scale=scale):
            return scale
    return 0.0


def in_pattern_by_position(owner: Any) -> float:
    match owner():
        case Base(scale):
            return scale
    return 0.0


def made(owner: Any) -> float:
    return owner().own


def other_init(self: Any) -> None:
    self.own = 4.0


# How a class is read without an instruction that names the attribute: (the reader, the name, another value for it).
READERS: dict[str, tuple[Callable[[Any], Any], str, Any]] = {
    "class pattern": (in_pattern, "scale", 5.0),
    "class pattern by position": (in_pattern_by_position, "scale", 5.0),
    "attrgetter": (lambda owner: GET_SCALE(owner()), "scale", 5.0),
    "attrgetter of a class": (lambda owner: GET_SCALE(owner), "scale", 5.0),
    "methodcaller": (lambda owner: CALL_SCALED(owner()), "scaled", lambda self: 7.0),
    "format": (lambda owner: float(SCALE_FORMAT.format(owner())), "scale", 5.0),
    "getattr with a default": (
        lambda owner: getattr(owner(), "rest", 3.0),
        "rest",
        5.0,
    ),
    "getattr in map": (lambda owner: sum(map(partial(getattr, owner()), NAMES)), "scale", 5.0),
    "hasattr": (
        lambda owner: sum(hasattr(owner(), name) for name in ("rest", "none")),
        "rest",
        5.0,
    ),
    "the dict of the class": (
        lambda owner: owner.__dict__.get("rest", 1.0),
        "rest",
        5.0,
    ),
    "vars": (lambda owner: len(vars(owner)), "rest", 5.0),
    "dir": (lambda owner: len(dir(owner())), "rest", 5.0),
    "truth": (lambda owner: 2.0 if owner() else 1.0, "__len__", lambda self: 0),
    "equality": (
        lambda owner: 2.0 if owner() == owner() else 1.0,
        "__eq__",
        lambda self, other: True,
    ),
    "construction in map": (
        lambda owner: next(map(made, [owner])),
        "__init__",
        other_init,
    ),
    "construction by defaultdict": (
        lambda owner: collections.defaultdict(owner)["a"].own,
        "__init__",
        other_init,
    ),
    "deepcopy": (
        lambda owner: copy.deepcopy(owner()).own,
        "__setstate__",
        lambda self, state: other_init(self),
    ),
}
SCALE_FORMAT = "{.scale}"
GET_SCALE, CALL_SCALED, NAMES = (
    operator.attrgetter("scale"),
    operator.methodcaller("scaled"),
    ["scale", "own"],
)


@pytest.mark.parametrize("on_base", [False, True], ids=["own", "base"])
@pytest.mark.parametrize("reader", READERS)
def test_a_read_that_no_instruction_names_counts(reader: str, on_base: bool) -> None:
    read, name, value = READERS[reader]

    class Above(Base):
        pass

    class Owner(Above):
        pass

    def scaled(x: Tensor) -> Tensor:
        return x * read(Owner)

    captured, x = frametap.compile(scaled), torch.ones(2)
    before = scaled(x)
    assert torch.equal(captured(x), before)
    with patched(Above if on_base else Owner, name, value):
        assert not torch.equal(scaled(x), before) or (
            on_base and reader in ("vars", "the dict of the class")
        )
        assert torch.equal(captured(x), scaled(x))
    assert torch.equal(captured(x), before)
