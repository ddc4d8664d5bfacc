"""``frametap.guards``: what replays check, as objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fixtures.subject import frametap, needs_capture

pytestmark = [needs_capture]


class Settings:
    def __init__(self) -> None:
        self.scale = 2.0
        self.name = "a"


SCALE = 3


def read_much(x: Tensor, settings: Settings, names: dict[str, int], items: list[int]) -> Tensor:
    if x.shape[0] > 1:
        x = x * settings.scale
    if settings.name == "a" and "absent" not in names:
        x = x + names["k"]
    if len(items) == 2 and items[0] < 5:
        x = x - SCALE
    for name in names:
        x = x + len(name)
    return x


def guards_of(*args: Any) -> list[frametap.Guard]:
    f = frametap.compile(read_much)
    f(*args)
    return frametap.guards(f)


def test_kinds_and_what_is_expected() -> None:
    found = {
        (g.source, g.kind): g.expected
        for g in guards_of(torch.ones(2, 3), Settings(), {"k": 1}, [1, 2])
    }
    assert found["L.x", "tensor"].startswith("f32[*, *] cpu")
    assert found["L.settings", "type"] == "Settings"
    assert found["L.settings.scale", "=="] == 2.0
    assert found["L.settings.name", "=="] == "a"
    assert found["L.names", "keys"] == ["k"]
    assert found["L.items", "len"] == 2
    assert found["L.items[0]", "<"] == 5
    assert found["G.SCALE", "=="] == 3
    assert found["state", "state"] == {"grad_mode": "on", "autocast": "off"}


def test_each_names_the_line_that_read_it() -> None:
    first = read_much.__code__.co_firstlineno
    lines = {
        g.source: g.line - first
        for g in guards_of(torch.ones(2, 3), Settings(), {"k": 1}, [1, 2])
        if g.file == __file__
    }
    assert lines["L.settings.scale"] == 2
    assert lines["L.settings.name"] == 3
    assert lines["L.items[0]"] == 5
    assert lines["G.SCALE"] == 6


LONG = "a" * 300
DTYPE, DEVICE = torch.float32, torch.device("cpu")
WORDS, MODES = {"on", "off"}, ("on",)


def ask_all(x: Tensor, n: int, s: float, words: Any) -> Tensor:
    if n != 3 and s < 2.0 and not s < 0.5 and n // 2 > x.shape[0]:
        x = x + 1
    if LONG == "b" or DTYPE is None or DEVICE == torch.device("meta"):
        x = x + 2
    if "on" in WORDS and "none" not in WORDS and words is MODES and x is not n:
        x = x + 3
    return x


def test_expectations_are_values() -> None:
    f = frametap.compile(ask_all)
    f(torch.ones(2), 9, 1.0, MODES)
    found = {(g.source, g.kind): g for g in frametap.guards(f)}
    expected = {key: guard.expected for key, guard in found.items()}
    assert expected["G.LONG", "=="] != LONG, "a long text is cut, and given as text"
    assert isinstance(expected["G.LONG", "=="], str)
    assert expected["G.DTYPE", "=="] == torch.float32
    assert expected["G.DEVICE", "=="] == torch.device("cpu")
    assert expected["L.n", "!="] == 3
    assert expected["L.s", "<"] == 2.0
    assert expected["L.s", "not <"] == 0.5
    assert expected["G.WORDS", "has"] == "on"
    assert expected["G.WORDS", "lacks"] == "none"
    assert [type(expected[key]) for key in (("L.n", "!="), ("L.s", "<"))] == [int, float]
    related = next(guard for guard in found.values() if guard.kind == "relation")
    assert related.expected == related.predicate
    for guard in found.values():
        assert guard.predicate in str(guard)


def test_kinds_are_rows_of_the_table() -> None:
    """Every kind of a guard here is in docs/predicates.md, or is the thread's state."""
    page = (Path(__file__).parents[2] / "docs" / "predicates.md").read_text()
    f = frametap.compile(ask_all)
    f(torch.ones(2), 9, 1.0, MODES)
    for guard in guards_of(torch.ones(2, 3), Settings(), {"k": 1}, [1, 2]) + frametap.guards(f):
        assert guard.kind == "state" or f"| `{guard.kind}` |" in page
