"""All changes of the objects of a program, one thing at a time.

`changes(run)` walks from the names that the program's call uses to all that its code can reach, and yields a `Change` for
each thing that can be made different:

  - the content of a place: a global, a cell, a default, an attribute, an item
  - the object itself: its content, order, class, hooks
  - the torch functions, methods and builtins that the code names

States that belong to no object are in world.py, and the values that are put into a place in values.py.

Laws
  C1  The name of a change is the same in each run of a program, and no two have the same.
  C2  `make` gives what takes the change back. Changes that the program itself made in between stay elsewhere.
  C3  The walk changes nothing.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import functools
import math
import operator
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from same.harness import Run

from .values import changed_code, different, replacements, replacing, subclass_of

Undo = Callable[[], object]
_MISSING = object()
# Namespaces of functions that code names: `F.relu`, `torch.relu`.
_LIBRARIES = {"torch": torch, "F": F, "math": math, "operator": operator, "functools": functools}
# Attributes that define a class itself, and are not a program's own.
_OF_CLASSES = {
    "__module__", "__dict__", "__weakref__", "__doc__", "__qualname__", "__annotations__", "__slots__",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__", "__abstractmethods__", "_abc_impl",
    "__parameters__", "__orig_bases__", "__firstlineno__", "__new__", "__hash__",
}  # fmt: skip
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
_MODULE_TABLES = ("_parameters", "_buffers", "_modules")


@dataclasses.dataclass(frozen=True)
class Change:
    """`make` changes the program and gives what takes that back. A `scope` is entered around each call instead."""

    name: str
    make: Callable[[], Undo] = lambda: lambda: None
    scope: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a value is held, how another is put there, and how it gets the first one back."""

    path: str
    value: Any
    assign: Callable[[Any], object]
    restore: Undo
    remove: Callable[[], object] | None = None


def set_attribute(holder: Any, name: str, value: Any) -> Undo:
    """Sets an attribute, and gives what takes it back: to what the object itself had, or to nothing."""
    before = _own(holder, name)
    setattr(holder, name, value)
    if before is _MISSING:
        return lambda: delattr(holder, name)
    return lambda: setattr(holder, name, before)


def _own(holder: Any, name: str) -> Any:
    """Returns the value that an object itself holds under a name, without the value of its class."""
    if hasattr(type(holder), "__dict__") and name in getattr(holder, "__dict__", {}):
        return vars(holder)[name]
    slot = None if isinstance(holder, type) else getattr(type(holder), name, None)
    if isinstance(slot, types.MemberDescriptorType):
        try:
            return slot.__get__(holder)
        except AttributeError:
            pass
    return _MISSING


def attribute(path: str, holder: Any, name: str) -> Place:
    """An attribute that an object or class itself has. The `__setattr__` of the class is bypassed."""
    value = _own(holder, name)
    base = type if isinstance(holder, type) else object
    put = functools.partial(base.__setattr__, holder, name)
    remove = functools.partial(base.__delattr__, holder, name)
    return Place(f"{path}.{name}", value, put, functools.partial(put, value), remove)


def element(path: str, holder: list[Any] | collections.deque[Any], index: int) -> Place:
    value = holder[index]
    put = functools.partial(operator.setitem, holder, index)
    return Place(f"{path}[{index}]", value, put, lambda: put(value))


def entry(path: str, holder: dict[Any, Any], key: Any) -> Place:
    """A value of a dict, which gets its order back."""
    value, order = holder[key], [*holder]

    def restore() -> None:
        is_new = key not in holder
        holder[key] = value
        if is_new:
            for later in order[order.index(key) + 1 :]:
                if later in holder:
                    holder[later] = holder.pop(later)

    put = functools.partial(operator.setitem, holder, key)
    return Place(path, value, put, restore, lambda: operator.delitem(holder, key))


def at(place: Place) -> Iterator[Change]:
    """Each other value at a place, and none."""

    def changing(act: Callable[[], object]) -> Callable[[], Undo]:
        def make() -> Undo:
            act()
            return place.restore

        return make

    for what, made in replacements(place.value):
        yield Change(f"{place.path} = {what}", changing(lambda made=made: place.assign(made())))
    if place.remove is not None:
        yield Change(f"del {place.path}", changing(place.remove))


def in_deque(path: str, queue: collections.deque[Any]) -> Iterator[Change]:
    def emptied() -> Undo:
        kept = list(queue)
        queue.clear()

        def undo() -> None:
            queue.clear()
            queue.extend(kept)

        return undo

    def rotated() -> Undo:
        queue.rotate(1)
        return lambda: queue.rotate(-1)

    yield Change(f"{path} emptied", emptied)
    yield Change(f"{path} rotated", rotated)


def in_list(path: str, values: list[Any]) -> Iterator[Change]:
    def changing(act: Callable[[], object]) -> Callable[[], Undo]:
        def make() -> Undo:
            before = [*values]
            act()
            return lambda: operator.setitem(values, slice(None), before)

        return make

    last = values[-1] if values else 1
    yield Change(f"{path}.append()", changing(lambda: values.append(last)))
    if values:
        yield Change(f"{path}.clear()", changing(values.clear))
    if len(values) > 1:
        yield Change(f"{path}.reverse()", changing(values.reverse))


def in_dict(path: str, table: dict[Any, Any]) -> Iterator[Change]:
    def changing(act: Callable[[], object]) -> Callable[[], Undo]:
        def make() -> Undo:
            before = {**table}
            act()

            def undo() -> None:
                table.clear()
                table.update(before)

            return undo

        return make

    def reorder() -> None:
        first = next(iter(table))
        table[first] = table.pop(first)

    if all(type(key) is str for key in table):
        value = next(reversed([*table.values()]), 1)
        yield Change(f"{path}: new key", changing(lambda: operator.setitem(table, "extra", value)))
    if len(table) > 1:
        yield Change(f"{path}: other order", changing(reorder))


def in_set(path: str, members: set[Any]) -> Iterator[Change]:
    def changing(act: Callable[[], object]) -> Callable[[], Undo]:
        def make() -> Undo:
            before = {*members}
            act()
            return lambda: (members.clear(), members.update(before))

        return make

    yield Change(f"{path}.add()", changing(lambda: members.add("extra")))
    yield Change(f"{path}.clear()", changing(members.clear))


def in_tensor(path: str, t: Tensor) -> Iterator[Change]:
    data = t.detach()

    def with_data(made: Callable[[], Tensor]) -> Callable[[], Undo]:
        def make() -> Undo:
            before = t.data
            t.data = made()
            return lambda: setattr(t, "data", before)

        return make

    def writing(target: Callable[[], Tensor]) -> Callable[[], Undo]:
        def make() -> Undo:
            before = data.clone()
            target().copy_(different(before))
            return lambda: target().copy_(before)

        return make

    yield Change(f"{path}: written", writing(lambda: data))
    yield Change(f"{path}.data: written", writing(lambda: t.data))
    yield Change(f"{path}.data = copy", with_data(data.clone))
    yield Change(f"{path}.data = dtype", with_data(data.double))
    yield Change(f"{path}.tag = 9", lambda: set_attribute(t, "tag", 9))
    if t.dim():
        yield Change(f"{path}.data = size", with_data(lambda: torch.cat([data, data])))
        yield Change(f"{path}.data = rank", with_data(lambda: data[None].clone()))
    if t.dim() > 1:
        yield Change(f"{path}.data = strides", with_data(lambda: data.mT.contiguous().mT))
    if t.is_leaf and t.is_floating_point():
        yield from _gradient(path, t)


def _gradient(path: str, t: Tensor) -> Iterator[Change]:
    needs = t.requires_grad

    def toggle() -> Undo:
        t.requires_grad_(not needs)
        return lambda: t.requires_grad_(needs)

    def fill() -> Undo:
        before = t.grad
        t.grad = torch.ones_like(t)
        return lambda: setattr(t, "grad", before)

    yield Change(f"{path}: requires_grad", toggle)
    yield Change(f"{path}.grad = ones", fill)
    if needs:
        yield Change(f"{path}: hook", lambda: t.register_hook(lambda g: g * 3).remove)


def in_module(path: str, module: nn.Module) -> Iterator[Change]:
    def toggle(one: nn.Module) -> Callable[[], Undo]:
        def make() -> Undo:
            modes = [(m, m.training) for m in one.modules()]
            one.train(not one.training)
            return lambda: [setattr(m, "training", mode) for m, mode in modes]

        return make

    def cast() -> Undo:
        before = [(t, t.data) for t in [*module.parameters(), *module.buffers()]]
        module.double()
        return lambda: [setattr(t, "data", data) for t, data in before]

    hooks: list[tuple[str, Callable[[], Any]]] = [
        ("forward_pre_hook", lambda: module.register_forward_pre_hook(_before)),
        ("forward_hook", lambda: module.register_forward_hook(_after)),
        ("forward_hook that gives nothing", lambda: module.register_forward_hook(_nothing)),
        (
            "forward_hook with kwargs",
            lambda: module.register_forward_hook(_with_kwargs, with_kwargs=True),
        ),
        (
            "forward_hook always called",
            lambda: module.register_forward_hook(_after, always_call=True),
        ),
        ("full_backward_hook", lambda: module.register_full_backward_hook(_backward)),
        ("full_backward_pre_hook", lambda: module.register_full_backward_pre_hook(_backward_pre)),
    ]
    for name, register in hooks:
        yield Change(f"{path}: {name}", lambda register=register: register().remove)
    yield Change(f"{path}: train or eval", toggle(module))
    yield Change(f"{path}.double()", cast)
    for table in _MODULE_TABLES:
        held = vars(module)[table]
        yield from in_dict(f"{path}.{table}", held)
        yield Change(
            f"{path}.{table} = copy",
            lambda table=table, held=held: set_entry(vars(module), table, {**held}),
        )
    for name, parameter in vars(module)["_parameters"].items():
        if parameter is not None:
            yield Change(f"{path}.{name} as a buffer", functools.partial(_to_buffer, module, name))
            yield Change(
                f"{path}.{name} as an attribute", functools.partial(_to_attribute, module, name)
            )
    yield Change(
        f"{path}.forward = other",
        lambda: set_attribute(module, "forward", replacing(module.forward)),
    )


def set_entry(table: dict[str, Any], key: str, value: Any) -> Undo:
    before = table[key]
    table[key] = value
    return lambda: operator.setitem(table, key, before)


def _before(module: nn.Module, args: tuple[Any, ...]) -> Any:
    del module
    return tuple(different(arg) for arg in args)


def _after(module: nn.Module, args: tuple[Any, ...], out: Any) -> Any:
    del module, args
    return different(out)


def _nothing(module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
    pass


def _with_kwargs(module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
    del module, args, kwargs
    return different(out)


def _backward(module: nn.Module, into: Any, out: Any) -> None:
    pass


def _backward_pre(module: nn.Module, out: Any) -> None:
    pass


def _to_buffer(module: nn.Module, name: str) -> Undo:
    tables = vars(module)
    before = tables["_parameters"].pop(name)
    tables["_buffers"][name] = before.detach().clone()

    def undo() -> None:
        del tables["_buffers"][name]
        tables["_parameters"][name] = before

    return undo


def _to_attribute(module: nn.Module, name: str) -> Undo:
    tables = vars(module)
    before = tables["_parameters"][name]
    tables[name] = different(before.detach())
    return lambda: operator.delitem(tables, name)


def of_class(path: str, cls: type) -> Iterator[Change]:
    """Names that are added to a class of the program. Names that it has are changed at their places."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return different(kept_call(self, *args, **kwargs))

    def get(self: Any, name: str) -> Any:
        return different(object.__getattribute__(self, name))

    def put(self: Any, name: str, value: Any) -> None:
        kept_put(self, name, different(value))

    kept_call = next((vars(b)["__call__"] for b in cls.__mro__ if "__call__" in vars(b)), _first)
    kept_put = cls.__setattr__
    added: dict[str, Any] = {
        "__getattr__": lambda _, name: 5 if not name.startswith("__") else _no(name),
        "__getattribute__": get,
        "__setattr__": put,
        "__call__": call,
        "__bool__": lambda _: False,
        "__len__": lambda _: 0,
        "__eq__": lambda _, __: True,
        "__ne__": lambda _, __: False,
        "__contains__": lambda _, __: True,
        "__add__": lambda _, __: 7,
        "__iter__": lambda _: iter([1.0]),
    }
    for name, value in added.items():
        if name not in vars(cls):
            yield Change(f"{path}.{name} added", lambda n=name, v=value: set_attribute(cls, n, v))
    inherited = {
        name: value
        for base in reversed(cls.__mro__[1:])
        if base.__module__ in (cls.__module__, "torch.nn.modules.linear")
        for name, value in vars(base).items()
    }
    for name, value in inherited.items():
        if name not in _OF_CLASSES and name not in vars(cls):
            for what, made in replacements(value):
                yield Change(
                    f"{path}.{name} over its base's = {what}",
                    lambda n=name, m=made: set_attribute(cls, n, m()),
                )
    if cls.__base__.__flags__ & _HEAP_TYPE and not isinstance(cls, enum.EnumMeta):
        yield Change(f"{path}.__bases__", functools.partial(_new_base, cls))


def _first(_: Any, x: Any = None, *__: Any) -> Any:
    return x


def _no(name: str) -> Any:
    raise AttributeError(name)


def _overriding(cls: type) -> dict[str, Any]:
    """Other methods for all that a class and its bases define, up to the bases of torch and Python."""
    methods: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            is_program = base.__module__ == "program" and not name.startswith("__")
            if isinstance(value, types.FunctionType) and (is_program or name == "forward"):
                methods[name] = replacing(value)
    return methods


def _new_base(cls: type) -> Undo:
    before = cls.__bases__
    base = subclass_of(before[0], _overriding(before[0]))
    cls.__bases__ = (base, *before[1:])
    return lambda: setattr(cls, "__bases__", before)


def _new_class(obj: Any, methods: dict[str, Any]) -> Undo:
    before = type(obj)
    object.__setattr__(obj, "__class__", subclass_of(before, methods))
    return lambda: object.__setattr__(obj, "__class__", before)


def in_object(path: str, obj: Any) -> Iterator[Change]:
    """The ways to change an instance: another class, or attributes that hide the attributes of its class."""
    cls = type(obj)
    if isinstance(cls, enum.EnumMeta):
        return
    yield Change(f"{path}.__class__ = same", lambda: _new_class(obj, {}))
    yield Change(f"{path}.__class__ = other", lambda: _new_class(obj, _overriding(cls)))
    if not hasattr(obj, "__dict__"):
        return
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if base.__module__ != "program" or name in _OF_CLASSES or name in vars(obj):
                continue
            if isinstance(value, types.FunctionType):
                shadow = replacing(getattr(obj, name)) if not name.startswith("__") else value
            else:
                shadow = 6
            yield Change(
                f"{path}.{name} over {base.__name__}'s",
                lambda n=name, s=shadow: set_entry_of(vars(obj), n, s),
            )


def set_entry_of(table: dict[str, Any], key: str, value: Any) -> Undo:
    table[key] = value
    return lambda: table.pop(key)


def in_function(path: str, function: types.FunctionType) -> Iterator[Change]:
    yield from at_attribute(path, function, "__code__", lambda: changed_code(function))
    if function.__defaults__:
        place = Place(
            f"{path}.__defaults__",
            function.__defaults__,
            lambda v: setattr(function, "__defaults__", v if v is None else tuple(v)),
            functools.partial(setattr, function, "__defaults__", function.__defaults__),
        )
        yield from at(place)
    if function.__kwdefaults__:
        yield from in_dict(f"{path}.__kwdefaults__", function.__kwdefaults__)
        yield from at_attribute(path, function, "__kwdefaults__", lambda: None)


def at_attribute(path: str, holder: Any, name: str, made: Callable[[], Any]) -> Iterator[Change]:
    before = getattr(holder, name)

    def make() -> Undo:
        setattr(holder, name, made())
        return lambda: setattr(holder, name, before)

    yield Change(f"{path}.{name}", make)


class _Walk:
    """Visits each object once, and yields the changes of it and of its places."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._names = run.names
        self._own = run.own_names()
        self._seen: dict[int, Any] = {}
        self._named: set[str] = set()

    def roots(self, code: types.CodeType) -> Iterator[Change]:
        for name in code.co_names:
            yield from self._name(name)
        for name in sorted(self._named):
            yield from _of_libraries(name)
            yield from self._of_builtins(name)
        tensors = [n for n in sorted(self._own) if isinstance(self._names.get(n), Tensor)]
        for one in tensors:
            for other in tensors:
                if one != other:
                    yield from self._aliases(one, other)

    def _aliases(self, one: str, other: str) -> Iterator[Change]:
        a, b = self._names[one], self._names[other]
        place = entry(one, self._names, one)

        def put(made: Callable[[], Any]) -> Callable[[], Undo]:
            def make() -> Undo:
                place.assign(made())
                return place.restore

            return make

        yield Change(f"{one} = {other}", put(lambda: b))
        if a.shape == b.shape:
            yield Change(f"{one} = view of {other}", put(lambda: b.view_as(b)))
            yield Change(f"{one} = {other} detached", put(lambda: b.detach()))

    def _name(self, name: str) -> Iterator[Change]:
        """A global name that some code uses."""
        if name in self._named:
            return
        self._named.add(name)
        if name not in self._own or name not in self._names:
            return
        place = entry(name, self._names, name)
        if not any(place.value is captured for captured in self._run.captured):
            yield from at(place)
        yield from self.visit(name, self._run.original(place.value))

    def visit(self, path: str, obj: Any) -> Iterator[Change]:
        if isinstance(obj, (type(None), bool, int, float, str, types.ModuleType)):
            return
        if id(obj) in self._seen:
            return
        self._seen[id(obj)] = obj
        if isinstance(obj, Tensor):
            yield from in_tensor(path, obj)
            yield from self._vars(path, obj)
        elif isinstance(obj, types.FunctionType):
            yield from self._function(path, obj)
        elif isinstance(obj, types.MethodType):
            yield from self.visit(f"{path}.__func__", obj.__func__)
            yield from self.visit(f"{path}.__self__", obj.__self__)
        elif isinstance(obj, type):
            yield from self._class(path, obj)
        elif isinstance(obj, (staticmethod, classmethod)):
            yield from self.visit(path, obj.__func__)
        elif isinstance(obj, property):
            yield from self.visit(f"{path}.fget", obj.fget)
        elif isinstance(obj, functools.partial):
            yield from self.visit(f"{path}.func", obj.func)
        elif isinstance(obj, functools._lru_cache_wrapper):
            yield from self.visit(f"{path}.__wrapped__", obj.__wrapped__)
        elif isinstance(obj, tuple):
            for i, item in enumerate(obj):
                yield from self.visit(f"{path}[{i}]", item)
        elif isinstance(obj, list):
            yield from in_list(path, obj)
            for i in range(len(obj)):
                yield from self._place(element(path, obj, i))
        elif isinstance(obj, collections.deque):
            yield from in_deque(path, obj)
            for i in range(len(obj)):
                yield from self._place(element(path, obj, i))
        elif isinstance(obj, dict):
            yield from in_dict(path, obj)
            for key in [*obj]:
                yield from self._place(entry(f"{path}[{_short(key)}]", obj, key))
        elif isinstance(obj, set):
            yield from in_set(path, obj)
        else:
            yield from self._object(path, obj)

    def _place(self, place: Place) -> Iterator[Change]:
        yield from at(place)
        yield from self.visit(place.path, place.value)

    def _function(self, path: str, function: types.FunctionType) -> Iterator[Change]:
        if function.__module__ not in ("program", "contextlib"):
            return
        yield from in_function(path, function)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            value = cell.cell_contents
            put = functools.partial(setattr, cell, "cell_contents")
            yield from self._place(
                Place(
                    f"{path}.<{name}>",
                    value,
                    put,
                    functools.partial(put, value),
                    functools.partial(delattr, cell, "cell_contents"),
                )
            )
        yield from self.visit(f"{path}.__defaults__", function.__defaults__)
        for key in function.__kwdefaults__ or ():
            yield from self._place(
                entry(f"{path}.__kwdefaults__[{key}]", function.__kwdefaults__, key)
            )
        yield from self._vars(path, function)
        yield from self._code(function.__code__)

    def _code(self, code: types.CodeType) -> Iterator[Change]:
        for name in code.co_names:
            yield from self._name(name)
        for const in code.co_consts:
            if isinstance(const, types.CodeType):
                yield from self._code(const)

    def _vars(self, path: str, obj: Any) -> Iterator[Change]:
        for name in [*getattr(obj, "__dict__", {})]:
            yield from self._place(attribute(path, obj, name))

    def _object(self, path: str, obj: Any) -> Iterator[Change]:
        cls = type(obj)
        if isinstance(obj, nn.Module):
            yield from self._module(path, obj)
        elif cls.__module__ != "program":
            return
        else:
            yield from self._vars(path, obj)
            for name, slot in vars(cls).items():
                if isinstance(slot, types.MemberDescriptorType):
                    yield from self._place(attribute(path, obj, name))
        yield from in_object(path, obj)
        yield from self.visit(cls.__name__, cls)

    def _module(self, path: str, module: nn.Module) -> Iterator[Change]:
        yield from in_module(path, module)
        for table in _MODULE_TABLES:
            held = vars(module)[table]
            for name in [*held]:
                yield from self._place(entry(f"{path}.{name}", held, name))
        for name in [*vars(module)]:
            if not name.startswith("_"):
                yield from self._place(attribute(path, module, name))
            elif name.endswith("_hooks") and vars(module)[name]:
                for i, key in enumerate([*vars(module)[name]]):
                    yield from self._place(entry(f"{path}.{name}[{i}th]", vars(module)[name], key))

    def _class(self, path: str, cls: type) -> Iterator[Change]:
        if cls.__module__ != "program":
            forward = vars(cls).get("forward")
            if isinstance(forward, types.FunctionType) and issubclass(cls, nn.Module):
                yield from at(attribute(path, cls, "forward"))
                yield from self._code(forward.__code__)
            return
        yield from of_class(path, cls)
        for name in [*vars(cls)]:
            if name not in _OF_CLASSES and not isinstance(
                vars(cls)[name], types.MemberDescriptorType
            ):
                yield from self._place(attribute(path, cls, name))
        for base in cls.__mro__[1:]:
            yield from self.visit(base.__name__, base)
        yield from self.visit(type(cls).__name__, type(cls))

    def _of_builtins(self, name: str) -> Iterator[Change]:
        if name in self._names or not hasattr(builtins, name) or name.startswith("__"):
            return
        function = getattr(builtins, name)

        def shadow() -> Undo:
            self._names[name] = replacing(function)
            return lambda: operator.delitem(self._names, name)

        yield Change(f"{name} as a global", shadow)
        if isinstance(function, types.BuiltinFunctionType):
            yield Change(
                f"builtins.{name}",
                lambda: set_attribute(builtins, name, _for_the_program(function)),
            )


def _of_libraries(name: str) -> Iterator[Change]:
    for library, namespace in _LIBRARIES.items():
        function = vars(namespace).get(name)
        if isinstance(function, (types.FunctionType, types.BuiltinFunctionType)):
            yield Change(
                f"{library}.{name} replaced",
                lambda n=namespace, f=function: set_attribute(n, name, replacing(f)),
            )
    method = getattr(Tensor, name, None)
    if isinstance(method, (types.FunctionType, types.MethodDescriptorType)):
        yield Change(
            f"Tensor.{name} replaced", lambda: set_attribute(Tensor, name, replacing(method))
        )


def _for_the_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Another builtin function, for those who call it from the program."""

    def replaced(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        is_program = sys._getframe(1).f_globals.get("__name__") == "program"
        return different(result) if is_program else result

    return replaced


def _short(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int)) else type(key).__name__


def changes(run: Run, call: types.CodeType) -> Iterator[Change]:
    """All changes of the objects that `call`, a statement of the program, can reach."""
    yield from _Walk(run).roots(call)
