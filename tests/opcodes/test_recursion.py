"""A recursion goes as deep in our interpreter as in CPython, whatever it goes through.

CPython's loop counts frames, and some C functions on the way. Which ones it counts depends on how it has
specialised the call, so our interpreter must be like code that has run a few times.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from opcodes.harness import interpreter

Again = Callable[[], Any]
SLACK = 12  # frames that ran before CPython specialised the code; the frames around the recursion


class Thing:
    """Each way from C back to Python calls `again`."""

    def __init__(self, again: Again) -> None:
        self.again = again

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "again":
            raise AttributeError(name)
        return self.again()

    def __getitem__(self, key: object) -> Any:
        return self.again()

    def __setitem__(self, key: object, value: object) -> None:
        self.again()

    def __call__(self, *args: object) -> Any:
        return self.again()

    def __str__(self) -> str:
        self.again()
        return ""

    def __repr__(self) -> str:
        self.again()
        return ""

    def __format__(self, spec: str) -> str:
        self.again()
        return ""

    def __len__(self) -> int:
        self.again()
        return 0

    def __bool__(self) -> bool:
        self.again()
        return True

    def __index__(self) -> int:
        self.again()
        return 0

    def __hash__(self) -> int:
        self.again()
        return 0

    def __eq__(self, other: object) -> bool:
        self.again()
        return True

    def __lt__(self, other: object) -> bool:
        self.again()
        return True

    def __add__(self, other: object) -> Any:
        return self.again()

    def __radd__(self, other: object) -> Any:
        self.again()
        return 0

    def __neg__(self) -> Any:
        return self.again()

    def __contains__(self, item: object) -> bool:
        self.again()
        return True

    def __enter__(self) -> Any:
        return self.again()

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Iterator[Any]:
        yield self.again()

    @property
    def value(self) -> Any:
        return self.again()

    @value.setter
    def value(self, new: object) -> None:
        self.again()

    def method(self, *args: object) -> Any:
        return self.again()


class Meta(type):
    again: Again

    def __instancecheck__(cls, instance: object) -> bool:
        cls.again()
        return True


class Checked(metaclass=Meta):
    pass


def again_2(again: Again) -> Callable[[object, object], Any]:
    return lambda self, other: again()


def through_class(again: Again) -> Any:
    class Made:
        def __init__(self) -> None:
            again()

    return Made()


def through_manager(again: Again) -> Any:
    @contextmanager
    def manager() -> Iterator[None]:
        again()
        yield

    with manager():
        pass


def through_isinstance(again: Again) -> Any:
    Meta.again = staticmethod(again)
    return isinstance(3, Checked)


def through_with(again: Again) -> Any:
    with Thing(again):
        pass


def through_store(again: Again) -> Any:
    Thing(again)[0] = 1


def through_unpacking(again: Again) -> Any:
    (item,) = Thing(again)
    return item


def through_match(again: Again) -> Any:
    match Thing(again):
        case Thing(value=value):
            return value


def through_super(again: Again) -> Any:
    class Sub(Thing):
        def method(self, *args: object) -> Any:
            return super().method()

    return Sub(again).method()


def through_yield_from(again: Again) -> Any:
    def inner() -> Iterator[Any]:
        yield again()

    def outer() -> Iterator[Any]:
        yield from inner()

    return next(outer())


def through_await(again: Again) -> Any:
    async def inner() -> Any:
        return again()

    async def outer() -> Any:
        return await inner()

    try:
        outer().send(None)
    except StopIteration as end:
        return end.value


def through_handler(again: Again) -> Any:
    try:
        raise KeyError
    except KeyError:
        return again()
    finally:
        pass


WAYS: dict[str, Callable[[Again], Any]] = {
    "call": lambda again: again(),
    "star call": lambda again: again(*()),
    "method": lambda again: Thing(again).method(),
    "object": lambda again: Thing(again)(),
    "class": through_class,
    "super": through_super,
    "attribute": lambda again: Thing(again).missing,
    "property": lambda again: Thing(again).value,
    "getattr": lambda again: getattr(Thing(again), "value", None),
    "hasattr": lambda again: hasattr(Thing(again), "value"),
    "subscript": lambda again: Thing(again)[0],
    "store": through_store,
    "operator": lambda again: Thing(again) + 1,
    "negation": lambda again: -Thing(again),
    "comparison": lambda again: Thing(again) == 1,
    "contains": lambda again: 1 in Thing(again),
    "truth": lambda again: 1 if Thing(again) else 2,
    "with": through_with,
    "contextmanager": through_manager,
    "unpacking": through_unpacking,
    "match": through_match,
    "next": lambda again: next(again() for _ in (1,)),
    "for": lambda again: [x for x in Thing(again)],
    "sum": lambda again: sum(again() for _ in (1,)),
    "sum of things": lambda again: sum([Thing(again)], 0),
    "any": lambda again: any(again() for _ in (1,)),
    "tuple": lambda again: tuple(again() for _ in (1,)),
    "list": lambda again: list(again() for _ in (1,)),  # noqa: C400
    "dict": lambda again: dict((x, again()) for x in (1,)),  # noqa: C402
    "sorted": lambda again: sorted([1], key=lambda x: again()),
    "list.sort": lambda again: [1].sort(key=lambda x: again()),
    "max": lambda again: max([1, 2], key=lambda x: again()),
    "min": lambda again: min(Thing(again), Thing(again)),
    "map": lambda again: list(map(lambda x: again(), [1])),  # noqa: C417
    "partial": lambda again: functools.partial(again)(),
    "reduce": lambda again: functools.reduce(lambda a, b: again(), [1, 2]),
    "operator.add": lambda again: operator.add(Thing(again), 1),
    "str": lambda again: str(Thing(again)),
    "repr": lambda again: repr(Thing(again)),
    "format": lambda again: format(Thing(again), ""),
    "f-string": lambda again: f"{Thing(again)}",
    "f-string with repr": lambda again: f"{Thing(again)!r}",
    "str.format": lambda again: "{}".format(Thing(again)),  # noqa: UP032
    "percent": lambda again: "%s" % Thing(again),  # noqa: UP031
    "join": lambda again: "".join(str(again()) for _ in (1,)),
    "len": lambda again: len(Thing(again)),
    "bool": lambda again: bool(Thing(again)),
    "int": lambda again: int(Thing(again)),
    "range": lambda again: range(Thing(again)),
    "hash": lambda again: hash(Thing(again)),
    "isinstance": through_isinstance,
    "dict.get": lambda again: {}.get(Thing(again)),
    "dict.pop": lambda again: {}.pop(Thing(again), None),
    "dict.setdefault": lambda again: {}.setdefault(Thing(again)),
    "set.add": lambda again: set().add(Thing(again)),
    "list.index": lambda again: [1].index(Thing(again)),
    "list.count": lambda again: [1].count(Thing(again)),
    "list.append": lambda again: [].append(again()),
    "print": lambda again: print(Thing(again), end="", file=Thing(lambda: 0)),
    "yield from": through_yield_from,
    "await": through_await,
    "except": through_handler,
    "setattr": lambda again: setattr(Thing(again), "value", 1),
    "iter": lambda again: iter(type("T", (), {"__iter__": lambda self: iter([again()])})()),
    "sorted with __lt__": lambda again: sorted([Thing(again), Thing(again)]),
    "abs": lambda again: abs(type("T", (), {"__abs__": lambda self: again()})()),
    "divmod": lambda again: divmod(type("T", (), {"__divmod__": again_2(again)})(), 1),
    "round": lambda again: round(type("T", (), {"__round__": lambda self: again()})()),
    "eval": lambda again: eval("again()", {"again": again}),
    "exec": lambda again: exec("again()", {"again": again}),  # noqa: S102
}


def deepest(way: Callable[[Again], Any]) -> int:
    depth = most = 0

    def again() -> int:
        nonlocal depth, most
        depth += 1
        most = max(most, depth)
        try:
            way(again)
        finally:
            depth -= 1
        return 0

    try:
        again()
    except RecursionError:
        pass
    return most


@pytest.mark.parametrize("name", WAYS)
def test_as_deep_as_plainly(name: str) -> None:
    way = WAYS[name]
    deepest(way)  # CPython specialises what runs often
    plain = deepest(way)
    ours = interpreter.run(deepest, way)
    assert abs(plain - ours) <= SLACK, (plain, ours)
