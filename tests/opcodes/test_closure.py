"""Cells, free variables, functions, class bodies."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import pytest

from opcodes.harness import Program, check, programs


def program_closure():
    total = 0

    def add(n):
        nonlocal total
        total += n
        return total

    return [add(n) for n in range(4)], total


def program_argument_in_cell():
    def outer(x, *rest, key=3, **more):
        def inner():
            return x, rest, key, more

        x += 1
        return inner()

    return outer(1, 2, 3, other=4)


def program_defaults_and_annotations():
    def f(a: int, b: str = "b", *, c: float = 1.5, **d: dict) -> tuple:
        return a, b, c, d

    return f(1), f(1, "x", c=2.0, z=1), f.__defaults__, f.__kwdefaults__, f.__annotations__


def program_unbound_free_variable():
    def inner():
        return value

    if not inner:
        value = 1
    return inner()


def program_unbound_cell():
    def inner():
        return value

    if inner is None:
        value = 1
    return value


def program_delete_cell():
    value = 1

    def inner():
        return value

    seen = inner()
    del value
    try:
        inner()
    except NameError as error:
        return seen, str(error), error.name


def program_delete_cell_twice():
    value = 1

    def inner():
        nonlocal value
        del value

    inner()
    inner()


def program_class_body():
    tag = "outer"

    class Base:
        kind = tag

        def __init__(self, x):
            self.x = x

        def __init_subclass__(cls, **kwargs):
            cls.given = kwargs

    class Child(Base, option=1):
        tag = "inner"
        seen = tag

        def __init__(self, x):
            super().__init__(x + 1)

        @property
        def twice(self):
            return 2 * self.x

        @classmethod
        def make(cls, x):
            return cls(x)

        @staticmethod
        def name():
            return __class__.__name__

    child = Child.make(1)
    return child.twice, child.name(), Child.seen, Child.kind, Child.given


def program_class_cell_found_in_body_first():
    x = "cell"

    class A:
        a = x
        x = "body"
        b = x

    class B:
        exec("x = 'namespace'")
        c = x

    return A.a, A.b, B.c


def program_lambda_and_decorator():
    def twice(f):
        return lambda *args: f(f(*args))

    @twice
    def increment(x):
        return x + 1

    return increment(1), (lambda x, y=2: x * y)(3)


def program_deep_nesting():
    def a(x):
        def b(y):
            def c(z):
                return x, y, z

            return c(y + 1)

        return b(x + 1)

    return a(1)


def program_recursive_closure():
    def even(n):
        return True if n == 0 else odd(n - 1)

    def odd(n):
        return False if n == 0 else even(n - 1)

    return even(10), odd(7)


def program_locals_call():
    a = 1

    def inner():
        return a

    b = inner()
    return sorted(locals().items(), key=str)[:2], b


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
