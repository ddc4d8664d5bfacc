"""Branches and loops. PYTEST_DONT_REWRITE: the asserts of the programs are tested."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import pytest

from opcodes.harness import Program, check, programs


class Truth:
    def __init__(self, value, log):
        self.value, self.log = value, log

    def __bool__(self):
        self.log.append(self.value)
        return self.value


def program_branches():
    log = []
    out = []
    for value in (True, False, 0, 1, "", "x", None, [], [0], Truth(True, log), Truth(False, log)):
        if value:
            out.append(1)
        if not value:
            out.append(2)
        out.append(3 if value else 4)
        if value is None:
            out.append(5)
        if value is not None:
            out.append(6)
    return out, log


def program_and_or():
    log = []

    def t(value):
        return Truth(value, log)

    a = t(True) and t(False) and t(True)
    b = t(False) or t(True) or t(False)
    c = 0 or None or "x"
    d = 1 and [] and 2
    return a.value, b.value, c, d, log


def program_while():
    n, out = 10, []
    while n > 0:
        n -= 1
        if n % 3 == 0:
            continue
        if n == 1:
            break
        out.append(n)
    else:
        out.append("never")
    while True:
        n += 1
        if n > 3:
            break
    while n:
        n -= 1
    out.append("done")
    return out


def program_while_none():
    items = [3, 2, 1, None, 4]
    out = []
    while (item := items.pop(0)) is not None:
        out.append(item)
    node = None
    while node is None:
        node = 1
    return out


def program_for_else():
    for x in range(3):
        if x == 5:
            break
    else:
        return "else"


def program_nested_loops():
    out = []
    for i in range(4):
        for j in range(4):
            if j == i:
                break
            if (i + j) % 2:
                continue
            out.append((i, j))
    return out


def program_assert():
    assert 1 + 1 == 2
    assert 1 > 2, f"message {3}"


def program_assert_without_message():
    assert []


def program_long_jump():
    out = []
    for i in range(3):
        if i == 1:
            out.append(0 + i * 1)
            out.append(1 + i * 2)
            out.append(2 + i * 3)
            out.append(3 + i * 4)
            out.append(4 + i * 5)
            out.append(5 + i * 6)
            out.append(6 + i * 7)
            out.append(7 + i * 8)
            out.append(8 + i * 9)
            out.append(9 + i * 10)
            out.append(10 + i * 11)
            out.append(11 + i * 12)
            out.append(12 + i * 13)
            out.append(13 + i * 14)
            out.append(14 + i * 15)
            out.append(15 + i * 16)
            out.append(16 + i * 17)
            out.append(17 + i * 18)
            out.append(18 + i * 19)
            out.append(19 + i * 20)
            out.append(20 + i * 21)
            out.append(21 + i * 22)
            out.append(22 + i * 23)
            out.append(23 + i * 24)
            out.append(24 + i * 25)
            out.append(25 + i * 26)
            out.append(26 + i * 27)
            out.append(27 + i * 28)
            out.append(28 + i * 29)
            out.append(29 + i * 30)
            out.append(30 + i * 31)
            out.append(31 + i * 32)
            out.append(32 + i * 33)
            out.append(33 + i * 34)
            out.append(34 + i * 35)
            out.append(35 + i * 36)
            out.append(36 + i * 37)
            out.append(37 + i * 38)
            out.append(38 + i * 39)
            out.append(39 + i * 40)
            out.append(40 + i * 41)
            out.append(41 + i * 42)
            out.append(42 + i * 43)
            out.append(43 + i * 44)
            out.append(44 + i * 45)
            out.append(45 + i * 46)
            out.append(46 + i * 47)
            out.append(47 + i * 48)
            out.append(48 + i * 49)
            out.append(49 + i * 50)
            out.append(50 + i * 51)
            out.append(51 + i * 52)
            out.append(52 + i * 53)
            out.append(53 + i * 54)
            out.append(54 + i * 55)
            out.append(55 + i * 56)
            out.append(56 + i * 57)
            out.append(57 + i * 58)
            out.append(58 + i * 59)
            out.append(59 + i * 60)
        out.append(i)
    return out, len(out)


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
