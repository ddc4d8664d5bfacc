"""Items and slices."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

from collections import defaultdict

import pytest

from opcodes.harness import Program, check, programs


class Box:
    def __init__(self):
        self.log = []

    def __getitem__(self, key):
        self.log.append(("get", key))
        return key

    def __setitem__(self, key, value):
        self.log.append(("set", key, value))

    def __delitem__(self, key):
        self.log.append(("delete", key))


def program_builtin_containers():
    items, table, pair = [1, 2, 3], {"a": 1}, (4, 5)
    items[0] = 7
    items[-1] += 1
    table["b"] = items[1]
    del table["a"]
    del items[1]
    return items, table, pair[1], "text"[2], pair[-2:]


def program_slices():
    items = list(range(10))
    items[2:4] = "xy"
    del items[::3]
    return items, items[1:], items[:2], items[::2], items[:]


def program_own_containers():
    box = Box()
    box[1]
    box[1:2, ...] = 3
    del box["k"]
    box["n"] += "m"
    return box.log


def program_index_error():
    return [1][4]


def program_key_error():
    return {"a": 1}["b"]


def program_not_subscriptable():
    value = 3
    return value[0]


def program_store_into_tuple():
    pair = (1, 2)
    pair[0] = 1


def program_delete_missing():
    del {}["x"]


def program_default_dict():
    table = defaultdict(list)
    table["a"].append(1)
    return dict(table)


def program_generic_alias():
    return str(list[int]), str(dict[str, int])


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
