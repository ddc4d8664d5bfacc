"""A type, a callable or a module is known by its identity, and by none of its attributes.

User classes and functions get the names (`__name__`, `__qualname__`, `__module__`) of objects in builtins, in torch and in
the standard library. A recording and two replays give the results of plain Python.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import frametap

CALLS = 3

NAMES = [
    *("zip", "map", "filter", "enumerate", "range", "reversed", "list_iterator", "tuple_iterator"),
    *(
        "dict_keyiterator",
        "list",
        "dict",
        "set",
        "tuple",
        "frozenset",
        "str",
        "int",
        "float",
        "bool",
    ),
    *("property", "classmethod", "staticmethod", "super", "type", "object", "slice", "NoneType"),
    *("OrderedDict", "defaultdict", "deque", "Counter", "namedtuple", "partial", "_lru_list_elem"),
    *("itemgetter", "attrgetter", "methodcaller", "chain", "count", "repeat", "islice"),
    *("Tensor", "Parameter", "Buffer", "Module", "Linear", "Size", "device", "dtype", "Generator"),
    *("UnionType", "GenericAlias", "lock", "RLock", "_local", "ContextVar", "Enum", "Signature"),
    *(
        "pybind11_detail_function_record_v1",
        "ndarray",
        "ufunc",
        "TextIOWrapper",
        "BytesIO",
        "Random",
    ),
    *("builtin_function_or_method", "method", "function", "generator", "cell", "module"),
]
MODULES = {
    "OrderedDict": "collections",
    "defaultdict": "collections",
    "deque": "collections",
    "Counter": "collections",
    "partial": "functools",
    "_lru_list_elem": "functools",
    "itemgetter": "operator",
    "attrgetter": "operator",
    "methodcaller": "operator",
    "chain": "itertools",
    "count": "itertools",
    "repeat": "itertools",
    "islice": "itertools",
    "Tensor": "torch",
    "Size": "torch",
    "device": "torch",
    "dtype": "torch",
    "Generator": "torch",
    "Parameter": "torch.nn.parameter",
    "Buffer": "torch.nn.parameter",
    "Module": "torch.nn.modules.module",
    "Linear": "torch.nn.modules.linear",
    "UnionType": "types",
    "GenericAlias": "types",
    "lock": "_thread",
    "RLock": "_thread",
    "_local": "_thread",
    "ContextVar": "_contextvars",
    "Enum": "enum",
    "Signature": "inspect",
    "pybind11_detail_function_record_v1": "pybind11_builtins",
    "ndarray": "numpy",
    "ufunc": "numpy",
    "TextIOWrapper": "_io",
    "BytesIO": "_io",
    "Random": "random",
}
FUNCTIONS = [
    *("print", "input", "open", "len", "isinstance", "getattr", "hasattr", "setattr", "id", "iter"),
    *(
        "next",
        "sorted",
        "hash",
        "__import__",
        "__del__",
        "__init__",
        "__new__",
        "__call__",
        "pack_hook",
    ),
    *("cos", "relu", "manual_seed", "set_grad_enabled", "reduce", "lru_cache", "wraps", "forward"),
    *(
        "_call_impl",
        "_wrapped_call_impl",
        "register_hook",
        "numpy",
        "from_numpy",
        "item",
        "backward",
    ),
]
FUNCTION_MODULES = [
    "builtins",
    "torch",
    "torch._C",
    "torch.nn.functional",
    "torch.utils.checkpoint",
    "numpy",
    "abc",
]

BODIES: dict[str, tuple[type, ...]] = {
    "object": (),
    "dict": (dict,),
    "list": (list,),
    "tuple": (tuple,),
}


def make_class(name: str, bases: tuple[type, ...], module: str) -> type:
    calls: list[str] = []

    def init(self: Any, *args: Any) -> None:
        calls.append("init")
        if not bases:
            self.args = args

    def reduce(self: Any) -> Any:
        calls.append("reduce")
        return (list, ())

    def setstate(self: Any, state: Any) -> None:
        calls.append("setstate")

    def iterate(self: Any) -> Any:
        calls.append("iter")
        return iter([1, 2])

    def call(self: Any, x: Any) -> Any:
        calls.append("call")
        return x * 3

    body = {
        "__init__": init,
        "__reduce__": reduce,
        "__setstate__": setstate,
        "__call__": call,
        "__module__": module,
        "__qualname__": name,
        "calls": calls,
    }
    if not bases:
        body["__iter__"] = iterate
    return type(name, bases, body)


def content(value: Any) -> Any:
    for base in (dict, list, tuple):
        if type(value) is not base and isinstance(value, base):
            return [type(value).__name__, base(value), vars(value)]
    return [type(value).__name__, vars(value)]


def make_and_change(x: torch.Tensor, cls: Any, arguments: Any) -> Any:
    made = cls(*arguments)
    made.tag = "t"
    made.tensor = x + 1
    return made, [made], {"k": made}, made(x), isinstance(made, cls), type(made) is cls


def use_given(x: torch.Tensor, given: Any) -> Any:
    given.seen = x.shape[0]
    return given(x), given.tag, [i for i in given], bool(given), given is None, callable(given)


def outcome(f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*args)
    except Exception as error:  # noqa: BLE001  whatever the program raises is its result
        return type(error).__name__, str(error)


def described(result: Any, cls: type) -> Any:
    if isinstance(result, torch.Tensor):
        return result.tolist()
    if isinstance(result, cls):
        return [described(part, cls) for part in content(result)]
    if isinstance(result, dict):
        return {key: described(value, cls) for key, value in result.items()}
    if isinstance(result, (list, tuple)):
        return [described(part, cls) for part in result]
    return result


@pytest.mark.parametrize("base", BODIES)
@pytest.mark.parametrize("name", NAMES)
def test_class(name: str, base: str) -> None:
    """Instances made by the function, and given to it, under the name and module of a type that is known."""
    for module in {MODULES.get(name, "builtins"), "__main__"}:
        runs = []
        for capture in (lambda f: f, frametap.compile):
            # A function of its own for each: what was captured of one does not fit the other's class.
            make = capture(types.FunctionType(make_and_change.__code__, globals(), "make"))
            use = capture(types.FunctionType(use_given.__code__, globals(), "use"))
            cls: Any = make_class(name, BODIES[base], module)
            given = cls(*([[1, 2]] if base == "tuple" else []))
            given.tag = 5
            arguments = {"object": (1, "a"), "dict": (), "list": (), "tuple": ((1, 2),)}[base]
            rows = []
            for n in range(1, CALLS + 1):
                made = outcome(make, torch.ones(2), cls, arguments)
                used = outcome(use, torch.ones(2 if n < CALLS else 3), given)
                rows.append(
                    (described(made, cls), described(used, cls), content(given), list(cls.calls))
                )
            runs.append(rows)
        assert runs[0] == runs[1]


def helper(x: torch.Tensor, n: int) -> Any:
    return x * n, n + 1


def call_helper(x: torch.Tensor, g: Any) -> Any:
    first, n = g(x, 2)
    return (
        first,
        n,
        g(x, n)[1],
        g.__name__,
        [g(x, i)[1] for i in range(2)],
        next(map(g, [x], [3]))[1],
    )


@pytest.mark.parametrize("module", FUNCTION_MODULES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str, module: str) -> None:
    """A function of Python code under the name of one that is known, and an object with a `__name__`."""
    runs = []
    for capture in (lambda f: f, frametap.compile):
        g = types.FunctionType(helper.__code__, globals(), name)
        g.__qualname__ = f"{name}"
        g.__module__ = module
        f = capture(types.FunctionType(call_helper.__code__, globals(), "f"))
        runs.append(
            [described(outcome(f, torch.ones(2), g), types.FunctionType) for _ in range(CALLS)]
        )
    assert runs[0] == runs[1]
    captured = types.FunctionType(helper.__code__, globals(), name)
    captured.__module__ = module
    compiled = frametap.compile(captured)
    for _ in range(CALLS):
        assert described(compiled(torch.ones(2), 2), type) == [[2.0, 2.0], 3]


@pytest.mark.parametrize(
    "name", ["torch", "torch.utils.checkpoint", "torch.nn.modules.module", "abc", "numpy", "time"]
)
def test_module(name: str) -> None:
    """Code of a module that says it is another, and a file that says the same."""
    source = "LOG = []\nclass C:\n    def __init__(self, n):\n        LOG.append(n)\n        self.n = n\n"
    source += "def f(x, n):\n    c = C(n)\n    LOG.append(c.n)\n    return x * c.n, c, time()\ndef time():\n    return 4\n"
    runs = []
    for capture in (lambda f: f, frametap.compile):
        module = types.ModuleType(name)
        exec(  # noqa: S102
            compile(source, f"/site-packages/{name.replace('.', '/')}.py", "exec"), module.__dict__
        )
        f = capture(module.f)
        rows = []
        for n in (2, 2, 3):
            result = f(torch.ones(2), n)
            rows.append((result[0].tolist(), vars(result[1]), result[2], list(module.LOG)))
        runs.append(rows)
    assert runs[0] == runs[1]


def test_a_finaliser_is_what_its_class_says() -> None:
    """Not what it is called: `__del__` is found in the class, and a function of that name is a function."""
    log: list[str] = []

    def finish(self: Any) -> None:
        log.append("end " + self.tag)

    class Ends:
        def __init__(self, tag: str) -> None:
            self.tag = tag

    Ends.__del__ = finish  # type: ignore[attr-defined]

    def __del__(x: torch.Tensor) -> torch.Tensor:
        log.append("called")
        return x * 2

    def f(x: torch.Tensor, held: list[Any]) -> torch.Tensor:
        y = __del__(x)
        held.pop()
        log.append("after")
        return y + __del__(y)

    runs = []
    for capture in (lambda g: g, frametap.compile):
        run = capture(types.FunctionType(f.__code__, globals(), "f", None, f.__closure__))
        rows = []
        for _ in range(CALLS):
            log.clear()
            result = run(torch.ones(2), [Ends("a")])
            rows.append((result.tolist(), list(log)))
        runs.append(rows)
    assert runs[0] == runs[1]
