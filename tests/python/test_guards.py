"""``frametap.guards``: what replays check, as objects."""

from __future__ import annotations

from typing import Any

import pytest
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


@pytest.mark.parametrize(
    ("predicate", "kind", "expected"),
    [
        ("tensor f32[*, 32]{32, 1} cpu grad", "tensor", "f32[*, 32]{32, 1} cpu grad"),
        ("type(Model) watched", "type", "Model"),
        ("int", "type", "int"),
        ("type(Model) lacks 'a'", "attribute", "lacks 'a'"),
        ("type(Model) 'a' is f", "attribute", "'a' is f"),
        ("class Model unchanged", "class", "Model"),
        ("== 3", "==", 3),
        ("== -0.5", "==", -0.5),
        ("== 'a (b)'", "==", "a (b)"),
        ("== None", "==", None),
        ("== torch.float32", "==", torch.float32),
        ("== device(type='cpu')", "==", torch.device("cpu")),
        ("== ('a', 1)", "==", ("a", 1)),
        ("== 'cut off...", "==", "'cut off..."),
        ("!= 3", "!=", 3),
        ("not < 2.0", "not <", 2.0),
        ("is L.y", "is", "L.y"),
        ("is not L.y", "is not", "L.y"),
        ("is torch.relu", "is", "torch.relu"),
        ("len 3", "len", 3),
        ("set of 2", "set", 2),
        ("keys ['a', 1]", "keys", ["a", 1]),
        ("keys []", "keys", []),
        ("keys ['a', ... 3 more]", "keys", "['a', ... 3 more]"),
        ("has 'a'", "has", "a"),
        ("absent 'a'", "absent", "a"),
        ("lacks 2", "lacks", 2),
        ("branch on its elements is True", "branch", True),
        ("suspended at f:12:4", "suspended", "f:12:4"),
        ("at the same address", "address", None),
        ("unchanged inside", "field", None),
        ("registrations as recorded", "registrations", None),
        ("answers as recorded", "answer", None),
        ("grad_mode(off) autocast(bf16)", "state", {"grad_mode": "off", "autocast": "bf16"}),
    ],
)
def test_every_form_of_predicate(predicate: str, kind: str, expected: Any) -> None:
    guard = frametap.Guard("f#0", "L.x", predicate)
    assert (guard.kind, guard.expected) == (kind, expected)
    assert type(guard.expected) is type(expected)
    assert predicate in str(guard)
