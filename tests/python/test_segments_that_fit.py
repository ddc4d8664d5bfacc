"""A call that makes its own keys, classes and objects must not leave a segment that fits no other call: each call would be
recorded.

Laws
  F1  A look-up by a key of built-in immutable types finds an equal key, whichever object it is.
  F2  A class that the call itself makes ends the graph where it is used, so that the rest can be replayed.
  F3  A place in a global that was seen to hold another object takes any object of the kind from then on.
  F4  A loop over values() or items() reads of the objects in the dict only what its body reads.
  F5  The length of a container that grows from call to call is a number like others, and so is an item at its end.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import frametap

CALLS = 10
MOST_RECORDINGS = 3


def recordings(f: Callable[..., torch.Tensor], *more: Callable[[], Any]) -> int:
    """Compares `CALLS` calls with plain Python; gives how many were recorded."""
    captured = frametap.compile(f)
    for i in range(CALLS):
        x = torch.arange(4.0) + i
        assert torch.equal(
            captured(x, *(make() for make in more)), f(x, *(make() for make in more))
        )
    return frametap.explain(captured).recordings


def nested(value: object, depth: int) -> object:
    return nested((value,), depth - 1) if depth else value


# Each makes an equal key, another object each time.
KEYS: dict[str, Callable[[], Any]] = {
    "frozenset": lambda: frozenset({0}),
    "mixed frozenset": lambda: frozenset({0, "a", (1, 2), frozenset({3})}),
    "empty frozenset": lambda: frozenset(()),
    "tuple of frozenset": lambda: (frozenset({1}), 2),
    "deep tuple": lambda: nested(1, 6),
    "range": lambda: range(3),
    "device": lambda: torch.device("cpu"),
    "dtype and device": lambda: (torch.float32, torch.device("cpu")),
    "Size": lambda: torch.Size([4]),
}


@pytest.mark.parametrize("name", KEYS)
def test_f1_a_key_in_a_dict_that_another_look_up_gave(name: str) -> None:
    make = KEYS[name]
    table = {make(): {make(): 2.0}}

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + table[make()][make()]

    assert recordings(f) == 1


@pytest.mark.parametrize("name", KEYS)
def test_f1_a_key_in_a_dict_that_is_made_for_each_call(name: str) -> None:
    make = KEYS[name]

    def f(x: torch.Tensor, table: dict[Any, float]) -> torch.Tensor:
        return x + table[make()] + (1 if make() in table else 2) + table.get(make(), 3.0)

    assert recordings(f, lambda: {make(): 2.0}) == 1


def test_f1_an_equal_key_may_be_of_another_type() -> None:
    captured = frametap.compile(lambda x, table: x + table[frozenset({1})])
    x = torch.ones(2)
    for table in ({frozenset({1}): 5}, {frozenset({True}): 6}, {frozenset({1.0}): 7}):
        assert torch.equal(captured(x, table), x + table[frozenset({1})])


def test_f1_other_elements_are_another_key() -> None:
    def f(x: torch.Tensor, table: dict[Any, float]) -> torch.Tensor:
        return x + table.get(frozenset({1, 2}), 9.0)

    captured = frametap.compile(f)
    x = torch.ones(2)
    for keys in ({1, 2}, {1}, {1, 2, 3}, {2, 1}, {"1", 2}, {b"1", "1"}):
        table = {frozenset(keys): 4.0, (1, 2): 3.0}
        assert torch.equal(captured(x, table), f(x, table))


def class_by_statement(x: torch.Tensor) -> torch.Tensor:
    class K:
        k = 2

    return x * K.k


def instance_of_a_class(x: torch.Tensor) -> torch.Tensor:
    class C:
        k = 2

        def m(self, v: torch.Tensor) -> torch.Tensor:
            return v * self.k

    y = C().m(x)
    return y + 1


def class_by_type(x: torch.Tensor) -> torch.Tensor:
    kind = type("K", (), {"k": 2})
    return x * kind.k  # type: ignore[attr-defined]


def class_by_types(x: torch.Tensor) -> torch.Tensor:
    kind = types.new_class("K")
    kind.k = 3  # type: ignore[attr-defined]
    return x * kind.k  # type: ignore[attr-defined]


def class_by_namedtuple(x: torch.Tensor) -> torch.Tensor:
    pair = collections.namedtuple("pair", "a b")
    return pair(x, x + 1).b * 2


def class_in_a_callee(x: torch.Tensor) -> torch.Tensor:
    def make() -> type:
        class K:
            k = 2

        return K

    return x * make().k + 1  # type: ignore[attr-defined]


def class_kept_over_a_break(x: torch.Tensor) -> torch.Tensor:
    class K:
        k = 2

    if x.sum() > -1:
        x = x + 1
    return x * K.k


@pytest.mark.parametrize(
    "f",
    [
        class_by_statement,
        instance_of_a_class,
        class_by_type,
        class_by_types,
        class_by_namedtuple,
        class_in_a_callee,
        class_kept_over_a_break,
    ],
    ids=lambda f: f.__name__,
)
def test_f2_a_class_of_each_call(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    # As many as there are graphs: one for each part between two uses.
    captured = frametap.compile(f)
    counts = []
    for i in range(CALLS):
        x = torch.arange(4.0) + i
        assert torch.equal(captured(x), f(x))
        counts.append(frametap.explain(captured).recordings)
    assert counts[-1] == counts[MOST_RECORDINGS - 1], counts
    assert not frametap.explain(captured).miss_texts


def test_f2_a_class_that_a_table_holds_stays_in_the_graph() -> None:
    class K:
        k = 2

    classes = {"K": K}
    captured = frametap.compile(lambda x: x * classes["K"].k + 1)
    for _ in range(3):
        captured(torch.ones(2))
    report = frametap.explain(captured)
    assert (report.recordings, report.graph_count, report.hits) == (1, 1, 2)


class Settings:
    def __init__(self) -> None:
        self.betas: tuple[float, ...] = (0.9, 0.99)
        self.seen: Any = collections.defaultdict(dict)
        self.rows = [1.0]


SETTINGS = Settings()


def tuple_replaced(x: torch.Tensor) -> torch.Tensor:
    SETTINGS.betas = (SETTINGS.betas[0] * 0.9, *SETTINGS.betas[1:])
    return x * SETTINGS.betas[0] + SETTINGS.betas[1]


def tuple_taken_apart_and_replaced(x: torch.Tensor) -> torch.Tensor:
    first, second = SETTINGS.betas
    SETTINGS.betas = (first * 0.9, second)
    return x * first


def dict_replaced(x: torch.Tensor) -> torch.Tensor:
    SETTINGS.seen["x"]["rank"] = x.dim()
    y = x + SETTINGS.seen["x"]["rank"]
    SETTINGS.seen = collections.defaultdict(dict)
    return y


def list_replaced(x: torch.Tensor) -> torch.Tensor:
    SETTINGS.rows = [SETTINGS.rows[0] + 1.0]
    return x * SETTINGS.rows[0]


def holder_replaced(x: torch.Tensor) -> torch.Tensor:
    global SETTINGS
    y = x * SETTINGS.rows[0]
    SETTINGS = Settings()
    return y


@pytest.mark.parametrize(
    "f",
    [
        tuple_replaced,
        tuple_taken_apart_and_replaced,
        dict_replaced,
        list_replaced,
        holder_replaced,
    ],
    ids=lambda f: f.__name__,
)
def test_f3_an_object_that_is_replaced(f: Callable[[torch.Tensor], torch.Tensor]) -> None:
    global SETTINGS
    results = []
    for call in (f, captured := frametap.compile(f)):
        SETTINGS = Settings()
        results.append([call(torch.arange(4.0) + i) for i in range(CALLS)])
    for plain, replayed in zip(*results, strict=True):
        assert torch.equal(plain, replayed)
    assert frametap.explain(captured).recordings <= MOST_RECORDINGS


def test_f3_by_identity_is_by_identity() -> None:
    table = {"t": (1.0, 2.0)}
    captured = frametap.compile(lambda x: x * table["t"][0], options={"by_identity": True})
    for i in range(CALLS):
        table["t"] = (float(i), 2.0)
        assert torch.equal(captured(torch.ones(2)), torch.ones(2) * i)


def steps_of_values(state: Any, x: torch.Tensor) -> torch.Tensor:
    for one in state.values():
        one["step"] += 1
        x = x * one["step"]
    return x


def steps_of_items(state: Any, x: torch.Tensor) -> torch.Tensor:
    for key, one in state.items():
        one["step"] = one["step"] + len(key)
        x = x + one["step"]
    return x


def steps_in_a_comprehension(state: Any, x: torch.Tensor) -> torch.Tensor:
    for key in state:
        state[key]["step"] += 1
    return x + torch.tensor([one["step"] for one in state.values()]).sum()


def steps_in_lists(state: Any, x: torch.Tensor) -> torch.Tensor:
    for one in state.values():
        one["rows"][0] += 1
        x = x * one["rows"][0]
    return x


@pytest.mark.parametrize(
    "f",
    [steps_of_values, steps_of_items, steps_in_a_comprehension, steps_in_lists],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("kind", [dict, collections.defaultdict])
def test_f4_counters_of_objects_in_a_dict(f: Callable[..., torch.Tensor], kind: Any) -> None:
    def make() -> Any:
        state = kind() if kind is dict else kind(dict)
        state["a"], state["bc"] = {"step": 0, "rows": [0]}, {"step": 7, "rows": [3, 4]}
        return state

    plain, own = make(), make()
    captured = frametap.compile(lambda x: f(own, x))
    for i in range(CALLS):
        x = torch.arange(4.0) + i
        assert torch.equal(captured(x), f(plain, x))
        assert own == plain
    assert frametap.explain(captured).recordings <= MOST_RECORDINGS


def last_of(history: list[float], x: torch.Tensor) -> torch.Tensor:
    before = history[-1] if history else 0
    history.append(x.shape[0])
    return x + history[-1] + before


GROWING: dict[str, Callable[[list[Any], torch.Tensor], torch.Tensor]] = {
    "length": lambda history, x: (history.append(1), x * len(history))[1],
    "length, then an append": lambda history, x: (x * len(history), history.append(x))[0],
    "limit": lambda history, x: (history.append(x), x + 1 if len(history) > 100 else x)[1],
    "items at the end": last_of,
    "loss": lambda history, x: (history.append(x.sum().item()), x + history[-1])[1],
}


@pytest.mark.parametrize("name", GROWING)
def test_f5_a_list_that_grows(name: str) -> None:
    plain: list[Any] = []
    seen: list[Any] = []
    captured = frametap.compile(lambda x: GROWING[name](seen, x))
    for i in range(CALLS):
        x = torch.arange(4.0) + i
        assert torch.equal(captured(x), GROWING[name](plain, x))
    assert len(seen) == len(plain)
    assert frametap.explain(captured).recordings <= MOST_RECORDINGS
