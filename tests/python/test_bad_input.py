"""Objects that guards meet and that behave badly: the captured call does what the plain one does, and leaves nothing behind."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fixtures.subject import frametap

X = torch.arange(3.0)


def told(f: Callable[..., Any], *args: Any) -> Any:
    """Returns the value of a call, or its exception."""
    try:
        result = f(*args)
    except Exception as error:  # noqa: BLE001  whatever the program raises is its result
        result = type(error).__name__, str(error)
    assert sys.exc_info() == (None, None, None)
    return result.tolist() if isinstance(result, Tensor) else result


def agree(f: Callable[..., Any], calls: Callable[[], Iterator[tuple[Any, ...]]]) -> Any:
    """Runs the same calls, each on objects of its own, plainly and captured."""
    captured = frametap.compile(f)
    for plain, ours in zip(calls(), calls(), strict=True):
        assert told(captured, *ours) == told(f, *plain)
    return captured


class Moody:
    """Attributes are there, raise, or come from `__getattr__`, as `mood` says."""

    mood = "there"

    def __init__(self) -> None:
        self.given = 2.0

    @property
    def scale(self) -> float:
        if type(self).mood == "raises":
            raise ValueError("not now")
        return self.given

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no {name} ({type(self).mood})")


def test_an_attribute_that_raises() -> None:
    def f(x: Tensor, thing: Moody) -> Tensor:
        return x * thing.scale + (1 if hasattr(thing, "absent") else 2)

    def calls() -> Iterator[tuple[Any, ...]]:
        thing = Moody()
        for mood in ("there", "there", "raises", "raises", "there"):
            Moody.mood = mood
            yield X, thing
        del thing.given
        yield X, thing
        thing.absent = 1
        thing.given = 3.0
        yield X, thing

    try:
        agree(f, calls)
    finally:
        Moody.mood = "there"


class Getattribute:
    """Every look at it may raise, the guards' look at its type not."""

    fails = False

    def __getattribute__(self, name: str) -> Any:
        if type(self).fails:
            raise RuntimeError(f"no {name}")
        return object.__getattribute__(self, name)


def test_a_getattribute_that_raises() -> None:
    def f(x: Tensor, thing: Getattribute) -> Tensor:
        return x + thing.value  # type: ignore[attr-defined]

    def calls() -> Iterator[tuple[Any, ...]]:
        thing = Getattribute()
        thing.value = 5  # type: ignore[attr-defined]
        for fails in (False, False, True, True, False):
            Getattribute.fails = fails
            yield X, thing

    try:
        agree(f, calls)
    finally:
        Getattribute.fails = False


class Equal:
    """Its `__eq__` raises, lies, counts, or returns something that is not a bool."""

    answer: Any = True
    asked = 0

    def __eq__(self, other: object) -> Any:
        type(self).asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "Equal()"


class NoTruth:
    def __bool__(self) -> bool:
        raise TypeError("neither")


@pytest.mark.parametrize("form", ["equal", "in list", "in dict", "key"])
def test_an_eq_that_raises_or_lies(form: str) -> None:
    def f(x: Tensor, a: Any, b: Any, names: dict[Any, int], items: list[Any]) -> Any:
        if form == "equal":
            found = bool(a == b)
        elif form == "in list":
            found = a in items
        elif form == "in dict":
            found = a in names
        else:
            found = names[a] > 1
        return x * 2 if found else x - 1

    def calls() -> Iterator[tuple[Any, ...]]:
        a, b = Equal(), Equal()
        for answer in (True, False, True, ValueError("no"), NoTruth(), NotImplemented, True):
            for thing in (a, b):
                thing.answer = answer
            yield X, a, b, {b: 2}, [b]
        yield X, a, a, {a: 2}, [a]
        yield X, 1, 1.0, {True: 2}, [True]

    agree(f, calls)


@pytest.mark.parametrize("form", ["equal", "in dict"])
def test_guards_do_not_ask_eq(form: str) -> None:
    """As often as in plain Python: a guard that compares by `==` would ask once more."""

    def f(x: Tensor, a: Any, names: dict[Any, int]) -> Tensor:
        found = a == "b" if form == "equal" else a in names
        return x * 2 if found else x - 1

    captured = frametap.compile(f)
    counts = []
    for call in (f, captured):
        Equal.asked = 0
        a, b = Equal(), Equal()
        for _ in range(3):
            call(X, a, {b: 1})
        counts.append(Equal.asked)
    assert counts[0] == counts[1]


class Changing(dict):
    """Reading it changes it."""

    def __getitem__(self, key: Any) -> Any:
        self[f"seen {len(self)}"] = key
        return dict.get(self, key, 4)

    def keys(self) -> Any:
        self.pop("a", None)
        return super().keys()


def test_a_dict_that_changes_while_it_is_read() -> None:
    def f(x: Tensor, names: dict[str, Any]) -> Any:
        for name in list(names.keys()):
            x = x + len(name)
        return x + names["a"], list(names)

    def calls() -> Iterator[tuple[Any, ...]]:
        names = Changing(a=1, b=2)
        plain = {"a": 1}
        for _ in range(4):
            yield X, names
            yield X, plain
            plain[f"more {len(plain)}"] = 1

    def shown(x: Tensor, names: dict[str, Any]) -> Any:
        y, keys = f(x, names)
        return [y.tolist(), keys]

    agree(shown, calls)


def test_a_dict_that_changes_during_the_loop_over_it() -> None:
    def f(x: Tensor, names: dict[str, int]) -> Tensor:
        for name, value in names.items():
            x = x + value
            if value == 3:
                names[name * 2] = 1
        return x

    def calls() -> Iterator[tuple[Any, ...]]:
        for values in ((1, 2), (1, 2), (1, 3), (3, 1), (1, 2)):
            yield X, {f"k{i}": value for i, value in enumerate(values)}

    agree(f, calls)


class Node:
    def __init__(self, value: float) -> None:
        self.value = value


def test_objects_that_are_deleted_between_calls() -> None:
    def f(x: Tensor, tree: dict[str, Any]) -> Tensor:
        return x * tree["left"].value + tree["right"][0].value

    def calls() -> Iterator[tuple[Any, ...]]:
        for value in (1.0, 1.0, 2.0):
            tree: dict[str, Any] = {"left": Node(value), "right": [Node(3.0)]}
            yield X, tree
            # Others of the same shape, likely at the same addresses.
            del tree["left"], tree["right"]
            gc.collect()
            tree.update(left=Node(5.0), right=[Node(7.0)])
            yield X, tree
            tree["right"].clear()
            yield X, tree
            del tree["left"].value
            yield X, tree

    agree(f, calls)


def test_what_guards_look_at_is_not_kept_alive() -> None:
    def f(x: Tensor, node: Node, names: dict[str, Any]) -> Tensor:
        return x * node.value + names["n"].value

    captured = frametap.compile(f)
    node, inner = Node(1.0), Node(2.0)
    gone = [weakref.ref(node), weakref.ref(inner)]
    for _ in range(2):
        captured(X, node, {"n": inner})
    del node, inner
    gc.collect()
    assert [reference() for reference in gone] == [None, None]
    assert captured(X, Node(1.0), {"n": Node(2.0)}).tolist() == (X + 2).tolist()


def test_a_global_and_a_cell_that_are_deleted() -> None:
    names: dict[str, Any] = {"torch": torch}
    exec("scale = 2\ndef f(x):\n    return x * scale", names)  # noqa: S102
    f = names["f"]
    captured = frametap.compile(f)
    for step in (None, None, "del", "back", None):
        if step == "del":
            del names["scale"]
        elif step == "back":
            names["scale"] = 3
        assert told(captured, X) == told(f, X)

    def outer() -> tuple[Any, Any, Any]:
        cell = 2

        def inner(x: Tensor) -> Tensor:
            return x * cell

        def unbind() -> None:
            nonlocal cell
            del cell

        def bind(value: int) -> None:
            nonlocal cell
            cell = value

        return inner, unbind, bind

    inner, unbind, bind = outer()
    captured = frametap.compile(inner)
    for change in (None, None, unbind, lambda: bind(4), None):
        if change:
            change()
        assert told(captured, X) == told(inner, X)
