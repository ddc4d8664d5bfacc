"""Attributes."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import math

import pytest

from opcodes.harness import Program, check, programs


class Slots:
    __slots__ = ("a",)


class Plain:
    shared = 1

    def method(self):
        return self.shared

    @staticmethod
    def static():
        return "static"

    @classmethod
    def made(cls):
        return cls.__name__


class Raising:
    @property
    def broken(self):
        raise ValueError("broken")

    def __setattr__(self, name, value):
        raise AttributeError(f"no {name}")

    def __delattr__(self, name):
        raise AttributeError(f"stays {name}")


def program_store_load_delete():
    thing = Plain()
    thing.x = 1
    thing.x += 2
    seen = thing.x
    del thing.x
    return seen, hasattr(thing, "x"), thing.shared


def program_methods():
    thing = Plain()
    thing.call = lambda: "own"
    return (
        thing.method(),
        thing.static(),
        thing.made(),
        thing.call(),
        Plain.made(),
        Plain.method(thing),
    )


def program_slots():
    thing = Slots()
    thing.a = 1
    seen = thing.a
    del thing.a
    return seen, thing.a


def program_missing_attribute():
    return Plain().missing


def program_missing_method():
    return Plain().missing(1, 2)


def program_missing_on_none():
    value = None
    return value.shape


def program_property_raises():
    return Raising().broken


def program_store_raises():
    Raising().x = 1


def program_delete_raises():
    del Raising().x


def program_module_attribute():
    return math.floor(2.5), math.pi


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
