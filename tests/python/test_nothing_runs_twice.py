"""Special methods run as often, and in the order, as in plain Python: once where Python runs them once, never where it does not.

The classes below write each call of a special method to a log. Each operation runs in plain Python and captured, on
equal arguments, three times: a recording and two replays. Logs and results are compared after each call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import frametap

LOG: list[str] = []
CALLS = 3


def note(name: str) -> None:
    LOG.append(name)


BINARY = [
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor"),
    *("lshift", "rshift", "divmod"),
]
COMPARISONS = ["eq", "ne", "lt", "le", "gt", "ge"]

METHODS = {
    **{f"__{name}__": "self, other: ('" + name + "', self.tag)" for name in BINARY},
    **{f"__r{name}__": "self, other: ('r" + name + "', self.tag)" for name in BINARY},
    **{f"__i{name}__": "self, other: self" for name in BINARY if name != "divmod"},
    "__eq__": "self, other: self.tag == getattr(other, 'tag', other)",
    "__ne__": "self, other: self.tag != getattr(other, 'tag', other)",
    "__lt__": "self, other: self.tag < other.tag",
    "__le__": "self, other: self.tag <= other.tag",
    "__gt__": "self, other: self.tag > other.tag",
    "__ge__": "self, other: self.tag >= other.tag",
    "__hash__": "self: 7",
    "__bool__": "self: self.tag != 'b'",
    "__len__": "self: 3",
    "__length_hint__": "self: 3",
    "__iter__": "self: iter([1, 2, 3])",
    "__reversed__": "self: iter([3, 2, 1])",
    "__contains__": "self, item: item == 2",
    "__getitem__": "self, key: ('item', key)",
    "__setitem__": "self, key, value: None",
    "__delitem__": "self, key: None",
    "__index__": "self: 1",
    "__int__": "self: 5",
    "__float__": "self: 2.5",
    "__complex__": "self: 1j",
    "__neg__": "self: ('neg', self.tag)",
    "__pos__": "self: ('pos', self.tag)",
    "__abs__": "self: ('abs', self.tag)",
    "__invert__": "self: ('invert', self.tag)",
    "__round__": "self, n=None: ('round', n)",
    "__trunc__": "self: 4",
    "__floor__": "self: 4",
    "__ceil__": "self: 4",
    "__repr__": "self: 'repr of ' + self.tag",
    "__str__": "self: 'str of ' + self.tag",
    "__format__": "self, spec: 'format of ' + self.tag + spec",
    "__bytes__": "self: b'bytes'",
    "__enter__": "self: self",
    "__exit__": "self, *error: None",
    "__call__": "self, *args, **kwargs: ('called', args, kwargs)",
}


def methods(names: dict[str, str]) -> str:
    lines = []
    for name, text in names.items():
        head, body = text.split(": ", 1)
        lines.append(f"    def {name}({head}):\n        note('{name}')\n        return {body}\n")
    return "".join(lines)


CLASSES = f"""
class Noisy:
    def __init__(self, tag):
        self.tag = tag
{methods(METHODS)}

class Key:
    def __init__(self, tag, hashed=7):
        self.tag = tag
        self.hashed = hashed
    def __eq__(self, other):
        note("key eq " + str(self.tag))
        return isinstance(other, Key) and self.tag == other.tag
    def __hash__(self):
        note("key hash " + str(self.tag))
        return self.hashed

class Attributes:
    kind = "class"
    def __init__(self, tag):
        object.__setattr__(self, "tag", tag)
    def __getattribute__(self, name):
        note("getattribute " + name)
        return object.__getattribute__(self, name)
    def __getattr__(self, name):
        note("getattr " + name)
        if name == "missing":
            raise AttributeError(name)
        return "got " + name
    def __setattr__(self, name, value):
        note("setattr " + name)
        object.__setattr__(self, name, value)
    def __delattr__(self, name):
        note("delattr " + name)
        object.__delattr__(self, name)
    def method(self):
        note("method")
        return 1

class Fallback:
    def __getattr__(self, name):
        note("fallback " + name)
        if name.startswith("_") or name == "missing":
            raise AttributeError(name)
        return "got " + name

class Descriptor:
    def __set_name__(self, owner, name):
        note("set_name " + name)
        self.name = name
    def __get__(self, owner, kind):
        note("get " + self.name)
        return 1 if owner is None else owner.__dict__.get(self.name, 0)
    def __set__(self, owner, value):
        note("set " + self.name)
        owner.__dict__[self.name] = value
    def __delete__(self, owner):
        note("delete " + self.name)
        owner.__dict__.pop(self.name)

class OnlyGet:
    def __get__(self, owner, kind):
        note("only get")
        return 5

class Described:
    field = Descriptor()
    other = Descriptor()
    only = OnlyGet()
    @property
    def square(self):
        note("property")
        return 9
    @square.setter
    def square(self, value):
        note("property set")
    @classmethod
    def make(cls):
        note("classmethod")
        return cls()
    @staticmethod
    def static():
        note("static")
        return 3

class Meta(type):
    def __call__(cls, *args):
        note("meta call")
        return super().__call__(*args)
    def __getattr__(cls, name):
        note("meta getattr " + name)
        if name.startswith("_"):
            raise AttributeError(name)
        return "meta " + name
    def __instancecheck__(cls, item):
        note("instancecheck")
        return item == 3
    def __subclasscheck__(cls, other):
        note("subclasscheck")
        return other is int
    def __len__(cls):
        note("meta len")
        return 2
    def __iter__(cls):
        note("meta iter")
        return iter((1, 2))
    def __contains__(cls, item):
        note("meta contains")
        return item == 1
    def __getitem__(cls, item):
        note("meta getitem")
        return item
    def __bool__(cls):
        note("meta bool")
        return True
    def __eq__(cls, other):
        note("meta eq")
        return cls is other
    def __hash__(cls):
        note("meta hash")
        return 5
    def __repr__(cls):
        note("meta repr")
        return "class"

class OfMeta(metaclass=Meta):
    def __init__(self, *args):
        note("init")
        self.args = args
    def __new__(cls, *args):
        note("new")
        return super().__new__(cls)
    def __class_getitem__(cls, item):
        note("class_getitem")
        return item

class Generic:
    def __class_getitem__(cls, item):
        note("class_getitem")
        return item

class Missing(dict):
    def __missing__(self, key):
        note("missing")
        return key
    def __getitem__(self, key):
        note("dict getitem")
        return super().__getitem__(key)
    def __setitem__(self, key, value):
        note("dict setitem")
        super().__setitem__(key, value)
    def __contains__(self, key):
        note("dict contains")
        return super().__contains__(key)
    def __iter__(self):
        note("dict iter")
        return super().__iter__()
    def __len__(self):
        note("dict len")
        return super().__len__()
    def __eq__(self, other):
        note("dict eq")
        return super().__eq__(other)
    def keys(self):
        note("dict keys")
        return super().keys()
    def get(self, key, default=None):
        note("dict get")
        return super().get(key, default)

class Row(list):
    def __iter__(self):
        note("list iter")
        return super().__iter__()
    def __len__(self):
        note("list len")
        return super().__len__()
    def __getitem__(self, key):
        note("list getitem")
        return super().__getitem__(key)
    def __eq__(self, other):
        note("list eq")
        return super().__eq__(other)
    def __contains__(self, item):
        note("list contains")
        return super().__contains__(item)
    def append(self, item):
        note("list append")
        super().append(item)

class Pair(tuple):
    def __new__(cls, *items):
        note("tuple new")
        return super().__new__(cls, items)
    def __iter__(self):
        note("tuple iter")
        return super().__iter__()
    def __len__(self):
        note("tuple len")
        return super().__len__()
    def __getitem__(self, key):
        note("tuple getitem")
        return super().__getitem__(key)
    def __eq__(self, other):
        note("tuple eq")
        return super().__eq__(other)
    def __hash__(self):
        note("tuple hash")
        return super().__hash__()

class Word(str):
    def __eq__(self, other):
        note("str eq")
        return super().__eq__(other)
    def __hash__(self):
        note("str hash")
        return super().__hash__()
    def __str__(self):
        note("str str")
        return "word"
    def __format__(self, spec):
        note("str format")
        return "formatted"
    def __len__(self):
        note("str len")
        return 2
    def __add__(self, other):
        note("str add")
        return "sum"
    def __radd__(self, other):
        note("str radd")
        return "rsum"

class Number(int):
    def __eq__(self, other):
        note("int eq")
        return super().__eq__(other)
    def __hash__(self):
        note("int hash")
        return super().__hash__()
    def __add__(self, other):
        note("int add")
        return super().__add__(other)
    def __radd__(self, other):
        note("int radd")
        return super().__radd__(other)
    def __lt__(self, other):
        note("int lt")
        return super().__lt__(other)
    def __bool__(self):
        note("int bool")
        return super().__bool__()
    def __index__(self):
        note("int index")
        return super().__index__()
    def __int__(self):
        note("int int")
        return super().__int__()

class Real(float):
    def __eq__(self, other):
        note("float eq")
        return super().__eq__(other)
    def __hash__(self):
        note("float hash")
        return super().__hash__()
    def __float__(self):
        note("float float")
        return 1.25
    def __mul__(self, other):
        note("float mul")
        return super().__mul__(other)
    def __rmul__(self, other):
        note("float rmul")
        return super().__rmul__(other)

class Steps:
    def __init__(self, n):
        self.n = n
    def __iter__(self):
        note("steps iter")
        return self
    def __next__(self):
        note("steps next")
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n

class Slots:
    __slots__ = ("tag", "other")
    def __init__(self, tag):
        self.tag = tag
    def __setattr__(self, name, value):
        note("slots setattr " + name)
        object.__setattr__(self, name, value)
    def __getattribute__(self, name):
        note("slots getattribute " + name)
        return object.__getattribute__(self, name)

class Copied:
    def __init__(self, tag):
        self.tag = tag
    def __copy__(self):
        note("copy")
        return Copied(self.tag)
    def __deepcopy__(self, memo):
        note("deepcopy")
        return Copied(self.tag)

class Reduced:
    def __init__(self, tag):
        self.tag = tag
    def __reduce__(self):
        note("reduce")
        return Reduced, (self.tag,)
    def __reduce_ex__(self, protocol):
        note("reduce_ex")
        return Reduced, (self.tag,)
    def __getstate__(self):
        note("getstate")
        return dict(self.__dict__)
    def __setstate__(self, state):
        note("setstate")
        self.__dict__.update(state)
    def __getnewargs__(self):
        note("getnewargs")
        return ()

class Ends:
    def __init__(self, tag):
        self.tag = tag
    def __del__(self):
        note("del")

class Base:
    def __init_subclass__(cls, **kwargs):
        note("init_subclass")

class Making(type):
    @classmethod
    def __prepare__(meta, name, bases):
        note("prepare")
        return {{}}
    def mro(cls):
        note("mro")
        return super().mro()
    def __new__(meta, name, bases, body):
        note("meta new")
        return super().__new__(meta, name, bases, body)
    def __init__(cls, name, bases, body):
        note("meta init")

class Claims:
    @property
    def __class__(self):
        note("class asked")
        return int
"""

# Each operation: what makes its arguments, and its code. `r` is the result.
NOISY = "Noisy('a'), Noisy('b')"
OPERATIONS: dict[str, tuple[str, str]] = {
    **{
        f"{kind} {symbol}": (arguments, f"r = a {symbol} b")
        for symbol in ["+", "-", "*", "/", "//", "%", "**", "@", "&", "|", "^", "<<", ">>"]
        for kind, arguments in [
            ("noisy", NOISY),
            ("left", "Noisy('a'), 3"),
            ("right", "3, Noisy('b')"),
        ]
    },
    **{
        f"in place {symbol}": (NOISY, f"a {symbol} b\nr = a")
        for symbol in [
            "+=",
            "-=",
            "*=",
            "/=",
            "//=",
            "%=",
            "**=",
            "@=",
            "&=",
            "|=",
            "^=",
            "<<=",
            ">>=",
        ]
    },
    **{
        f"{kind} {symbol}": (arguments, f"r = a {symbol} b")
        for symbol in ["==", "!=", "<", "<=", ">", ">="]
        for kind, arguments in [
            ("noisy", NOISY),
            ("words", "Word('a'), Word('b')"),
            ("numbers", "Number(1), Number(2)"),
        ]
    },
    **{
        f"noisy {name}": (NOISY, f"r = {code}")
        for name, code in {
            "neg": "-a",
            "pos": "+a",
            "abs": "abs(a)",
            "invert": "~a",
            "not": "not a, not b",
            "truth": "1 if a else 2",
            "and or": "(a and b) is b, (b or a) is a",
            "bool": "bool(a), bool(b)",
            "len": "len(a)",
            "iter": "list(a)",
            "tuple": "tuple(a)",
            "set": "set(a)",
            "reversed": "list(reversed(a))",
            "in": "2 in a, 9 in a",
            "item": "a[1], a['k'], a[1:2]",
            "int": "int(a)",
            "float": "float(a)",
            "complex": "complex(a)",
            "index": "[10, 11, 12][a]",
            "slice": "[10, 11, 12][a:]",
            "range": "list(range(a))",
            "hex": "hex(a), bin(a)",
            "round": "round(a), round(a, 2)",
            "divmod": "divmod(a, b)",
            "hash": "hash(a)",
            "repr": "repr(a)",
            "str": "str(a)",
            "format": "format(a, 'z')",
            "f-string": "f'{a} {a!r} {a!s} {a:>3}'",
            "percent": "'%s %r' % (a, b)",
            "str.format": "'{} {!r} {:z}'.format(a, a, b)",
            "join": "','.join(map(str, [a, b]))",
            "bytes": "bytes(a)",
            "call": "a(1, k=2)",
            "list eq": "[a] == [b]",
            "list eq same": "[a] == [a]",
            "tuple eq": "(a, 1) == (b, 1)",
            "tuple lt": "(a, 1) < (b, 1)",
            "dict of values eq": "{1: a} == {1: b}",
            "set of": "len({a, b})",
            "dict of": "len({a: 1, b: 2})",
            "key found": "{a: 1}[a]",
            "in list": "a in [b], a in [a]",
            "in tuple": "a in (b, a)",
            "in set": "a in {b}",
            "in dict": "a in {b: 1}",
            "index of": "[b, a].index(a)",
            "count": "[b, a, a].count(a)",
            "sorted": "[o.tag for o in sorted([b, a])]",
            "sorted key": "[o.tag for o in sorted([b, a], key=lambda o: o.tag)]",
            "min max": "min(a, b).tag, max([a, b]).tag",
            "any all": "any([b, a]), all([a, b])",
            "sum": "sum([a], 1)",
            "filter": "[o.tag for o in filter(None, [a, b])]",
            "map": "list(map(len, [a, b]))",
            "zip": "list(zip(a, b))",
            "enumerate": "list(enumerate(a))",
            "unpack star": "[*a, *b]",
            "call star": "(lambda *args: args)(*a)",
            "comprehension": "[i + 1 for i in a]",
            "isinstance": "isinstance(a, Noisy), isinstance(a, (int, str)), issubclass(Noisy, object)",
            "type": "type(a) is Noisy",
            "callable": "callable(a)",
            "is": "a is b, a is None, a is not b",
            "pair of results": "(a == b, hash(a), len(b))",
            "dict get": "{b: 1}.get(a, 5)",
            "dict from pairs": "len(dict([(a, 1), (b, 2)]))",
            "frozenset": "len(frozenset([a, b]))",
            "set ops": "len({a} | {b}), len({a} & {b}), len({a} - {b}), {a} <= {b}",
            "fromkeys": "len(dict.fromkeys([a, b]))",
            "remove": "[o.tag for o in (lambda l: (l.remove(a), l)[1])([b, a])]",
            "extend": "(lambda l: (l.extend(a), l)[1])([])",
            "tensor of float": "x * float(a)",
            "ternary chain": "a < b < a",
        }.items()
    },
    "noisy store": (NOISY, "a[1] = 2\ndel a[1]\nr = 1"),
    "noisy unpack": (NOISY, "p, q, s = a\nr = p, q, s"),
    "noisy unpack rest": (NOISY, "p, *q = a\nr = p, q"),
    "noisy for": (NOISY, "r = 0\nfor i in a:\n    r += i"),
    "noisy with": (NOISY, "with a as c:\n    r = c.tag"),
    "noisy with raise": (NOISY, "with a:\n    raise ValueError('x')"),
    "noisy while": (NOISY, "r = 0\nwhile a:\n    r += 1\n    a.tag = 'b'"),
    "noisy match": (
        NOISY,
        "match a:\n    case Noisy(tag='a'):\n        r = 1\n    case _:\n        r = 2",
    ),
    "noisy match value": (
        NOISY,
        "match 2:\n    case b.tag:\n        r = 1\n    case _:\n        r = 2",
    ),
    "noisy assert": (NOISY, "assert a\nr = 1"),
    "keys eq": ("Key(1), Key(1)", "r = {a: 0} == {b: 0}"),
    "keys eq other": ("Key(1), Key(2)", "r = {a: 0} == {b: 0}"),
    "keys set eq": ("Key(1), Key(1)", "r = {a} == {b}, {a} <= {b}, {a} >= {b}, {a}.issubset([b])"),
    "keys dicts": ("Key(1), Key(2)", "d = {a: 1, b: 2}\nr = d[a], d[b], len(d)"),
    "keys nested": (
        "Key(1), Key(1)",
        "r = {(1, a): 0} == {(1, b): 0}, (1, a) in {(1, b): 3}, hash((a, 2)) == hash((b, 2))",
    ),
    "keys store": ("Key(1), Key(1)", "d = {}\nd[a] = 1\nd[b] = 2\ndel d[a]\nr = len(d)"),
    "keys update": (
        "Key(1), Key(1)",
        "d = {a: 1}\nd.update({b: 2})\nd |= {b: 3}\nr = list(d.values()), d | {a: 1} == d",
    ),
    "keys setdefault": (
        "Key(1), Key(1)",
        "d = {a: 1}\nr = d.setdefault(b, 2), d.pop(b), d.pop(a, 9), len(d)",
    ),
    "keys add": ("Key(1), Key(1)", "s = {a}\ns.add(b)\ns.discard(a)\nr = len(s)"),
    "keys of view": (
        "Key(1), Key(1)",
        "r = {a: 1}.keys() == {b: 1}.keys(), a in {b: 1}.keys(), len({a: 1}.keys() & {b: 1}.keys())",
    ),
    "keys items": ("Key(1), Key(1)", "r = (a, 1) in {b: 1}.items()"),
    "keys unpack": ("Key(1), Key(1)", "r = len({**{a: 1}, **{b: 2}}), len({*[a], *[b]})"),
    "keys comprehension": (
        "Key(1), Key(1)",
        "r = len({k: 1 for k in [a, b]}), len({k for k in [a, b]})",
    ),
    "keys outside": (
        "{Key(1): 0, Key(2, 8): 1}, Key(1)",
        "r = b in a, a.get(b), a == {b: 0}, a != dict(a)",
    ),
    "keys outside two": ("{Key(1): 0}, {Key(1): 0}", "r = a == b, a != b"),
    "keys outside set": ("{Key(1)}, {Key(1)}", "r = a == b, a | b == a, a.isdisjoint(b)"),
    "keys outside loop": (
        "{Key(1): 5}, 1",
        "r = 0\nfor k, v in a.items():\n    r += v + k.tag\nr = r, len(a), list(a.values())",
    ),
    "keys outside store": ("{Key(1): 5}, Key(1)", "a[b] = 6\nr = len(a), list(a.values())"),
    "keys outside str": ("{Key(1, hash('q')): 5, 'q': 6}, 1", "r = a['q'], a.get('z'), 'q' in a"),
    "keys copy": ("{Key(1): 5}, 1", "r = len(dict(a)), len(a.copy()), len({**a})"),
    "keys in list eq": ("[{Key(1): 0}], [{Key(1): 0}]", "r = a == b"),
    "keys memo": (
        "Key(1), Key(1)",
        "seen = {}\nfor k in (a, b, a):\n    if k not in seen:\n        seen[k] = len(seen)\nr = len(seen)",
    ),
    "keys own dict": (
        "Fallback(), Key(1, hash('attr'))",
        "a.__dict__[b] = 0\nr = a.attr, len(a.__dict__)",
    ),
    "attributes read": ("Attributes('a'), 1", "r = a.tag, a.kind, a.nothing, a.method()"),
    "attributes store": ("Attributes('a'), 1", "a.more = 2\nr = a.more\ndel a.more\na.more"),
    "attributes by name": (
        "Attributes('a'), 1",
        "r = getattr(a, 'tag'), hasattr(a, 'missing'), getattr(a, 'missing', 3)\nsetattr(a, 'p', 1)\ndelattr(a, 'p')",
    ),
    "attributes missing": ("Attributes('a'), 1", "r = a.missing"),
    "attributes dict": (
        "Attributes('a'), 1",
        "r = a.__dict__['tag'], vars(a) is a.__dict__, a.__class__ is Attributes",
    ),
    "fallback": ("Fallback(), 1", "r = a.one, hasattr(a, 'missing'), getattr(a, '_x', 2)"),
    "fallback in": ("Fallback(), 1", "r = isinstance(a, Fallback), bool(a), a == 1, [a] == [1]"),
    "descriptors": (
        "Described(), 1",
        "a.field = 3\nr = a.field, a.other, a.only, Described.field, Described.only\ndel a.field\nr = r, a.field",
    ),
    "property": ("Described(), 1", "a.square = 4\nr = a.square"),
    "class methods": (
        "Described(), 1",
        "r = type(a.make()) is Described, a.static(), type(Described.make()) is Described",
    ),
    "meta call": ("1, 2", "r = OfMeta(1).args"),
    "meta operators": (
        "1, 2",
        "r = len(OfMeta), list(OfMeta), 1 in OfMeta, OfMeta[3], bool(OfMeta), OfMeta == OfMeta",
    ),
    "meta attributes": ("1, 2", "r = OfMeta.thing, hasattr(OfMeta, '_no')"),
    "meta checks": (
        "1, 3",
        "r = isinstance(a, OfMeta), isinstance(b, OfMeta), issubclass(int, OfMeta), isinstance(b, (str, OfMeta))",
    ),
    "meta key": ("1, 3", "r = {OfMeta: 1}[OfMeta], OfMeta in [OfMeta], OfMeta in {OfMeta}"),
    "meta repr": ("1, 3", "r = repr(OfMeta), f'{OfMeta}', str([OfMeta])"),
    "meta catches": (
        "1, 3",
        "try:\n    raise ValueError('x')\nexcept (KeyError, ValueError):\n    r = 1",
    ),
    "class getitem": ("1, 2", "r = Generic[3]"),
    "missing": ("Missing(k=1), 1", "r = a['k'], a['z'], 'k' in a, a.get('z'), len(a), list(a)"),
    "missing store": (
        "Missing(k=1), 1",
        "a['j'] = 2\nr = a['j'], a == {'k': 1, 'j': 2}, dict(a)['k'], {**a}['k']",
    ),
    "missing inside": (
        "1, 1",
        "d = Missing()\nd['j'] = 2\nd.update(q=3)\nr = d['j'], len(d), d.setdefault('z', 4), sorted(d.items())",
    ),
    "row": (
        "Row([1, 2]), 1",
        "r = a[0], len(a), list(a), a == [1, 2], 1 in a, sum(a), sorted(a), [*a], a + [1]",
    ),
    "row append": ("Row([1, 2]), 1", "a.append(3)\np, q, s = a\nr = p, q, s, tuple(a), a * 2"),
    "row inside": ("1, 1", "w = Row([3])\nw.append(4)\nr = w, w[0], max(w)"),
    "pair": (
        "Pair(1, 2), Pair(1, 2)",
        "r = a == b, hash(a) == hash(b), a[0], len(a), list(a), a in {b}, {a: 1}[b]\np, q = a",
    ),
    "pair inside": ("1, 2", "p = Pair(a, b)\nr = p, p[1], p == Pair(1, 2)"),
    "word": (
        "Word('a'), Word('a')",
        "r = a == b, hash(a) == hash('a'), a in {b: 1}, {'a': 2}[a], a in ['a'], len(a), a + 'x', 'x' + a",
    ),
    "word text": (
        "Word('a'), Word('a')",
        "r = str(a), f'{a}', '%s' % a, '{}'.format(a), a.upper(), ','.join([a, b])",
    ),
    "word attribute": ("Fallback(), Word('one')", "r = getattr(a, b), hasattr(a, Word('missing'))"),
    "word setattr": ("Fallback(), Word('one')", "setattr(a, b, 5)\nr = a.one, a.__dict__['one']"),
    "word key of dict": (
        "{Word('k'): 1}, 'k'",
        "r = a[b], a.get('z'), 'k' in a, a == {'k': 1}, list(a)",
    ),
    "word own dict": ("Fallback(), Word('one')", "a.__dict__[b] = 5\nr = a.one, a.two"),
    "number": (
        "Number(1), Number(2)",
        "r = a + b, a + 1, 1 + a, a < b, bool(a), int(a), [5, 6, 7][a], sum([a, b]), max(a, b)",
    ),
    "number key": (
        "Number(1), Number(1)",
        "r = {a: 1}[1], {1: 2}[a], a in [1], 1 in [a], a in {b}, hash(a)",
    ),
    "number with tensor": ("Number(1), Number(2)", "r = x + a, x * b, x[a], x.sum(a - 1)"),
    "real": (
        "Real(1.5), Real(2.5)",
        "r = a == b, a * 2, 2 * a, float(a), hash(a) == hash(1.5), {a: 1}[1.5], x * a, x + b, round(a)",
    ),
    "steps": ("Steps(3), Steps(2)", "r = list(a), next(b), next(b), next(b, 'end')"),
    "steps for": ("Steps(3), 1", "r = 0\nfor i in a:\n    r += i"),
    "steps break": ("Steps(3), 1", "for i in a:\n    break\nr = i, a.n"),
    "steps zip": ("Steps(3), Steps(2)", "r = list(zip(a, b)), a.n, b.n"),
    "steps unpack": ("Steps(3), 1", "p, q, s = a\nr = p, q, s"),
    "steps generator": ("Steps(3), 1", "r = [i for i in (j * 2 for j in a)]"),
    "steps inside": ("1, 1", "r = list(Steps(2)), sum(Steps(3)), 1 in Steps(3), max(Steps(2))"),
    "slots": ("Slots('a'), 1", "a.other = 2\nr = a.tag, a.other"),
    "slots inside": ("1, 1", "s = Slots('a')\ns.other = 2\nr = s"),
    "object inside": ("1, 1", "s = Attributes('a')\ns.other = 2\nr = s"),
    "fallback inside": ("1, 1", "s = Fallback()\ns.other = 2\nr = s"),
    "noisy inside": ("1, 1", "r = Noisy('a'), [Noisy('b')], {1: Noisy('c')}"),
    "described inside": ("1, 1", "s = Described()\ns.field = 3\ns.__dict__['square'] = 4\nr = s"),
    "pairs inside": ("1, 1", "r = Pair(1, 2), Missing(k=1), Row([1])"),
    "keys inside": ("1, 1", "r = {Key(1): 2}, {Key(3)}"),
    "keys frozen": ("1, 1", "r = frozenset([Key(1), Key(2)]), {frozenset([Key(3)]): 1}"),
    "copy": ("Copied('a'), Copied('b')", "r = copy.copy(a).tag, copy.deepcopy(b).tag"),
    "copy inside": ("1, 2", "r = copy.copy(Copied('a')), copy.deepcopy(Copied('b'))"),
    "copy of row": (
        "[Copied('a')], {'k': Copied('b')}",
        "r = copy.deepcopy(a)[0].tag, copy.deepcopy(b)['k'].tag, copy.copy(a)[0] is a[0]",
    ),
    "reduce inside": ("1, 2", "r = Reduced('a'), [Reduced('b')]"),
    "reduce copy": ("Reduced('a'), Reduced('b')", "r = copy.copy(a).tag, copy.deepcopy(b).tag"),
    "end inside": ("1, 2", "Ends('a')\nr = 1"),
    "end of local": ("1, 2", "e = Ends('a')\nnote('before')\ndel e\nnote('after')\nr = 1"),
    "end returned": ("1, 2", "r = Ends('a')"),
    "end of argument": ("[Ends('a')], 2", "a.pop()\nnote('after')\nr = len(a)"),
    "class made": ("1, 2", "class A(Base):\n    field = Descriptor()\nr = A.__name__, A().field"),
    "class made by meta": (
        "1, 2",
        "class A(metaclass=Making):\n    pass\nr = A.__name__, type(A) is Making",
    ),
    "class by type": ("1, 2", "A = type('A', (Base,), {'field': Descriptor()})\nr = A().field"),
    "class claimed": (
        "Claims(), 2",
        "r = isinstance(a, int), isinstance(a, Claims), isinstance(a, str), a.__class__ is int, type(a) is Claims",
    ),
    "slice of noisy": (NOISY, "r = [0, 1, 2, 3][a:a], x[:a], x[a]"),
    "tensor with noisy": (NOISY, "r = x + int(a)"),
    "tensor eq noisy": (NOISY, "r = [x is a, x is not b]"),
    "super": (
        "1, 2",
        "class_ = Pair(1, 2)\nr = super(Pair, class_).__len__(), super(Pair, class_).__getitem__(0)",
    ),
    "partial": (NOISY, "r = functools.partial(a, 1)(2)"),
    "reduce": (NOISY, "r = functools.reduce(lambda p, q: p == q, [a, b])"),
    "operator": (
        NOISY,
        "r = operator.eq(a, b), operator.add(a, b), operator.truth(b), operator.index(a), operator.contains(a, 2), operator.getitem(a, 1)",
    ),
    "itertools": (
        NOISY,
        "r = list(itertools.chain(a, b)), list(itertools.islice(a, 2)), [k for k, g in itertools.groupby([1, 1, 2])]",
    ),
    "groupby noisy": (NOISY, "r = [len(list(g)) for k, g in itertools.groupby([a, a, b])]"),
    "counter": ("Key(1), Key(1)", "c = collections.Counter([a, b])\nr = c[a], len(c)"),
    "ordered": (
        "Key(1), Key(1)",
        "c = collections.OrderedDict([(a, 1)])\nr = c[b], len(c), c == {a: 1}",
    ),
    "defaultdict": (
        "Key(1), Key(1)",
        "c = collections.defaultdict(int)\nc[a] += 1\nr = c[b], len(c)",
    ),
    "deque": (
        "Noisy('a'), Noisy('a')",
        "c = collections.deque([a])\nr = b in c, c.count(b), c.index(b)",
    ),
    "lru_cache": ("Key(1), Key(1)", "r = cached(a), cached(b)"),
    "default argument": (NOISY, "def g(p=a):\n    return p.tag\nr = g()"),
    "closure": (NOISY, "def g():\n    return a == b\nr = g()"),
    "exception": ("Word('a'), 1", "raise ValueError(a)"),
    "exception is noisy": (
        NOISY,
        "try:\n    raise KeyError(a)\nexcept KeyError as e:\n    r = e.args[0].tag",
    ),
    "global object": ("1, 2", "r = GLOBAL == GLOBAL, len(GLOBAL), GLOBAL.tag"),
    "global keys": ("Key(1), 2", "r = GLOBAL_KEYS.get(a), a in GLOBAL_KEYS"),
}


def namespace() -> dict[str, Any]:
    import collections
    import functools
    import itertools
    import operator

    names: dict[str, Any] = {
        "note": note,
        "copy": copy,
        "torch": torch,
        "functools": functools,
        "operator": operator,
        "itertools": itertools,
        "collections": collections,
        "__name__": "noisy",
    }
    exec(compile(CLASSES, "noisy_classes.py", "exec"), names)  # noqa: S102
    names["cached"] = functools.lru_cache(lambda key: key.tag)
    names["GLOBAL"] = names["Noisy"]("g")
    names["GLOBAL_KEYS"] = {names["Key"](1): "one"}
    return names


def describe(value: Any, depth: int = 0) -> Any:
    """Text for a result that asks no object of our classes for anything."""
    kind = type(value)
    if depth > 6:
        return "..."
    if isinstance(kind, type) and type.__getattribute__(kind, "__module__") == "noisy":
        parts: list[Any] = [type.__getattribute__(kind, "__name__")]
        if issubclass(kind, dict):
            parts += [describe(list(dict.items(value)), depth + 1)]
        for base in (list, tuple):
            if issubclass(kind, base):
                parts += [describe(base.__getitem__(value, slice(None)), depth + 1)]
        for base in (int, float, str):
            if issubclass(kind, base):
                parts += [base.__repr__(value)]
        if hasattr(kind, "__dict__") and type.__dict__["__dictoffset__"].__get__(kind) != 0:
            parts += [describe(object.__getattribute__(value, "__dict__"), depth + 1)]
        for name in kind.__dict__.get("__slots__", ()):
            try:
                parts += [name, describe(object.__getattribute__(value, name), depth + 1)]
            except AttributeError:
                parts += [name, "unset"]
        return tuple(parts)
    if kind is dict:
        return [
            "dict",
            *((describe(k, depth + 1), describe(v, depth + 1)) for k, v in value.items()),
        ]
    if kind in (list, tuple):
        return [kind.__name__, *(describe(v, depth + 1) for v in value)]
    if kind in (set, frozenset):
        return [kind.__name__, sorted(repr(describe(v, depth + 1)) for v in value)]
    if isinstance(value, torch.Tensor):
        return [kind.__name__, value.tolist()]
    if isinstance(value, type):
        return ["class", type.__getattribute__(value, "__name__")]
    return repr(value) if kind.__repr__ is not object.__repr__ else kind.__name__


def run(
    arguments: str, code: str, capture: Callable[[Any], Any], inside: bool
) -> Iterator[tuple[str, Any, list[str]]]:
    names = namespace()
    lines = code.splitlines()
    if inside:
        lines = [f"a, b = {arguments}", *lines]
    body = "".join(f"    {line}\n" for line in lines)
    head = "x" if inside else "x, a, b"
    exec(  # noqa: S102
        compile(
            f"def f({head}):\n    y = x + 1\n{body}    return y, r\n", "noisy_operation.py", "exec"
        ),
        names,
    )
    f = capture(names["f"])
    for _ in range(CALLS):
        made = () if inside else eval(arguments, names)
        LOG.clear()
        try:
            result: Any = f(torch.ones(3), *made)
            log = list(LOG)
        except Exception as error:  # noqa: BLE001  whatever it raises is its result
            result = (type(error).__name__, str(error))
            log = list(LOG)
        LOG.clear()
        yield log, describe(result), describe(list(made))
        del result, made
        LOG.clear()


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(name: str, inside: bool) -> None:
    arguments, code = OPERATIONS[name]
    plain = list(run(arguments, code, lambda f: f, inside))
    captured = list(run(arguments, code, frametap.compile, inside))
    for i, (expected, got) in enumerate(zip(plain, captured, strict=True)):
        assert got == expected, f"call {i}"


def test_a_key_in_a_class() -> None:
    """A class dict with a key that is not a string, whose __eq__ exchanges the bases while a name is looked up."""

    def make() -> tuple[list[str], type]:
        log: list[str] = []

        class Key:
            def __hash__(self) -> int:
                return hash("mykey")

            def __eq__(self, other: object) -> bool:
                log.append("eq")
                made.__bases__ = (Second,)
                return False

        class First:
            mykey, mykey2 = "from 1", "from 1"

        class Second:
            mykey, mykey2 = "from 2", "from 2"

        made: Any = type("X", (First,), {Key(): 5})  # type: ignore[dict-item]
        return log, made

    def f(x: torch.Tensor, cls: Any) -> Any:
        return cls.mykey, cls.mykey2, (x + 1).tolist()

    def g(x: torch.Tensor, cls: Any) -> Any:
        return cls().mykey, cls().mykey2, isinstance(cls(), cls), cls.__name__, (x + 1).tolist()

    for function in (f, g):
        runs = []
        for capture in (lambda h: h, frametap.compile):
            run = capture(function)
            log, cls = make()
            runs.append([(run(torch.ones(2), cls), list(log)) for _ in range(CALLS)])
        assert runs[0] == runs[1]
