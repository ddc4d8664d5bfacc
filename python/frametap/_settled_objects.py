"""Open and settled objects of a program that is saved, with its weights and its state.

S1  Each object that a segment names is either **open** (reached from an argument, or a result of a graph)
    or **settled** (the model, its parts, globals).
S2  A parameter or buffer is settled as a weight. An attribute that a segment assigns a number to (a
    counter) is open: a state slot of the program.

Not here: guards on these objects (``_saved_checks.py``), operands that hold them (``_saved_operands.py``).
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from frametap import _C
from frametap import _program as prog
from frametap._guards import is_plain
from frametap._saved_function import SavedFunction

__all__ = ["SETTLED_STEPS", "UNKNOWN", "Settled", "SettledObjects", "Where"]

Path: TypeAlias = list[tuple[str, Any]]


@dataclass(frozen=True)
class Settled:
    """An object that is known when the program is saved."""

    value: Any


Where: TypeAlias = prog.Ref | Settled

UNKNOWN = (
    object()
)  # an object that cannot be found again by its path; the recorder knows it by identity
_EMPTY = "<unused>"  # the weight that stands for inputs that an int8 graph ignores


class SettledObjects:
    """The objects around a function. It collects the weights and the state of the program.

    ``environment`` has the locals of a segment that are settled. Its other locals are open.
    """

    def __init__(self, function: SavedFunction) -> None:
        self.weights: dict[str, torch.Tensor] = {}  # that the program uses
        self.initial: dict[str, prog.Const | prog.Ref] = {}  # first values of the state slots
        self.function = function
        self._slots: dict[tuple[int, Any], str] = {}  # (id(object), attribute or key) -> slot
        self._weight_names: dict[int, str] = {}
        self._by_memory: dict[tuple[Any, ...], torch.Tensor] = {}
        self._kept: list[Any] = []  # objects whose identity is a key here
        if isinstance(function.owner, torch.nn.Module):
            for name, tensor in itertools.chain(
                function.owner.named_parameters(), function.owner.named_buffers()
            ):
                self._weight_names.setdefault(id(tensor), name)
                if tensor.layout is torch.strided:
                    self._by_memory.setdefault(_memory(tensor), tensor)

    def resolve(self, path: Path, environment: Mapping[str, Any]) -> Where:
        """Returns the place of the object that a path leads to: an open one, or the settled object itself."""
        kind, key = path[0]
        here: Where
        if kind in ("local", "cell", "stack"):
            slot = f"S[{key}]" if kind == "stack" else key
            here = Settled(environment[slot]) if slot in environment else prog.Ref(slot)
        elif kind == "function":
            here = Settled(self.function.plain)
        else:
            here = Settled(key)
        for accessor, key in path[1:]:
            here = self._step(here, accessor, key)
        return here

    def _step(self, here: Where, accessor: str, key: Any) -> Where:
        if isinstance(here, prog.Ref):
            if accessor == "item" and key == 0 and here == prog.Ref(self.function.owner_in):
                return Settled(self.function.owner)
            if accessor in ("attr", "module_attr"):
                step = ("attr", key)
            elif accessor in ("item", "key"):
                step = ("item", key if accessor == "item" else _literal(key))
            elif accessor in ("size", "stride", "length"):
                step = (accessor, 0 if accessor == "length" else key)
            elif accessor == "dict":
                return here  # its attributes are reached by their names
            else:
                return Settled(UNKNOWN)
            return prog.Ref(here.name, (*here.path, step), here.weight)
        value = here.value
        if value is UNKNOWN:
            return here
        name = _literal(key) if accessor == "key" else key
        if accessor in ("attr", "module_attr", "key") and (id(value), name) in self._slots:
            return prog.Ref(self._slots[id(value), name])
        try:
            found = SETTLED_STEPS[accessor](value, name)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            found = UNKNOWN
        self._kept.append(found)
        return Settled(found)

    def weight(self, tensor: torch.Tensor, name: str) -> prog.Ref:
        """Returns the weight that is this tensor. A tensor that has no name yet gets `name`."""
        known = self._weight_names.get(id(tensor))
        if known is None:
            taken = {*self._weight_names.values(), *self.weights}
            known = base = name.removeprefix("L.")
            for n in itertools.count(1):
                if known not in taken:
                    break
                known = f"{base}.{n}"
            self._weight_names[id(tensor)] = known
        self.weights[known] = tensor
        self._kept.append(tensor)
        return prog.Ref(known, weight=True)

    def unused_weight(self) -> prog.Ref:
        """Returns the weight that stands for inputs that an int8 graph ignores."""
        self.weights[_EMPTY] = torch.empty(0)
        return prog.Ref(_EMPTY, weight=True)

    def tensor_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the first tensor that was found with this memory, dtype, sizes and strides."""
        return self._by_memory.setdefault(_memory(tensor), tensor)

    def find_state(self, segments: Iterable[_C.Segment], environment: Mapping[str, Any]) -> None:
        """Adds a state slot for each attribute and item of a settled object that a segment assigns."""
        for segment in segments:
            for effect in segment.effects:
                if effect["target"]["kind"] != "source":
                    continue
                owner = self.resolve(effect["target"]["path"], environment)
                if not isinstance(owner, Settled) or (key := _slot_key(effect)) is None:
                    continue
                self._add_slot(owner.value, effect["kind"], key, effect["target"]["source"])

    def _add_slot(self, owner: Any, kind: str, key: Any, source: str) -> None:
        """Adds a state slot for an attribute, or for an item of a dict (a buffer is one of its module's)."""
        if isinstance(owner, torch.Tensor) and key == "data":
            return  # ops read the tensor, not the slot
        if kind == "setattr":
            now = getattr(owner, key, UNKNOWN)
            others = [getattr(owner, "__dict__", owner)]
        else:
            now = owner.get(key, UNKNOWN) if isinstance(owner, dict) else UNKNOWN
            others = [module for module in self._modules() if module._buffers is owner]
        slot = self._slots.get(
            (id(owner), key), f"{source.removeprefix('L.').removesuffix('._buffers')}.{key}"
        )
        if isinstance(now, torch.Tensor):
            self.weights[slot] = now
            self.initial[slot] = prog.Ref(slot, weight=True)
        elif is_plain(now):
            self.initial[slot] = prog.Const(now)
        else:
            return  # set when its block is made
        for place in (owner, *others):
            self._slots[id(place), key] = slot

    def _modules(self) -> Iterator[torch.nn.Module]:
        if isinstance(self.function.owner, torch.nn.Module):
            yield from self.function.owner.modules()

    def slot_of(self, effect: Mapping[str, Any], owner: Where) -> str | None:
        """Returns the state slot that the effect gives a new value, or None if there is none."""
        if isinstance(owner, Settled) and (key := _slot_key(effect)) is not None:
            return self._slots.get((id(owner.value), key))
        return None


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _slot_key(effect: Mapping[str, Any]) -> Any:
    """Returns the attribute or key that the effect gives a new value, or None for other effects."""
    if effect["kind"] == "setattr":
        return effect["name"]
    key = effect["key"]
    if (
        effect["kind"] == "setitem"
        and key["kind"] == "const"
        and type(key["constant"]) in (str, int)
    ):
        return key["constant"]
    return None


def _literal(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


def _item_of_dict(value: Any, key: Any) -> Any:
    """Returns the item that is stored. A ``__getitem__`` of a subclass may make another one of it."""
    return dict.__getitem__(value, key) if isinstance(value, dict) else value[key]


SETTLED_STEPS: dict[str, Any] = {
    **prog.STEPS,
    "module_attr": getattr,
    "key": lambda value, key: _item_of_dict(value, key),
    "global": lambda value, key: getattr(value, "__globals__", value)[key],
    "dict": lambda value, _: value.__dict__,
    "closure": lambda value, key: value.__closure__[key].cell_contents,
    "default": lambda value, key: value.__defaults__[key],
    "kw_default": lambda value, key: value.__kwdefaults__[key],
    "self": lambda value, _: value.__self__,
    "func": lambda value, _: value.__func__,
    "grad": lambda value, _: value.grad,
    "key_at": lambda value, key: list(value)[key],
}
