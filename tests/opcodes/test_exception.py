"""Raising, handling, finally, with, exception groups."""

# The programs do on purpose what a linter warns of.
# ruff: noqa

from __future__ import annotations

import contextlib
import sys
import traceback

import pytest

from opcodes.harness import Program, check, programs


class Manager:
    def __init__(self, log, swallow=False, fail_enter=False, fail_exit=False):
        self.log, self.swallow, self.fail_enter, self.fail_exit = (
            log,
            swallow,
            fail_enter,
            fail_exit,
        )

    def __enter__(self):
        self.log.append("enter")
        if self.fail_enter:
            raise ValueError("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(
            (kind and kind.__name__, str(value), traceback is not None, sys.exc_info()[0])
        )
        if self.fail_exit:
            raise RuntimeError("exit")
        return self.swallow


def program_try_except_else_finally():
    log = []
    for error in (None, ValueError("v"), KeyError("k")):
        try:
            log.append("try")
            if error:
                raise error
        except ValueError as e:
            log.append(("value", str(e), sys.exc_info()[1] is e))
        except (KeyError, IndexError):
            log.append(sys.exc_info()[0])
        else:
            log.append("else")
        finally:
            log.append(sys.exc_info())
    return log


def program_uncaught():
    x = [1, 2]
    return x[0] + x[5] + x[1]


def program_uncaught_in_callee():
    def inner(n):
        if n == 0:
            raise LookupError("deep")
        return inner(n - 1) + 1

    return inner(3)


def program_finally_runs_on_the_way():
    log = []

    def inner():
        try:
            raise ValueError("x")
        finally:
            log.append("inner")

    try:
        inner()
    except ValueError as e:
        return log, e.__traceback__.tb_next.tb_lineno > 0


def program_return_in_finally():
    try:
        raise ValueError
    finally:
        return 3  # noqa: B012


def program_break_and_continue_in_finally():
    out = []
    for i in range(4):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            out.append(i)
        finally:
            out.append("f")
    return out


def program_context():
    try:
        try:
            raise ValueError("first")
        except ValueError:
            raise KeyError("second")
    except KeyError as e:
        return type(e.__context__).__name__, e.__cause__


def program_context_leaves():
    try:
        raise ValueError("first")
    except ValueError:
        [][1]


def program_cause():
    try:
        int("x")
    except ValueError as e:
        raise RuntimeError("wrapped") from e


def program_cause_none():
    try:
        int("x")
    except ValueError:
        raise RuntimeError("bare") from None


def program_cause_class():
    raise RuntimeError("x") from KeyError


def program_bad_cause():
    raise RuntimeError("x") from 3


def program_raise_class():
    raise KeyError


def program_raise_not_exception():
    raise 3


def program_raise_class_that_is_no_exception():
    class Fake(Exception):
        def __new__(cls):
            return 3

    raise Fake


def program_constructor_raises():
    class Fails(Exception):
        def __init__(self):
            raise OSError("constructor")

    raise Fails


def program_bare_raise():
    try:
        raise ValueError("v")
    except ValueError:
        raise


def program_bare_raise_without_exception():
    raise


def program_bare_raise_in_callee():
    def again():
        raise

    try:
        1 / 0
    except ZeroDivisionError:
        again()


def program_reraise_keeps_line():
    def inner():
        try:
            a = 1
            b = a / 0
            return b
        finally:
            c = 3
            c += 1

    inner()


def program_exception_variable_is_deleted():
    try:
        raise ValueError
    except ValueError:
        pass
    return e  # noqa: F821


def program_nested_handlers_restore_exc_info():
    log = []
    try:
        raise ValueError(1)
    except ValueError:
        log.append(sys.exc_info()[0].__name__)
        try:
            raise KeyError(2)
        except KeyError:
            log.append(sys.exc_info()[0].__name__)
        log.append(sys.exc_info()[0].__name__)
    log.append(sys.exc_info()[0])
    return log


def program_catching_non_exception():
    try:
        raise ValueError("v")
    except 3:
        pass


def program_catching_non_exception_in_tuple():
    try:
        raise ValueError("v")
    except (KeyError, "x"):
        pass


def program_with():
    log = []
    with Manager(log) as m, Manager(log, swallow=True):
        log.append(m is not None)
        raise ValueError("inside")
    return log


def program_with_no_exception():
    log = []
    with Manager(log):
        log.append("body")
    return log


def program_with_return():
    log = []

    def inner():
        for i in range(3):
            with Manager(log):
                if i == 1:
                    return i

    return inner(), log


def program_with_reraises():
    with Manager([]):
        raise KeyError("out")


def program_with_enter_raises():
    with Manager([], fail_enter=True):
        pass


def program_with_exit_raises():
    with Manager([], fail_exit=True):
        raise ValueError("inside")


def program_with_exit_raises_without_exception():
    with Manager([], fail_exit=True):
        pass


def program_with_not_a_manager():
    with 3:
        pass


def program_with_half_a_manager():
    class Half:
        def __enter__(self):
            pass

    with Half():
        pass


def program_contextlib():
    log = []

    @contextlib.contextmanager
    def manager(name):
        log.append(f"enter {name}")
        try:
            yield name
        except KeyError as e:
            log.append(f"caught {e}")
        finally:
            log.append(f"exit {name}")

    with manager("a") as a, manager("b"):
        log.append(a)
        raise KeyError("k")
    with contextlib.suppress(ValueError), contextlib.ExitStack() as stack:
        stack.enter_context(manager("c"))
        raise ValueError
    return log


def program_except_star():
    log = []
    try:
        raise ExceptionGroup(
            "g", [ValueError(1), KeyError(2), ExceptionGroup("h", [ValueError(3), OSError(4)])]
        )
    except* ValueError as e:
        log.append([str(x) for x in e.exceptions])
    except* (KeyError, OSError) as e:
        log.append(len(e.exceptions))
    return log


def program_except_star_rest():
    try:
        raise ExceptionGroup(
            "g", [ValueError(1), KeyError(2), ExceptionGroup("h", [ValueError(3), OSError(4)])]
        )
    except* ValueError:
        pass


def program_except_star_raises():
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* ValueError:
        raise RuntimeError("from handler")


def program_except_star_raises_alone():
    try:
        raise ExceptionGroup("g", [ValueError(1)])
    except* ValueError:
        raise RuntimeError("from handler")


def program_except_star_raises_a_group_alone():
    try:
        raise ExceptionGroup("g", [ValueError(1), KeyError(2)])
    except* (ValueError, KeyError):
        raise ExceptionGroup("h", [OSError(3)])


def program_except_star_raises_again():
    group = ExceptionGroup("g", [ValueError(1), ExceptionGroup("n", [KeyError(2), ValueError(3)])])
    group.add_note("a note")
    try:
        raise group
    except* ValueError:
        raise
    except* KeyError as e:
        raise OSError("new") from e


def program_except_star_naked():
    log = []
    try:
        raise ValueError(1)
    except* ValueError as e:
        log.append(repr(e))
    try:
        try:
            raise ValueError(2)
        except* ValueError:
            raise
    except ExceptionGroup as e:
        log.append(repr(e))
    return log


def program_except_star_catches_group():
    try:
        raise ValueError
    except* ExceptionGroup:
        pass


def program_except_star_base():
    try:
        raise BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError()])
    except* ValueError:
        pass


class Custom(ExceptionGroup):
    def derive(self, members):
        return Custom(self.message + "'", members)


def program_except_star_derived():
    try:
        raise Custom("c", [ValueError(1), Custom("d", [KeyError(2), TypeError(3)])])
    except* ValueError:
        raise
    except* KeyError:
        raise


def program_traceback_text():
    def inner():
        x = {"a": [1, 2]}
        return x["a"][1] + x["b"][0]

    try:
        inner()
    except KeyError:
        return traceback.format_exc().replace(__file__, "file")


def program_traceback_frames():
    def inner():
        value = 3
        raise ValueError(value)

    try:
        inner()
    except ValueError as e:
        frame = e.__traceback__.tb_next.tb_frame
        return frame.f_locals, frame.f_lineno, frame.f_back.f_code.co_name


def program_stack_seen_from_inside():
    def inner():
        frame = sys._getframe()
        return [(f.f_code.co_name, f.f_lineno) for f in (frame, frame.f_back)]

    return inner(), inner()


def program_recursion_error():
    def down(n):
        return down(n + 1)

    try:
        down(0)
    except RecursionError as e:
        return str(e)


def program_recursion_error_then_deep_again():
    def down(n):
        return 0 if n == 0 else 1 + down(n - 1)

    out = []
    for n in (50, 5000, 50):
        try:
            out.append(down(n))
        except RecursionError:
            out.append("too deep")
    return out


def program_generator_exit_and_finally():
    log = []

    def gen():
        try:
            yield 1
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("finally")

    g = gen()
    next(g)
    g.close()
    return log


@pytest.mark.parametrize("program", programs(__name__))
def test_program(program: Program) -> None:
    check(program)
