"""Programs as data: operands, checks and blocks, which ``frametap.save`` writes and ``frametap.load`` runs.

A **program** is a set of straight-line **blocks**. A block is one graph; its **exit** returns or leads to other blocks.
Between blocks there is a **state**, which is slots (names) with values. An **operand** describes a value: a slot, a
weight, a constant, or a container of these. A **check** describes the values that a block was recorded for.

A file has the name and the fields of each of these classes. A new class is an entry of ``NODES``.

Not here: the file (``_artifact.py``), calls of a program (``_loaded_program.py``), making a program from captured
segments (``_save.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, get_args

import torch

from frametap import _saved_objects as objects
from frametap._formula import COMPARISONS, Formula

__all__ = [
    "NODES",
    "STEPS",
    "Again",
    "Block",
    "Branch",
    "Check",
    "Const",
    "Dict",
    "EqualTo",
    "Frozen",
    "Has",
    "Jump",
    "Keys",
    "Labelled",
    "Length",
    "List",
    "Made",
    "Number",
    "Operand",
    "Parameter",
    "Program",
    "Ref",
    "Relates",
    "Relation",
    "Report",
    "Return",
    "Same",
    "TensorLike",
    "Tuple",
    "Type",
    "described",
    "dtype_name",
]


# -- operands: where a value comes from --

Make: TypeAlias = Callable[["Operand"], Any]


@dataclass(frozen=True)
class Ref:
    """The content of a slot, or a weight, and the way from there.

    ``path``: steps ``("item", key)`` (index or dict key), ``("attr", name)``, ``("size", i)``,
    ``("stride", i)``, ``("length", 0)``.
    """

    name: str
    path: tuple[tuple[str, Any], ...] = ()
    weight: bool = False  # a name in Program.weights, else a slot

    def __post_init__(self) -> None:
        if unknown := {step for step, _ in self.path} - STEPS.keys():
            raise ValueError(f"a path has no step {unknown.pop()!r}")

    def follow(self, value: Any) -> Any:
        """Returns the value at the end of the path, which begins at `value`."""
        for step, key in self.path:
            value = STEPS[step](value, key)
        return value

    def __str__(self) -> str:
        text = self.name
        for step, key in self.path:
            if step == "item":
                text += f"[{key!r}]"
            elif step == "attr":
                text += f".{key}"
            elif step == "length":
                text = f"len({text})"
            else:
                text += f".{step}({key})"
        return text


@dataclass(frozen=True)
class Const:
    """None, a bool, int, float, complex, str, bytes, dtype or device."""

    value: Any

    def made(self, make: Make) -> Any:
        """Returns the value. `make` gives the values of the parts of a container; a constant has none."""
        return self.value


@dataclass(frozen=True)
class Tuple:
    items: tuple[Operand, ...]

    def made(self, make: Make) -> tuple[Any, ...]:
        """Returns a tuple of the items that `make` gives."""
        return tuple(map(make, self.items))


@dataclass(frozen=True)
class List:
    items: tuple[Operand, ...]

    def made(self, make: Make) -> list[Any]:
        """Returns a new list of the items that `make` gives."""
        return list(map(make, self.items))


@dataclass(frozen=True)
class Dict:
    """A dict whose keys are constants; order is kept."""

    keys: tuple[Const, ...]
    values: tuple[Operand, ...]

    def made(self, make: Make) -> dict[Any, Any]:
        """Returns a new dict of the values that `make` gives."""
        keys = (key.value for key in self.keys)
        return dict(zip(keys, map(make, self.values), strict=True))


@dataclass(frozen=True)
class Made:
    """An object of a class of the program's (``_saved_objects.py``). `values` belong to `names`, its attributes."""

    class_name: str
    kind: str
    content: Operand | None = None
    names: tuple[str, ...] = ()
    values: tuple[Operand, ...] = ()
    fields: tuple[str, ...] = ()  # of a named tuple

    def __post_init__(self) -> None:
        if self.kind not in objects.KINDS or len(self.names) != len(self.values):
            raise ValueError(f"no object is made like {self.kind!r} of {self.class_name}")


@dataclass(frozen=True)
class Labelled:
    """An object that occurs again in the same result, as ``Again``."""

    label: int
    of: Operand


@dataclass(frozen=True)
class Again:
    label: int


Operand: TypeAlias = Ref | Const | Tuple | List | Dict | Made | Labelled | Again


# -- checks: which values a block was recorded for --


@dataclass(frozen=True)
class TensorLike:
    """A tensor of this dtype and rank; ``None`` in ``shape`` is any size."""

    dtype: torch.dtype
    shape: tuple[int | None, ...]
    device: str = "cpu"

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        return f"a tensor of {dtype_name(self.dtype)} [{sizes}] on {self.device}"

    def refusal(self, value: Any) -> str | None:
        if not isinstance(value, torch.Tensor):
            return type(value).__name__
        sizes = tuple(value.shape)
        same = len(sizes) == len(self.shape) and all(
            want is None or want == got for want, got in zip(self.shape, sizes, strict=True)
        )
        if same and value.dtype == self.dtype and str(value.device) == self.device:
            return None
        return f"a tensor of {dtype_name(value.dtype)} {list(sizes)} on {value.device}"


@dataclass(frozen=True)
class Number:
    """Any number of this type: "int", "float" or "bool"."""

    type: str

    def __str__(self) -> str:
        return f"a number of type {self.type}"

    def refusal(self, value: Any) -> str | None:
        return None if type(value).__name__ == self.type else described(value)


@dataclass(frozen=True)
class EqualTo:
    """This very constant, by type and value."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)

    def refusal(self, value: Any) -> str | None:
        same = type(value) is type(self.value) and _bits(value) == _bits(self.value)
        return None if same else described(value)


@dataclass(frozen=True)
class Length:
    """A container of this type ("tuple", "list", "dict") and length."""

    type: str
    length: int

    def __str__(self) -> str:
        return f"a {self.type} of length {self.length}"

    def refusal(self, value: Any) -> str | None:
        if type(value).__name__ != self.type:
            return described(value)
        return None if len(value) == self.length else f"a {self.type} of length {len(value)}"


@dataclass(frozen=True)
class Keys:
    """A dict with these keys, in this order."""

    keys: tuple[Any, ...]

    def __str__(self) -> str:
        return f"a dict with the keys {list(self.keys)}"

    def refusal(self, value: Any) -> str | None:
        if not isinstance(value, dict):
            return described(value)
        return None if tuple(value) == self.keys else f"a dict with the keys {list(value)}"


@dataclass(frozen=True)
class Has:
    """A dict with this key, or without it; of another object, its attributes."""

    key: Any
    present: bool = True

    def __str__(self) -> str:
        return f"{'the' if self.present else 'no'} key {self.key!r}"

    def refusal(self, value: Any) -> str | None:
        keys = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        return None if (self.key in keys) == self.present else f"the keys {list(keys)}"


@dataclass(frozen=True)
class Type:
    """A value whose class has this name."""

    name: str

    def __str__(self) -> str:
        return f"a value of type {self.name}"

    def refusal(self, value: Any) -> str | None:
        return None if type(value).__name__ == self.name else described(value)


@dataclass(frozen=True)
class Same:
    """The very object that is at ``other``, or another one."""

    other: Ref
    same: bool = True

    def __str__(self) -> str:
        return f"{'the object' if self.same else 'another object than'} {self.other}"


@dataclass(frozen=True)
class Relation:
    """A number that compares so (``op``: "<", "<=", "==", "!=", ">", ">=") with a constant."""

    op: str
    number: float

    def __post_init__(self) -> None:
        if self.op not in COMPARISONS:
            raise ValueError(f"a relation has no operator {self.op!r}")

    def __str__(self) -> str:
        return f"a number {self.op} {self.number}"

    def refusal(self, value: Any) -> str | None:
        if isinstance(value, bool | int | float) and COMPARISONS[self.op](value, self.number):
            return None
        return described(value)


@dataclass(frozen=True)
class Relates:
    """Numbers of which ``formula`` holds, which has the names n0 (the number that is checked), n1 … for them."""

    formula: str
    others: tuple[Ref, ...] = ()

    @functools.cached_property
    def _parsed(self) -> Formula:
        return Formula(self.formula, 1 + len(self.others))

    def __post_init__(self) -> None:
        _ = self._parsed  # raises if it is not one

    def __str__(self) -> str:
        names = "".join(f", n{i} = {other}" for i, other in enumerate(self.others, 1))
        return f"a number n0 with {self.formula}{names}"

    def holds(self, numbers: Sequence[Any]) -> bool:
        if not all(isinstance(number, int | float) for number in numbers):
            return False
        return self._parsed.holds(numbers)


@dataclass(frozen=True)
class Check:
    """The value at ``of`` must be as ``want`` says."""

    of: Ref
    want: TensorLike | Number | EqualTo | Length | Keys | Has | Type | Same | Relation | Relates


# -- blocks --


@dataclass(frozen=True)
class Jump:
    """Go on at the first of ``blocks`` whose checks hold, with these slots and no others."""

    blocks: tuple[str, ...]
    slots: Mapping[str, Operand] = field(default_factory=dict)


@dataclass(frozen=True)
class Branch:
    """``bool(on)`` chooses the jump."""

    on: Operand
    if_true: Jump
    if_false: Jump


@dataclass(frozen=True)
class Return:
    """The call's result; ``state`` gives state slots their values for the next call."""

    result: Operand
    state: Mapping[str, Operand] = field(default_factory=dict)


@dataclass(frozen=True)
class Block:
    """A graph, where its inputs come from, the slots of its outputs, and what comes next."""

    name: str
    graph_text: str
    exit: Return | Jump | Branch
    constants: tuple[torch.Tensor, ...] = ()  # in the text's order
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    int8: bool = False  # the graph is a quantized one in its reference form, lowered when loaded
    decisions: str = (
        ""  # a block whose outputs have to be as true as `outcomes`, which is run after the checks
    )
    outcomes: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A parameter of the call; ``kind``: a name of ``inspect.Parameter``'s kinds."""

    name: str
    kind: str = "POSITIONAL_OR_KEYWORD"
    default: Const | Tuple | List | Dict | None = None
    is_fixed: bool = False  # no call gives it: the program has the default's object inside


@dataclass(frozen=True)
class Frozen:
    """How the graphs of a program are frozen when it is loaded, as ``frametap.freeze`` freezes them."""

    products: str  # "float32", "bfloat16", "dynamic int8"
    activation_bits: int = 0  # of dynamic int8; 0 leaves the number to the processor

    def __post_init__(self) -> None:
        if self.products not in ("float32", "bfloat16", "dynamic int8"):
            raise ValueError(f"unknown products {self.products!r}")
        if self.activation_bits not in (0, 7, 8):
            raise ValueError(f"activations of {self.activation_bits} bits")


@dataclass(frozen=True)
class Report:
    """The table of a converted model as it was when it was saved; of plain JSON values."""

    rows: Sequence[Mapping[str, Any]] = ()  # one an op
    text: str = ""
    output_sqnr: Mapping[str, float] = field(
        default_factory=dict
    )  # dB; empty if it was not measured


@dataclass(frozen=True)
class Program:
    """Blocks, where a call begins (candidates, as in Jump), its parameters, and what persists."""

    name: str
    parameters: tuple[Parameter, ...]
    entry: tuple[str, ...]
    blocks: tuple[Block, ...]
    weights: Mapping[str, torch.Tensor] = field(default_factory=dict)
    require_grad: tuple[str, ...] = ()  # the weights of the model that require gradients
    state: Mapping[str, Const | Ref] = field(
        default_factory=dict
    )  # first values; a Ref is to a weight
    qualname: str = ""  # as Python's own words have it: "" for the name
    is_bound: bool = False  # a method: Python counts the object among the arguments
    owner_in_args: bool = (
        False  # ... and its first parameter is ``*args``, which begins with the object
    )
    frozen: Frozen | None = None
    checks_finite: bool = False  # NaN and infinity that would become bytes are refused
    report: Report = Report()


STEPS = {
    "item": lambda value, key: value[key],
    "attr": getattr,
    "size": lambda value, i: value.size(i),
    "stride": lambda value, i: value.stride(i),
    "length": lambda value, _: len(value),
}


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name without ``torch.``, as in graphs and messages."""
    return str(dtype).removeprefix("torch.")


def described(value: Any) -> str:
    """Returns words for a value that a call gives."""
    if isinstance(value, torch.Tensor):
        return f"a tensor of {dtype_name(value.dtype)} {list(value.shape)}"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    return f"a value of type {type(value).__name__}"


def _bits(value: Any) -> Any:
    """Equal exactly if the values are the same: 0.0 is not -0.0, and nan is nan."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, complex):
        return value.real.hex(), value.imag.hex()
    return value


# The classes that a file has by their names.
NODES: tuple[type, ...] = (
    *get_args(Operand),
    *(TensorLike, Number, EqualTo, Length, Keys, Has, Type, Same, Relation, Relates, Check),
    *(Jump, Branch, Return, Block, Parameter, Frozen),
)
