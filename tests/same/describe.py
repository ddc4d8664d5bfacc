"""An object graph as lines of text, so that two runs can be compared and their difference read.

Laws
  D1  Two graphs have the same lines if and only if a program cannot distinguish them. Compared are types, values to the
      bit, order of keys, sharing (the same object, the same storage), strides, gradients, versions, hooks and closures.
  D2  No line holds an address, an id or a path: those differ between runs that are the same.
  D3  Describing changes nothing: no op, no attribute access that could run the program's code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_PLAIN = (
    type(None),
    type(...),
    type(NotImplemented),
    bool,
    int,
    str,
    bytes,
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
    range,
    slice,
)
_SCALARS = (float, complex)
_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
# Book-keeping of nn.Module that is empty in every program here, and of frametap's own callables.
_SKIPPED_ATTRIBUTES = {
    "_non_persistent_buffers_set",
    "_is_full_backward_hook",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
}


def normalized(text: str) -> str:
    return _ADDRESS.sub("0x…", text)


class Describer:
    """Numbers objects and storages in the order of their first visit; one Describer describes one moment of one run."""

    def __init__(
        self,
        resolve: Callable[[Any], Any] = lambda obj: obj,
        unseen: Collection[str] = (),
    ) -> None:
        self._resolve = resolve  # a captured callable -> what it was made of
        self._unseen = unseen  # parts of tensors, by their names below or as attributes
        self._seen: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._keep: list[Any] = []  # ids stay unique while the objects live
        self.lines: list[str] = []

    def add(self, path: str, obj: Any) -> None:
        obj = self._resolve(obj)
        if isinstance(obj, _PLAIN) and type(obj) in _PLAIN or type(obj) in _SCALARS:
            self.lines.append(f"{path} = {obj!r}")
        elif id(obj) in self._seen:
            self.lines.append(f"{path} is #{self._seen[id(obj)]}")
        else:
            self._seen[id(obj)] = number = len(self._seen)
            self._keep.append(obj)
            self._visit(f"{path} #{number}", path, obj)

    def _visit(self, head: str, path: str, obj: Any) -> None:
        kind = type(obj).__qualname__
        if isinstance(obj, Tensor):
            self._tensor(head, path, obj)
        elif isinstance(obj, np.ndarray):
            digest = _digest(obj.tobytes()) if obj.dtype != object else ""
            self.lines.append(
                f"{head} = {kind} {obj.dtype}{list(obj.shape)}{list(obj.strides)} {self._memory(obj)} "
                f"{_short(obj)} {digest}"
            )
        elif isinstance(obj, np.generic):
            self.lines.append(f"{head} = {kind} {obj!r}")
        elif isinstance(obj, type):
            self.lines.append(f"{head} = class {obj.__qualname__}")
            if obj.__module__ == "program":
                for name, value in vars(obj).items():
                    if not (name.startswith("__") and name.endswith("__")) and name != "_abc_impl":
                        self.add(f"{path}.{name}", value)
        elif isinstance(obj, types.FunctionType):
            self._function(head, path, obj)
        elif isinstance(obj, types.MethodType):
            name = getattr(obj.__func__, "__qualname__", type(obj.__func__).__qualname__)
            self.lines.append(f"{head} = method {name}")
            self.add(f"{path}.__self__", obj.__self__)
        elif isinstance(obj, (types.ModuleType, types.BuiltinFunctionType, types.GeneratorType)):
            self.lines.append(f"{head} = {kind} {getattr(obj, '__name__', '')}")
        elif isinstance(obj, (property, staticmethod, classmethod, types.MemberDescriptorType)):
            self.lines.append(f"{head} = {kind}")
        elif isinstance(obj, nn.Module):
            self._module(head, path, obj)
        elif isinstance(obj, BaseException):
            self.lines.append(f"{head} = {kind} {normalized(str(obj))!r}")
            self._attributes(path, {k: v for k, v in vars(obj).items() if k != "__notes__"})
        elif isinstance(obj, RemovableHandle):
            self.lines.append(f"{head} = {kind}")  # its number counts all hooks of the process
        elif isinstance(obj, torch.Generator):
            self.lines.append(f"{head} = Generator {_digest(obj.get_state().numpy().tobytes())}")
        else:
            self._container(head, path, obj, kind)

    def _container(self, head: str, path: str, obj: Any, kind: str) -> None:
        if isinstance(obj, tuple):
            names = getattr(type(obj), "_fields", None) or range(len(obj))
            self.lines.append(f"{head} = {kind} of {len(obj)}")
            for name, value in zip(names, obj, strict=False):
                self.add(f"{path}[{name}]", value)
        elif isinstance(obj, (list, deque)):
            self.lines.append(f"{head} = {kind} of {len(obj)}")
            for i, value in enumerate(obj):
                self.add(f"{path}[{i}]", value)
        elif isinstance(obj, (set, frozenset)):
            self.lines.append(f"{head} = {kind} {sorted(map(repr, obj))}")
        elif isinstance(obj, (dict, types.MappingProxyType)):
            self.lines.append(f"{head} = {kind} of {len(obj)}")
            kinds = (OrderedDict, dict, types.MappingProxyType)
            base = next(kind for kind in kinds if isinstance(obj, kind))
            for key, value in base.items(obj):
                self.add(f"{path}[{normalized(repr(key))}]", value)
        elif kind in ("dict_keys", "dict_values", "dict_items"):
            self.add(path + f"<{kind}>", list(obj))
            return
        else:
            self.lines.append(f"{head} = {kind}")
        slots = {
            name: object.__getattribute__(obj, name)
            for cls in type(obj).__mro__
            for name in getattr(cls, "__slots__", ())
            if type(getattr(cls, name, None)) is types.MemberDescriptorType and _has(obj, name)
        }
        self._attributes(path, slots)
        if hasattr(type(obj), "__dict__"):
            self._attributes(path, _dict_of(obj))
        if dataclasses.is_dataclass(obj) and not _dict_of(obj):
            self.lines.append(f"{path} is a dataclass")

    def _attributes(self, path: str, attributes: dict[str, Any]) -> None:
        for name, value in attributes.items():
            if name not in self._unseen:
                self.add(f"{path}.{name}", value)

    def _tensor(self, head: str, path: str, t: Tensor) -> None:
        with torch.no_grad(), torch._C.DisableTorchFunction():
            plain = t.detach() if type(t) is Tensor else t.detach().as_subclass(Tensor)
            flags = [
                type(t).__qualname__,
                f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}",
                f"stride{list(t.stride())}" if t.layout == torch.strided else str(t.layout),
            ]
            if t.layout == torch.strided and t.device.type == "cpu":
                storage = self._storage(plain)
                flags.append(f"storage {storage}+{t.storage_offset()}")
                flags.append(_digest(_bytes(plain)))
            elif t.is_sparse or t.layout == torch.sparse_csr:
                flags.append(_digest(_bytes(plain.to_dense())))
            try:
                flags += [name for name in ("requires_grad", "is_leaf") if getattr(t, name)]
                if t.grad_fn is not None:
                    name = "" if "grad_fn" in self._unseen else type(t.grad_fn).__name__
                    flags.append(f"grad_fn {name}")
            except RuntimeError as e:  # a view whose base was changed in another mode
                flags.append(str(e)[:40])
            if t.is_inference():
                flags.append("inference")
            elif "version" not in self._unseen:
                flags.append(f"version {t._version}")
            if t._is_view() and "view" not in self._unseen:
                flags.append("view")
            if t._backward_hooks:
                flags.append(f"hooks {len(t._backward_hooks)}")
            self.lines.append(f"{head} = {' '.join(flags)} {_short_tensor(plain)}")
        if "is_leaf" in flags and t.grad is not None:
            self.add(f"{path}.grad", t.grad)
        self._attributes(path, _dict_of(t))

    def _storage(self, t: Tensor) -> str:
        pointer = t.untyped_storage().data_ptr()
        if pointer == 0:
            return "none"
        self._keep.append(t)
        return f"s{self._storages.setdefault(pointer, len(self._storages))}"

    def _memory(self, array: np.ndarray) -> str:
        """Return the memory of an array, its flags and the type of its base."""
        owner: Any = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if isinstance(owner.base, Tensor):
            storage = self._storage(owner.base)
        else:
            self._keep.append(owner)
            pointer = owner.__array_interface__["data"][0]
            storage = f"s{self._storages.setdefault(pointer, len(self._storages))}"
        flags = "".join(
            letter
            for letter, name in zip("COWF", ("C", "O", "W", "F"), strict=True)
            if array.flags[name]
        )
        return f"{storage} {flags} of {type(array.base).__name__}"

    def _function(self, head: str, path: str, f: types.FunctionType) -> None:
        self.lines.append(f"{head} = function {f.__qualname__}")
        if f.__module__ != "program":
            return
        if f.__defaults__:
            self.add(f"{path}.__defaults__", f.__defaults__)
        if f.__kwdefaults__:
            self.add(f"{path}.__kwdefaults__", f.__kwdefaults__)
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or (), strict=True):
            try:
                self.add(f"{path}.<{name}>", cell.cell_contents)
            except ValueError:
                self.lines.append(f"{path}.<{name}> is empty")
        self._attributes(path, vars(f))

    def _module(self, head: str, path: str, module: nn.Module) -> None:
        training = vars(module).get("training", "missing")
        self.lines.append(f"{head} = module {type(module).__qualname__} training={training}")
        for name, value in vars(module).items():
            if name in ("_parameters", "_buffers", "_modules"):
                self._attributes(path, value)
            elif name in _HOOKS:
                if value:
                    self.lines.append(f"{path}.{name} has {len(value)}")
            elif name not in _SKIPPED_ATTRIBUTES and name != "training":
                self.add(f"{path}.{name}", value)


def _has(obj: Any, name: str) -> bool:
    try:
        object.__getattribute__(obj, name)
    except AttributeError:
        return False
    return True


def _dict_of(obj: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return {}
    return dict(found) if isinstance(found, dict) else {}


def _bytes(t: Tensor) -> bytes:
    if t.is_conj() or t.is_neg():
        t = t.resolve_conj().resolve_neg()
    return t.contiguous().flatten().view(torch.uint8).numpy().tobytes() if t.numel() else b""


def _digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()[:8]


def _short_tensor(t: Tensor) -> str:
    if t.layout != torch.strided or t.device.type != "cpu":
        return str(t.device)
    return "{" + ", ".join(f"{value:.6g}" for value in _first(t)) + "}"


def _first(t: Tensor, count: int = 6) -> Iterator[Any]:
    yield from t.flatten()[:count].tolist()


def _short(a: np.ndarray) -> str:
    return "{" + ", ".join(str(value) for value in a.ravel()[:6]) + "}"


def describe(name: str, obj: Any) -> list[str]:
    describer = Describer()
    describer.add(name, obj)
    return describer.lines
