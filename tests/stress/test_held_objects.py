"""A part of the objects, each thing in one form; `python tests/stress/held_objects.py` runs them all in all forms."""

from __future__ import annotations

import pytest

from . import generated
from .held_objects import Held, programs, table

_PRELUDE, _OBJECTS = table()
_PARTS = 6


@pytest.mark.parametrize("held", _OBJECTS[::_PARTS], ids=lambda held: held.name)
def test_objects_from_outside_are_plain_python(held: Held) -> None:
    faults = [text for one in programs(held, _PRELUDE) if (text := generated.fault(*one))]
    assert not faults, "\n\n".join(faults)
