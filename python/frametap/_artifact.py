"""Programs in files: what ``frametap.save`` writes and ``frametap.load`` runs, without capture and
without the source code of the model.

A **program** is a set of straight-line **blocks**. A block is one graph; its **exit** says what comes
next. Between blocks there is a **state**, which is slots (names) with values. A call binds its arguments
to slots, named as the parameters. Then it repeats these steps:

1.  It takes the first block of the candidates whose checks hold.
2.  The block's graph runs on the slots in `inputs`, and its results are the slots in `outputs`.
3.  A `Return` builds the result. A `Jump` or `Branch` leads to the next candidates, with new slots.

A1  A file is complete or absent: it is written beside its place and renamed.
A2  Data are checked before they are used: format, versions, checksums, graphs. No code is loaded.
A3  A call is refused, with the argument's name, unless it is one of those that the checks describe.
A4  Slots do not outlive a jump except those that it assigns; `state` slots outlive the call.

The file is a zip: ``manifest.json`` (versions, blocks, checksums), ``graphs/N.txt`` (text form),
``tensors.pt`` (``torch.save``, readable with ``weights_only``), ``report.json`` (the table of a converted model).

Not here: making a program from captured segments (``_save.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, get_args

import torch

from frametap import _C
from frametap import _saved_objects as objects
from frametap._errors import (
    SATURATES,
    ArtifactError,
    FreezeError,
    GraphError,
    QuantizationError,
    not_finite,
)
from frametap._formula import COMPARISONS, Formula
from frametap._version import __version__

__all__ = [
    "FORMAT_VERSION",
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
    "LoadedProgram",
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
    "load_program",
    "save_program",
]

FORMAT = "frametap program"
FORMAT_VERSION = 2


# -- operands: where a value comes from --


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
        if unknown := {step for step, _ in self.path} - _STEPS.keys():
            raise ValueError(f"a path has no step {unknown.pop()!r}")

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


@dataclass(frozen=True)
class Tuple:
    items: tuple[Operand, ...]


@dataclass(frozen=True)
class List:
    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Dict:
    """A dict whose keys are constants; order is kept."""

    keys: tuple[Const, ...]
    values: tuple[Operand, ...]


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
        return f"a tensor of {_short(self.dtype)} [{sizes}] on {self.device}"

    def refusal(self, value: Any) -> str | None:
        if not isinstance(value, torch.Tensor):
            return type(value).__name__
        sizes = tuple(value.shape)
        same = len(sizes) == len(self.shape) and all(
            want is None or want == got for want, got in zip(self.shape, sizes, strict=True)
        )
        if same and value.dtype == self.dtype and str(value.device) == self.device:
            return None
        return f"a tensor of {_short(value.dtype)} {list(sizes)} on {value.device}"


@dataclass(frozen=True)
class Number:
    """Any number of this type: "int", "float" or "bool"."""

    type: str

    def __str__(self) -> str:
        return f"a number of type {self.type}"

    def refusal(self, value: Any) -> str | None:
        return None if type(value).__name__ == self.type else _described(value)


@dataclass(frozen=True)
class EqualTo:
    """This very constant, by type and value."""

    value: Any

    def __str__(self) -> str:
        return repr(self.value)

    def refusal(self, value: Any) -> str | None:
        same = type(value) is type(self.value) and _bits(value) == _bits(self.value)
        return None if same else _described(value)


@dataclass(frozen=True)
class Length:
    """A container of this type ("tuple", "list", "dict") and length."""

    type: str
    length: int

    def __str__(self) -> str:
        return f"a {self.type} of length {self.length}"

    def refusal(self, value: Any) -> str | None:
        if type(value).__name__ != self.type:
            return _described(value)
        return None if len(value) == self.length else f"a {self.type} of length {len(value)}"


@dataclass(frozen=True)
class Keys:
    """A dict with these keys, in this order."""

    keys: tuple[Any, ...]

    def __str__(self) -> str:
        return f"a dict with the keys {list(self.keys)}"

    def refusal(self, value: Any) -> str | None:
        if not isinstance(value, dict):
            return _described(value)
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
        return None if type(value).__name__ == self.name else _described(value)


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
        return _described(value)


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


_STEPS = {
    "item": lambda value, key: value[key],
    "attr": getattr,
    "size": lambda value, i: value.size(i),
    "stride": lambda value, i: value.stride(i),
    "length": lambda value, _: len(value),
}


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {_short(value.dtype)} {list(value.shape)}"
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


# -- JSON --

_NODES: tuple[type, ...] = (
    *get_args(Operand),
    *(TensorLike, Number, EqualTo, Length, Keys, Has, Type, Same, Relation, Relates, Check),
    *(Jump, Branch, Return, Block, Parameter, Frozen),
)
_NODE_OF = {node.__name__: node for node in _NODES}


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, torch.dtype):
        return {"dtype": _short(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {"map": [[_encode(k), _encode(v)] for k, v in value.items()]}
    if isinstance(value, _NODES):
        skip = ("graph_text", "constants") if isinstance(value, Block) else ()
        fields = [f.name for f in dataclasses.fields(value) if f.name not in skip]
        return {type(value).__name__: {name: _encode(getattr(value, name)) for name in fields}}
    raise ArtifactError(
        f"save: a value of type {type(value).__name__} cannot be written to a file; "
        "only None, numbers, strings, bytes, dtypes, devices and tensors can"
    )


def _decode(value: Any, **more: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "float":
        return float.fromhex(content)
    if tag == "complex":
        return complex(*map(float.fromhex, content))
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "dtype":
        return _known_dtype(content)
    if tag == "device":
        return torch.device(content)
    if tag == "map":
        return {_decode(k): _decode(v) for k, v in content}
    fields = {name: _decode(item) for name, item in content.items()}
    return _NODE_OF[tag](**fields, **more)


def _known_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a dtype")
    return dtype


# -- files --


def save_program(path: str | os.PathLike[str], program: Program) -> None:
    """Writes the program; an existing file is replaced only by a complete one."""
    LoadedProgram(program)  # what could not be loaded again is not written
    target = Path(path)
    graphs = {f"graphs/{i}.txt": block.graph_text for i, block in enumerate(program.blocks)}
    tensors = io.BytesIO()
    torch.save(
        {
            "weights": {name: _plain(tensor) for name, tensor in program.weights.items()},
            "constants": [[_plain(t) for t in block.constants] for block in program.blocks],
        },
        tensors,
    )
    files = {name: text.encode() for name, text in graphs.items()}
    files["tensors.pt"] = tensors.getvalue()
    files["report.json"] = json.dumps(dataclasses.asdict(program.report)).encode()
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "frametap_version": __version__,
        "torch_version": str(torch.__version__),
        "name": program.name,
        "qualname": program.qualname,
        "is_bound": program.is_bound,
        "owner_in_args": program.owner_in_args,
        "require_grad": list(program.require_grad),
        "frozen": _encode(program.frozen),
        "checks_finite": program.checks_finite,
        "parameters": _encode(program.parameters),
        "entry": list(program.entry),
        "state": _encode(program.state),
        "blocks": _encode(program.blocks),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest, indent=1, allow_nan=False))
        for name, data in files.items():
            archive.writestr(name, data)
    try:
        _write_at_once(target, content.getbuffer())
    except OSError as error:
        raise ArtifactError(f"save: {target} cannot be written: {error.strerror}") from error


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()  # a Parameter, or a tensor with an autograd graph, is saved as its data


def _write_at_once(target: Path, content: memoryview) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def load_program(path: str | os.PathLike[str], classes: Iterable[type] = ()) -> LoadedProgram:
    """The program in the file, compiled and ready to be called. Its objects are made of `classes`."""
    known = objects.by_name(classes)
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except FileNotFoundError as error:
        raise ArtifactError(f"load: there is no file {source}") from error
    except OSError as error:
        raise ArtifactError(f"load: {source} cannot be read: {error.strerror}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        _refuse(source, f"it is damaged, or was not written by frametap.save ({error})", error)
    manifest = _manifest(source, files)
    for name, digest in manifest["sha256"].items():
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest:
            _refuse(source, f"it is damaged: {name} is not what was written")
    try:
        tensors = torch.load(io.BytesIO(files["tensors.pt"]), weights_only=True, map_location="cpu")
        blocks = tuple(
            _decode(
                block,
                graph_text=files[f"graphs/{i}.txt"].decode(),
                constants=tuple(tensors["constants"][i]),
            )
            for i, block in enumerate(manifest["blocks"])
        )
        program = Program(
            name=manifest["name"],
            parameters=_decode(manifest["parameters"]),
            entry=tuple(manifest["entry"]),
            blocks=blocks,
            weights=tensors["weights"],
            require_grad=tuple(map(str, manifest.get("require_grad", ()))),
            state=_decode(manifest["state"]),
            qualname=str(manifest.get("qualname", "")),
            is_bound=bool(manifest.get("is_bound", False)),
            owner_in_args=bool(manifest.get("owner_in_args", False)),
            frozen=_decode(manifest.get("frozen")),
            checks_finite=bool(manifest.get("checks_finite", False)),
            report=Report(**json.loads(files.get("report.json", b"{}"))),
        )
    except Exception as error:  # noqa: BLE001  whatever a foreign manifest leads to
        _refuse(source, f"its content cannot be read ({type(error).__name__}: {error})", error)
    try:
        return LoadedProgram(program, known)
    except ArtifactError as error:
        _refuse(source, str(error), error)


def _manifest(source: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        manifest = json.loads(files["manifest.json"])
        if manifest["format"] != FORMAT:
            raise KeyError("format")
    except (KeyError, TypeError, ValueError) as error:
        _refuse(
            source,
            "it is damaged, or was not written by frametap.save (no manifest of its format)",
            error,
        )
    version = manifest.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        _refuse(
            source,
            f"its format version is {version}, this frametap ({__version__}) reads up to "
            f"{FORMAT_VERSION}; use the frametap that wrote it "
            f"({manifest.get('frametap_version')}) or a newer one",
        )
    wrote, runs = str(manifest.get("torch_version")), str(torch.__version__)
    if wrote.split(".")[:2] != runs.split(".")[:2]:
        _refuse(
            source,
            f"it was written with torch {wrote}, this is torch {runs}; operators may differ: "
            f"save the program again with torch {runs}",
        )
    missing = {"name", "parameters", "entry", "state", "blocks", "sha256"} - manifest.keys()
    if missing:
        _refuse(source, f"it is damaged: its manifest lacks {', '.join(sorted(missing))}")
    return manifest


def _refuse(source: Path, why: str, cause: BaseException | None = None) -> NoReturn:
    raise ArtifactError(f"load: {source} cannot be loaded: {why}") from cause


# -- running --


class LoadedProgram:
    """A program that can be called: ``program(*args, **kwargs)`` as the captured function was."""

    def __init__(self, program: Program, classes: Mapping[str, type] | None = None) -> None:
        self.program = program
        self._classes = dict(classes or {})
        self._blocks = {block.name: block for block in program.blocks}
        self._signature = _signature(program)
        self._bind = _binder(program, self._signature)
        _check_names(program)
        self._flagged = {name: _flagged(program.weights[name]) for name in program.require_grad}
        self._state = {name: self._value(first, {}) for name, first in program.state.items()}
        self._frozen = _frozen_graphs(program)
        native = _C.native_backend()
        self._compiled = {
            block.name: _C.compile(
                native,
                self._frozen.get(block.name)
                or _graph_of(block, program.checks_finite, gradients=False),
            )
            for block in program.blocks
        }
        self._with_gradients: dict[
            str, _C.Executable
        ] = {}  # made at the first call that asks for it

    def __repr__(self) -> str:
        return f"<frametap program {self.program.name}{self._signature}>"

    @property
    def __signature__(self) -> inspect.Signature:
        return self._signature

    def graphs(self) -> dict[str, str]:
        """The text of each block's graph."""
        return {block.name: block.graph_text for block in self.program.blocks}

    def frozen_graphs(self) -> dict[str, _C.Graph]:
        """The graph that runs for each block of a frozen model; empty for another program."""
        return dict(self._frozen)

    @property
    def report(self) -> list[dict[str, Any]]:
        """The rows of a quantized or frozen model as it was when it was saved; none of another program."""
        return [dict(row) for row in self.program.report.rows]

    @property
    def output_sqnr(self) -> dict[str, float]:
        """dB by output, as :class:`QuantizedModel` has it; empty if it was not measured before the model was saved."""
        return dict(self.program.report.output_sqnr)

    def report_text(self) -> str:
        """The table of a quantized or frozen model as it was when it was saved."""
        return self.program.report.text

    def state_dict(self) -> dict[str, Any]:
        """Weights, and what else persists between calls."""
        return {**self.program.weights, **self._state}

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        arguments = self._bind(*args, **kwargs)
        for parameter in self.program.parameters:
            name = parameter.name
            if parameter.is_fixed and arguments.pop(name) is not _FIXED:
                raise ArtifactError(
                    f"{self.program.name}: argument {name} is fixed in the saved program, which has the object "
                    "that was its default; leave it out"
                )
        slots = {**self._state, **arguments}
        block = self._choose(self.program.entry, slots, "the call")
        while True:
            try:
                results = self._run(block, slots)
            except Exception as error:
                described = ", ".join(f"{k}: {_described(v)}" for k, v in arguments.items())
                raise ArtifactError(
                    f"{self.program.name}: the graph of block {block.name!r} does not take these "
                    f"arguments ({described}): {error}"
                ) from error
            if self.program.checks_finite and (place := _C.take_not_finite()):
                raise QuantizationError(f"{self.program.name}: {not_finite(place)}")
            slots.update(zip(block.outputs, results, strict=True))
            way_out = block.exit
            if isinstance(way_out, Return):
                result = self._value(way_out.result, slots, {})
                self._state.update(
                    {name: self._value(operand, slots) for name, operand in way_out.state.items()}
                )
                return result
            if isinstance(way_out, Branch):
                way_out = way_out.if_true if self._value(way_out.on, slots) else way_out.if_false
            kept = {name: slots[name] for name in self._state}
            slots = kept | {
                name: self._value(operand, slots) for name, operand in way_out.slots.items()
            }
            block = self._choose(way_out.blocks, slots, f"what follows block {block.name!r}")

    def _run(self, block: Block, slots: Mapping[str, Any]) -> Sequence[Any]:
        """Returns the results of the graph. Gradients reach arguments that require them, and never the weights."""
        inputs = [self._value(operand, slots) for operand in block.inputs]
        has_gradients = torch.is_grad_enabled() and any(
            isinstance(one, torch.Tensor) and one.requires_grad for one in inputs
        )
        if block.name not in self._frozen:
            for i, operand in enumerate(block.inputs):
                if isinstance(operand, Ref) and operand.weight and not operand.path:
                    flagged = self._flagged.get(operand.name)
                    if flagged is not None:  # a gradient of a weight is dropped with its alias
                        inputs[i] = _flagged(flagged) if has_gradients else flagged
        graph = self._differentiable(block) if has_gradients else self._compiled[block.name]
        return graph.run(inputs)

    def _differentiable(self, block: Block) -> _C.Executable:
        if block.name in self._frozen:
            return self._compiled[block.name]
        made = self._with_gradients.get(block.name)
        if made is None:
            graph = _graph_of(block, self.program.checks_finite)
            made = self._with_gradients[block.name] = _C.compile(_C.native_backend(), graph)
        return made

    def _choose(self, names: Sequence[str], slots: Mapping[str, Any], where: str) -> Block:
        refusals = []
        for name in names:
            refusal = self._first_refusal(self._blocks[name], slots)
            if refusal is None:
                return self._blocks[name]
            if refusal not in refusals:
                refusals.append(refusal)
        detail = "".join(f"\n  {refusal}" for refusal in refusals)
        raise ArtifactError(
            f"{self.program.name}: {where} differs from each call that was saved:{detail}\n"
            "  call the original with such arguments before saving it, or change the arguments"
        )

    def _first_refusal(self, block: Block, slots: Mapping[str, Any]) -> str | None:
        for check in block.checks:
            want = check.want
            try:
                value = self._value(check.of, slots)
                if isinstance(want, Same):
                    if (value is self._value(want.other, slots)) != want.same:
                        return f"argument {check.of}: {want} expected"
                    continue
                if isinstance(want, Relates):
                    numbers = [value, *(self._value(other, slots) for other in want.others)]
                    if not want.holds(numbers):
                        return f"argument {check.of}: {want} expected, got {numbers}"
                    continue
            except (AttributeError, IndexError, KeyError, TypeError):
                return f"argument {check.of}: {want} expected, and there is none"
            got = want.refusal(value)
            if got is not None:
                return f"argument {check.of}: {want} expected, got {got}"
        if not block.decisions:
            return None
        decisions = self._blocks[block.decisions]
        results = self._run(decisions, slots)
        if [bool(result) for result in results] == list(block.outcomes):
            return None
        given = ", ".join(dict.fromkeys(o.name for o in decisions.inputs if isinstance(o, Ref)))
        return f"a branch on elements of {given} goes another way"

    def _value(
        self, operand: Operand, slots: Mapping[str, Any], labelled: dict[int, Any] | None = None
    ) -> Any:
        """`labelled`: objects of this result that occur again, which grows."""

        def make(item: Operand) -> Any:
            return self._value(item, slots, labelled)

        if isinstance(operand, Ref):
            value = (self.program.weights if operand.weight else slots)[operand.name]
            for step, key in operand.path:
                value = _STEPS[step](value, key)
            return value
        if isinstance(operand, Const):
            return operand.value
        if isinstance(operand, Tuple):
            return tuple(map(make, operand.items))
        if isinstance(operand, List):
            return list(map(make, operand.items))
        if isinstance(operand, Dict):
            keys = (key.value for key in operand.keys)
            return dict(zip(keys, map(make, operand.values), strict=True))
        if labelled is None:
            raise ArtifactError(f"{self.program.name}: an object is not in a result")
        if isinstance(operand, Again):
            return labelled[operand.label]
        if isinstance(operand, Labelled):
            labelled[operand.label] = make(operand.of)
            return labelled[operand.label]
        content = None if operand.content is None else make(operand.content)
        attributes = dict(zip(operand.names, map(make, operand.values), strict=True))
        return objects.make(
            self._classes, operand.class_name, operand.kind, content, attributes, operand.fields
        )


class _Fixed:
    def __repr__(self) -> str:
        return "<saved>"


_FIXED = _Fixed()


def _default(parameter: Parameter) -> Any:
    """One object for all calls, as Python has it."""

    def make(operand: Operand | None) -> Any:
        if isinstance(operand, Const):
            return operand.value
        if isinstance(operand, Tuple):
            return tuple(map(make, operand.items))
        if isinstance(operand, List):
            return list(map(make, operand.items))
        if isinstance(operand, Dict):
            keys = (key.value for key in operand.keys)
            return dict(zip(keys, map(make, operand.values), strict=True))
        raise ValueError(f"the default of {parameter.name} is not a constant")

    if parameter.is_fixed:
        return _FIXED
    return inspect.Parameter.empty if parameter.default is None else make(parameter.default)


def _signature(program: Program) -> inspect.Signature:
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


def _binder(program: Program, signature: inspect.Signature) -> Callable[..., dict[str, Any]]:
    """A function that gives its arguments by name. Python binds them, and says what is wrong with a call."""
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


def _frozen_graphs(program: Program) -> dict[str, _C.Graph]:
    """By block, for a frozen model. Tests of branches are not frozen."""
    if program.frozen is None:
        return {}
    backend = _freezing(program.frozen)
    decisions = {block.decisions for block in program.blocks}
    graphs = {}
    for block in program.blocks:
        if block.name in decisions:
            continue
        try:
            graphs[block.name] = backend.freeze(
                _graph_of(block), _weights_among(block.inputs, program.weights)
            )
        except FreezeError as error:
            raise ArtifactError(
                f"the graph of block {block.name!r} cannot be frozen here: {error}"
            ) from error
    return graphs


_HAS_8_BITS = f"its activations have 8 bits, and {SATURATES}; quantize it here or with activation_bits=7, and save it again"


def _freezing(frozen: Frozen) -> _C.FreezeBackend:
    if frozen.activation_bits == 8 and not _C.quant_full_range():
        raise ArtifactError(_HAS_8_BITS)
    bits = {"activation_bits": frozen.activation_bits} if frozen.activation_bits else {}
    return _C.FreezeBackend([], products=frozen.products, options=bits)


def _weights_among(
    inputs: Iterable[Operand], weights: Mapping[str, torch.Tensor]
) -> list[torch.Tensor | None]:
    return [
        weights.get(operand.name)
        if isinstance(operand, Ref) and operand.weight and not operand.path
        else None
        for operand in inputs
    ]


def _flagged(weight: torch.Tensor) -> torch.Tensor:
    """Returns an alias that requires gradients. at::matmul chooses a kernel by that, also in torch.no_grad."""
    return weight.detach().requires_grad_()


def _graph_of(block: Block, checks_finite: bool = False, *, gradients: bool = True) -> _C.Graph:
    try:
        graph = _C.parse_graph(block.graph_text, block.constants, gradients=gradients)
        _C.verify(graph)
        _refuse_saturation(graph)
        if block.int8:
            graph = _C.quant_lower(graph, checks_finite)
    except GraphError as error:
        raise ArtifactError(f"the graph of block {block.name!r} is wrong: {error}") from error
    except QuantizationError as error:
        raise ArtifactError(
            f"the int8 graph of block {block.name!r} has no kernels here: {error}"
        ) from error
    for what, given, wanted in (
        ("inputs", block.inputs, graph.inputs),
        ("outputs", block.outputs, graph.outputs),
    ):
        if len(given) != len(wanted):
            raise ArtifactError(
                f"block {block.name!r} names {len(given)} {what}, its graph has {len(wanted)}"
            )
    return graph


def _refuse_saturation(graph: _C.Graph) -> None:
    """Refuses activations of 8 bits where oneDNN has no VNNI: sums of two products saturate there without a word."""
    if not _C.quant_full_range() and any(map(_takes_8_bits, graph.nodes)):
        raise ArtifactError(_HAS_8_BITS)


def _takes_8_bits(node: _C.Node) -> bool:
    if not node.op.startswith("frametap."):
        return False
    arguments = dict(zip(node.schema_args, node.args, strict=False))
    is_byte = arguments.get("dtype") == torch.uint8 and arguments.get("qmax") == 255
    return arguments.get("bits") in (8, 16) or (
        node.op == "frametap.quantize_per_tensor" and is_byte
    )


def _check_names(program: Program) -> None:
    """Blocks and weights that are referred to exist. Slots are known only when it runs."""
    blocks = {block.name for block in program.blocks}
    if len(blocks) != len(program.blocks):
        raise ArtifactError("two blocks have the same name")
    for name in program.require_grad:
        weight = program.weights.get(name)
        if weight is None or not (weight.is_floating_point() or weight.is_complex()):
            raise ArtifactError(f"the weight {name!r} cannot require gradients")

    def follow(item: Any, where: str) -> None:
        targets = item.blocks if isinstance(item, Jump) else ()
        for name in targets:
            if name not in blocks:
                raise ArtifactError(f"{where} continues at block {name!r}, which does not exist")
        if isinstance(item, Block) and item.decisions and item.decisions not in blocks:
            raise ArtifactError(f"{where} needs block {item.decisions!r}, which does not exist")
        if isinstance(item, Ref) and item.weight and item.name not in program.weights:
            raise ArtifactError(f"{where} uses the weight {item.name!r}, which does not exist")
        if isinstance(item, Mapping):
            item = tuple(item.values())
        if isinstance(item, tuple):
            for part in item:
                follow(part, where)
        elif isinstance(item, _NODES):
            for part in dataclasses.fields(item):
                follow(getattr(item, part.name), where)

    follow(Jump(program.entry), "the entry")
    follow(program.state, "the state")
    for block in program.blocks:
        follow(block, f"block {block.name!r}")
