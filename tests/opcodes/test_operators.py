"""Arithmetic and comparison."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import pytest

from opcodes.harness import Program, check, programs


class Odd:
    def __lt__(self, other):
        return "less"

    def __eq__(self, other):
        raise ValueError("not comparable")

    def __contains__(self, item):
        return item == 3

    def __bool__(self):
        raise TypeError("no truth")

    def __matmul__(self, other):
        return ("matmul", other)

    def __iadd__(self, other):
        return ("iadd", other)

    def __radd__(self, other):
        return ("radd", other)

    def __neg__(self):
        return "neg"


def program_binary():
    a, b = 17, 5
    return (
        a + b,
        a - b,
        a * b,
        a / b,
        a // b,
        a % b,
        a**b,
        a << b,
        a >> b,
        a & b,
        a | b,
        a ^ b,
        -a,
        +a,
        ~a,
        not a,
    )


def program_in_place():
    a = 17
    a += 1
    a -= 2
    a *= 3
    a //= 2
    a %= 13
    a **= 2
    a <<= 2
    a >>= 1
    a |= 5
    a &= 0xFF
    a ^= 3
    a /= 2
    items = [1]
    same = items
    items += [2]
    return a, same


def program_own_operators():
    odd = Odd()
    product = odd @ 3
    total = 1 + odd
    odd += 4
    return product, total, odd, -Odd()


def program_compare():
    a, b = 3, 4.0
    return (
        a < b,
        a <= b,
        a == b,
        a != b,
        a > b,
        a >= b,
        a is b,
        a is not b,
        a in [3],
        a not in [3],
        1 < a < 4,
        1 < a > 3,
    )


def program_own_compare():
    odd = Odd()
    return odd < 1, 3 in odd, 4 not in odd


def program_compare_raises():
    return Odd() == 1


def program_truth_raises():
    if Odd():
        return 1


def program_not_raises():
    return not Odd()


def program_unsupported():
    return 1 + "a"


def program_zero_division():
    return (1 + 2) / (3 - 3)


def program_not_ordered():
    return [1] < (1,)


def program_contains_raises():
    return 1 in 2


def program_appending_text():
    text = ""
    for i in range(50):
        text += str(i)
        other = text
    for i in range(50):
        text = text + str(i)
    return len(text), len(other)


def program_appending_text_that_others_hold():
    text = "".join(["a", "b"])
    kept = text
    text += "c"
    return kept, text


def program_big_numbers():
    n = 1
    for i in range(1, 60):
        n = n * i + i
    return n, hash(n), n.bit_length()


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
