"""The signature of a saved program, and the function that binds the arguments of a call to its parameters.

The function is made from the names of the parameters. Python binds the arguments, and its own ``TypeError`` refuses a
call that does not fit.

Not here: which arguments the blocks accept (``_loaded_program.py``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from keyword import iskeyword
from typing import Any

from frametap._errors import ArtifactError
from frametap._program import Const, Dict, List, Operand, Parameter, Program, Tuple

__all__ = ["FIXED", "binder", "signature_of"]


class _Fixed:
    """Stands for a default that is an object inside of the program."""

    def __repr__(self) -> str:
        return "<saved>"


FIXED = _Fixed()


def _default(parameter: Parameter) -> Any:
    """One object for all calls, as Python has it."""

    def make(operand: Operand) -> Any:
        if isinstance(operand, (Const, Tuple, List, Dict)):
            return operand.made(make)
        raise ValueError(f"the default of {parameter.name} is not a constant")

    if parameter.is_fixed:
        return FIXED
    return inspect.Parameter.empty if parameter.default is None else make(parameter.default)


def signature_of(program: Program) -> inspect.Signature:
    """Returns the signature that users see. ``FIXED`` is the default of a parameter that no call may give."""
    try:
        return inspect.Signature(
            [
                inspect.Parameter(
                    parameter.name,
                    getattr(inspect.Parameter, parameter.kind),
                    default=_default(parameter),
                )
                for parameter in program.parameters
            ]
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise ArtifactError(f"the parameters are no signature: {error}") from error


def binder(program: Program, signature: inspect.Signature) -> Callable[..., dict[str, Any]]:
    """Returns a function that gives its arguments by name. Python binds them, and says what is wrong with a call."""
    names = list(signature.parameters)
    if wrong := [name for name in names if not name.isidentifier() or iskeyword(name)]:
        raise ArtifactError(f"the parameters are not a signature: {wrong[0]!r} is not a name")
    this = next(name for name in ("self", "_self", "__self") if name not in names)
    empty = inspect.Parameter.empty
    bare = [
        p.replace(default=empty if p.default is empty else None)
        for p in signature.parameters.values()
    ]
    if program.is_bound and not program.owner_in_args:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if bare and bare[0].kind is inspect.Parameter.POSITIONAL_ONLY:
            kind = inspect.Parameter.POSITIONAL_ONLY
        bare.insert(0, inspect.Parameter(this, kind))
    result = ", ".join(f"{name!r}: {name}" for name in names)
    # Nothing of the file is in this text except the names that were looked at above.
    text = f"def bind{inspect.Signature(bare)}:\n    return {{{result}}}\n"
    namespace: dict[str, Any] = {}
    try:
        exec(text, namespace)  # noqa: S102  of names alone
    except SyntaxError as error:
        raise ArtifactError(f"the parameters are no signature: {error}") from error
    bind = namespace["bind"]
    given = [p for p in signature.parameters.values() if p.default is not empty]
    only = inspect.Parameter.KEYWORD_ONLY
    bind.__defaults__ = tuple(p.default for p in given if p.kind is not only)
    bind.__kwdefaults__ = {p.name: p.default for p in given if p.kind is only}
    bind.__name__, bind.__qualname__ = program.name, program.qualname or program.name
    return functools.partial(bind, None) if program.is_bound else bind
