"""Random programs over objects: their identities, their contents, and their exchange between calls.

Functions with defaults, closures and globals, instances, lists, dicts, tuples and modules refer to each other at random.
Each program is called several times, captured and plainly, and between its calls things are exchanged. It is text for the
harness of `tests/same`. That compares results with the identities of their objects, exceptions with tracebacks, output,
the state after the call, and gradients. A program is made of its seed alone:
``python tests/stress/random_objects.py --seeds 1200:1201 --show`` makes that one again, as text for a file there.
"""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from stress import generated

# Tensors are {t}, ints {i}, boxes {b}, modules {m}, instances of a dataclass {p}, lists {l}, dicts {d} and tuples {u}. Any
# of these is {o}.
EXPRESSIONS = {
    "t": """
{t} + {i}
{t} * {t}
{t} - {t}.detach()
{t}.relu()
{t}.clone()
{t}.detach()
{t}.view(-1)
{t}[:1]
{t}.sum()
{t}.contiguous()
{t}.float()
{t}.detach().mul_({i})
({t} + 1).add_({t})
torch.ones(3) * {i}
{b}.t
{b}.t
{b}.scaled({i})
{m}({t})
{m}({t})
{m}.lin({t})
{m}.buf
{m}.lin.weight[0]
{m}.lin.bias * {i}
next({m}.parameters())[0]
{t} if {o} is {o} else {t} * 2
torch.stack([{t}.sum(), {t}.sum()])
""",
    "i": """
{i} + 1
{i} - {i}
len({l})
len({d})
len({u})
{b}.n
{b}.n
{m}.steps
{t}.shape[0]
{t}.dim()
int({o} is {o})
int({o} is None)
sum(1 for e in {l} if e is {o})
sum(1 for e in {l} if isinstance(e, Box))
1 if {l} else 2
2 if {b} is {b} else 3
{b}.count({l})
""",
    "b": """
{b}.peer
{b}.peer
{b}.me()
Box({i}, {t})
Box({i}, {t}, {o})
copy.copy({b})
{b} if {o} is {o} else {b}
""",
    "l": """
[{o}, {o}]
[{o}]
[]
{b}.l
{b}.l
list({u})
{l}[:]
{l}.copy()
{l} + [{o}]
[*{u}, {o}]
[e for e in {l} if e is not {o}]
list({d})
list({d}.values())
{l} or {l}
list(reversed({l}))
list(given({l}))
[*given({u})]
[a for a, b in zip({l}, {u}) if a is not b]
sorted({l}, key=id_of)
{p}.rest
""",
    "d": """
dict(k={o}, q={o})
{"k": {o}}
{}
{b}.d
{b}.d
dict({d})
{d}.copy()
{**{d}, "s": {o}}
{e: i for i, e in enumerate("kq")}
vars({b})
{b}.__dict__
""",
    "u": """
({o}, {o})
({o},)
(1, 2)
(3, 4)
((1, 2), 3)
()
tuple({l})
tuple({u})
{b}.u
{b}.u
{u}[:1]
{u}[:]
{u} + {u}[:1]
{u} + ()
tuple({d}.items())
tuple(zip({l}, {u}))
{b}.kind
{b}.kind
Box.kind
{b}.both
tuple(given({l}))
({p}.a, {p}.b)
pair({o}, {o})
""",
    "o": """
None
{l}[0]
{l}[-1]
{l}[{i}]
{l}.pop() if {l} else {o}
{l}[0] if {l} else None
{u}[0] if {u} else {o}
{u}[-1]
{d}["k"] if "k" in {d} else {o}
{d}["q"]
{d}.get("k")
{d}.get("q", {o})
{d}.pop("k", None)
{d}.setdefault("s", {o})
{b}.o if hasattr({b}, "o") else {o}
{b}.u
{b}.o
getattr({b}, "o", None)
getattr({b}, "gone", {o})
next(iter({l}), None)
next(iter({d}.values()), None)
({o}, {o})[{i} % 2]
{o} if {i} % 2 else {o}
{o} or {o}
{t}.grad
{m}.lin.weight.grad
{m}.mode
max([{o}, *{l}], key=id_of)
{m}.lin.weight
h0.__defaults__
{p}
{p}.a
{p}.a
{p}.b
partial(h0, {t})
partial(pair, {o})({o})
(lambda: {o})()
{b}.me
{b}.me()
next(given([{o}]))
""",
    "p": """
Part({o}, {o})
Part({o}, {b})
replace({p}, a={o})
""",
}
KINDS = "tibldupo"

# `|` begins the next line, one `>` at its beginning is one step inwards.
STATEMENTS = """
{b}.o = {o}
{b}.o = {o}
{b}.n += 1
{b}.n = {i}
{b}.t = {t}
{b}.l = {l}
{b}.d = {d}
{b}.u = {u}
{b}.peer = {b}
{b}.o, {b}.o = {o}, {o}
if hasattr({b}, "o"):|>del {b}.o
setattr({b}, "o", {o})
{l}.append({o})
{l}.append({o})
{l}[0] = {o}
if {l}:|>{l}[-1] = {l}[0]
{l}.insert(0, {o})
{l}.extend([{o}])
own = {l}|own += [{o}]
{l}.reverse()
if {b} in {l}[:1]:|>{l}.remove({l}[0])
{l}.clear()
del {l}[:1]
{l}[:] = [{o}]
{d}["k"] = {o}
{d}["q"] = {o}
{d}.update(q={o})
{d}.update({d})
{d}.clear()
{d}.pop("k", None)
{d}["k"], {d}["q"] = {d}.get("q"), {d}.get("k")
acc.append({o})
acc.append({o})
acc.append({o} is {o})
acc.append({o} is not {o})
acc.append({b} == {b})
acc.append({b} in {l})
acc.append({b} in {u})
acc.append({l} is {l})
acc.append({u} is {u})
acc.append({u} == {u})
acc.append({l} == {l})
acc.append("k" in {d})
acc.append({t} is {t})
acc.append({b}.__class__ is Box)
acc.extend({l}[:2])
acc.append(len({l}))
for e in {l}:|>acc.append(e)
for e in {u}:|>if e is {o}:|>>acc.append("met")
for k, v in {d}.items():|>acc.append((k, v))
for i, e in enumerate({l}):|>acc.append(e if i else i)
for e in {l}:|>if isinstance(e, torch.Tensor):|>>{T} = {t} + e
for e in {u}:|>if isinstance(e, Box):|>>e.n += 1
for _ in range(2):|>{b}.t = {b}.t + 1
own = {l}|while own:|>acc.append(own.pop())
if {o} is {o}:|>acc.append({t} * 2)|else:|>acc.append({t} + 1)
if {i} > {i}:|>{T} = {t} * 2
if isinstance({o}, Box):|>acc.append("box")|else:|>{b}.n += 1
if {o} is None:|>{b}.o = {o}
if {t}.sum() > 0:|>{T} = {t} - 1
if {t}.requires_grad:|>acc.append("wants")
if {t}.grad is not None:|>acc.append({t}.grad * 2)
first, *rest = {u}|acc.append(rest)
a, b, *_ = *{l}, 1, 2|acc.append(a)
global G_t|G_t = {t}
global G_o|G_o = {o}
global G_o|G_o = {o}
global G_b|G_b = {b}
global G_i|G_i = G_i + 1
print("broken")
print(len({l}))
acc.append(step({t}))
acc.append(step({t}))
acc.append(other({t}))
acc.append(h0({t}))
acc.append(h0({t}, {o}))
acc.append(h0({t}, {o}, {o}))
acc.append(h0({t}, k={o}))
acc.append(h0({t}, *{u}))
acc.append(n(*{u}, **{d}))
h0.__defaults__ = ({o}, )
{p}.a = {o}
{p}.b = {o}
{p}.rest = {l}
{p}.rest.append({o})
acc.append({p} is {p})
acc.append(Part(1, {b}) == Part(1, {b}))
acc.append(Part({i}, (1, 2)) == Part({i}, (1, 2)))
acc.append({b}.kind is {u})
acc.append(len(set([{b}, {b}, {p}.__class__])))
acc.append(len({}.fromkeys([{b}, {b}])))
acc.append({b} in dict.fromkeys([{b}, {b}]))
for e in given({l}):|>acc.append(e)
for a, b in zip({l}, {u}):|>acc.append(a is b)
for i, (a, b) in enumerate({d}.items()):|>acc.append((i, b))
match {o}:|>case Box(n=count):|>>acc.append(count)|>case (a, b):|>>acc.append(a)|>case None:|>>acc.append(1)
match {d}:|>case {"k": found, **rest}:|>>acc.append(found); acc.append(rest)
if (own := {o}) is not None:|>acc.append(own)
acc.append((lambda o=({o}): o)())
acc.append((lambda: {o})())
acc.append([n(e) for e in {u}])
acc.append(list(map(id_of, {l}))[:0])
{m}.steps += 1
{m}.buf = {t}
with torch.no_grad():|>{m}.buf.add_({i})
{m}.mode = {o}
{m}.eval()
{m}.train()
{m}.zero_grad()
acc.append([p for p in {m}.parameters()])
acc.append({m}.lin is {m}.lin)
if not {t}.requires_grad:|>{t}.add_({i})
with torch.no_grad():|>{t}[0] = {i}
with torch.no_grad():|>{t}.mul_({t})
{t}.data.add_(1)
with torch.no_grad():|>{t}.zero_()
if {t}.is_leaf:|>{t}.requires_grad_()
({t} * H_m.lin.bias).sum().backward()
if {t}.requires_grad:|>({t} * {t}).sum().backward()
{m}({t}).sum().backward()
if {t}.requires_grad:|>acc.append(torch.autograd.grad({t}.sum(), [{t}], allow_unused=True))
with torch.no_grad():|>{T} = {t} * 2
with torch.no_grad():|>{m}.lin.weight.add_(1)
with torch.enable_grad():|>{T} = {t} + {m}.lin.bias
with torch.autocast("cpu", dtype=torch.bfloat16):|>{T} = {m}.lin({t}).float()
with torch.set_grad_enabled({i} % 2 == 0):|>acc.append({t} * 3)
torch.set_grad_enabled({i} % 2 == 0)
try:|>{S}|except Exception as e:|>acc.append(type(e).__name__)
try:|>{S}|except (KeyError, IndexError, AttributeError) as e:|>acc.append(str(e))
try:|>{S}|except Exception:|>{S}
try:|>{S}|finally:|>{b}.n += 1
try:|>raise ValueError({i})|except ValueError as e:|>acc.append(e.args)
with Entered({b}) as e:|>{S}|>acc.append(e)
if {o} is {o}:|>{S}
if {i} % 2:|>{S}|else:|>{S}
for _ in range(2):|>{S}
"""

# Between two calls.
EXCHANGES = """
G_t = {t}
G_i = {i}
G_b = {b}
G_l = {l}
G_d = {d}
G_u = {u}
G_o = {o}
G_o = {o}
G_m, H_m = H_m, G_m
G_b, H_b = H_b, G_b
G_l, H_l = H_l, G_l
G_t, H_t = H_t, G_t
G_u, H_u = H_u, G_u
G_u = tuple(list(H_u))
H_u = tuple([1, 2])
H_u = (G_o, )
{b}.o = {o}
{b}.o = {o}
{b}.t = {t}
{b}.l = {l}
{b}.d = {d}
{b}.u = {u}
{b}.u = tuple([1, 2])
{b}.peer = {b}
{b}.n = {i}
vars({b}).pop("o", None)
{l}.append({o})
{l}.append({o})
{l}[:] = [{o}, {o}]
{l}.clear()
{d}["k"] = {o}
{d}["k"] = {o}
{d}["q"] = {o}
{d}.clear()
h0.__defaults__ = ({o},)
h0.__defaults__ = (tuple([1, 2]),)
h0.__defaults__ = None
h0.__kwdefaults__ = dict(k={o})
step.__closure__[0].cell_contents = {o}
other = step
other, step = step, other
G_m.lin = H_m.lin
G_m.lin.weight = nn.Parameter(torch.ones(3, 3))
H_m.lin.weight.data = torch.ones(3, 3)
G_m.buf = {t}
G_m.mode = {o}
G_m.eval()
G_m.train()
H_m.zero_grad()
G_m.requires_grad_(False)
torch.set_grad_enabled(False)
torch.set_grad_enabled(True)
G_t = torch.ones(3, requires_grad=True)
H_t = torch.ones(3)
{t}.grad = None
Box.kind = {u}
Box.kind = tuple([1, 2])
Box.me = lambda self: self.peer
{b}.kind = {u}
{b}.me = lambda: G_b
G_p = Part({o}, {o})
G_p, H_p = H_p, G_p
{p}.a = {o}
{p}.a = {p}.b
{p}.rest = {l}
pair.__defaults__ = ({o},)
"""

CALLS = """
f({t}, {o})
f({t}, {o})
f({t}, {b})
f({t}, {p})
f({t}, iter({l}))
f({t}, {b}.me)
f({t}, {l})
f({t}, {u})
f({t}, {d})
f({t}, {t})
f({t}, {o}, {o})
f({t}, {o}, q={o})
f({t}, {o}, {o}, {o})
f({t}, {o}, **{d})
f(G_t, G_b, G_l)
f(G_t, G_t, G_t)
f(ones(3), (1, 2))
f(ones(3), ())
"""

PRELUDE = """
import copy
from dataclasses import dataclass, field, replace
from functools import partial
class Box:
    kind = (1, 2)
    def __init__(self, n, t, o=(1, 2)):
        self.n, self.t, self.o = n, t, o
        self.l, self.d, self.u, self.peer = [], {}, (1, 2), self
    def scaled(self, n):
        self.n += 1
        return self.t * n
    def count(self, items):
        return sum(1 for e in items if e is self)
    def me(self):
        return self
    @property
    def both(self):
        return self.o, self.peer
@dataclass
class Part:
    a: object
    b: object
    rest: list = field(default_factory=list)
class Entered:
    def __init__(self, box):
        self.box = box
    def __enter__(self):
        self.box.n += 1
        return self.box
    def __exit__(self, *error):
        self.box.n -= 1
class Net(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.lin = nn.Linear(3, 3)
        nn.init.constant_(self.lin.weight, scale)
        nn.init.constant_(self.lin.bias, scale)
        self.register_buffer("buf", torch.zeros(3))
        self.steps, self.mode = 0, (1, 2)
    def forward(self, x):
        self.steps += 1
        return self.lin(x.expand(3)) + self.buf
def pair(a, b=()):
    return a, b
def given(items):
    for item in items:
        yield item
def id_of(o):
    return 0
def n(o=None, *rest, **named):
    return o if rest == () else rest
"""
_EXPRESSIONS = {kind: generated.lines(text) for kind, text in EXPRESSIONS.items()}
_STATEMENTS, _EXCHANGES, _CALLS = map(generated.lines, (STATEMENTS, EXCHANGES, CALLS))
_GLOBALS = {kind: [f"{letter}_{kind}" for letter in "GH"] for kind in "tibldump"} | {"o": ["G_o"]}
_PLACE = re.compile(r"\{([tibldumpo])\}")
_CALLED = re.compile(r"\b(h0|step|other)\(")
_INDENT = "    "


class _Maker:
    def __init__(self, seed: int) -> None:
        self.r = random.Random(f"objects {seed}")
        self.fresh = 0

    def expression(self, kind: str, scope: dict[str, list[str]], depth: int = 2) -> str:
        r = self.r
        if kind == "o" and r.random() < 0.5:
            kind = r.choice("tibblldump")
        names = scope.get(kind, [])
        if names and (depth == 0 or r.random() < 0.7):
            return r.choice(names)
        if kind == "m":
            return r.choice(_GLOBALS["m"])
        if depth == 0:
            return "None" if kind == "o" else r.choice(_GLOBALS[kind])
        text = self.filled(r.choice(_EXPRESSIONS[kind]), scope, depth - 1)
        return f"({text})" if " " in text and text[0] not in "([{" else text

    def filled(self, template: str, scope: dict[str, list[str]], depth: int) -> str:
        """The template with an expression at each place."""
        return _PLACE.sub(lambda place: self.expression(place[1], scope, depth), template)

    def statement(self, scope: dict[str, list[str]], depth: int = 2) -> list[str]:
        r = self.r
        if r.random() < 0.25:
            kind = r.choice(KINDS)
            text = self.filled(r.choice(_EXPRESSIONS[kind]), scope, 1)
            names = scope.setdefault(kind, [])
            own = [name for name in names if not name.startswith(("G_", "H_"))]
            if own and r.random() < 0.4:
                return [f"{r.choice(own)} = {text}"]
            self.fresh += 1
            names.append(f"{kind}{self.fresh}")
            return [f"{names[-1]} = {text}"]
        template = r.choice(_STATEMENTS)
        while depth == 0 and "{S}" in template:
            template = r.choice(_STATEMENTS)
        made: list[str] = []
        for line in template.split("|"):
            inner = line.lstrip(">")
            indent = _INDENT * (len(line) - len(inner))
            if inner == "{S}":
                # A name that is bound in a block may be unbound after it.
                block = {kind: list(names) for kind, names in scope.items()}
                made += [indent + text for text in self.statement(block, depth - 1)]
                continue
            own = [name for name in scope["t"] if not name.startswith(("G_", "H_"))]
            made.append(indent + self.filled(inner.replace("{T}", r.choice(own)), scope, 1))
        return made

    def body(self, scope: dict[str, list[str]], least: int, most: int) -> list[str]:
        made: list[str] = []
        for _ in range(self.r.randint(least, most)):
            made += self.statement(scope)
        # A name has to be declared before its first use.
        declared = sorted({text.strip() for text in made if text.strip().startswith("global ")})
        return declared + [text for text in made if not text.strip().startswith("global ")]

    def function(
        self, head: str, scope: dict[str, list[str]], least: int, most: int, calls: str = ""
    ) -> list[str]:
        """`calls`: what is called in place of the functions that call this one."""
        scope = {kind: names + scope.get(kind, []) for kind, names in _GLOBALS.items()}
        body = ["acc = []", *self.body(scope, least, most)]
        if calls:
            body = [_CALLED.sub(f"{calls}(", text) for text in body]
        result = ", ".join(self.expression(self.r.choice("tobldu"), scope) for _ in range(2))
        body.append(self.r.choice([f"return {result}, acc", f"return {result}", "return acc"]))
        return [head, *(_INDENT + text for text in body)]

    def world(self) -> list[str]:
        r = self.r
        made = [
            "G_t, H_t = seq(3), torch.ones(3, requires_grad=True)",
            "G_i, H_i = 1, 2",
            f"G_o = {r.choice(['None', '(1, 2)', 'G_t', '()'])}",
            "G_b, H_b = Box(1, G_t), Box(2, H_t, G_t)",
            "G_l, H_l = [G_t, G_b], [G_b, (1, 2), G_t]",
            'G_d, H_d = {"k": G_t, "q": G_b}, {"k": (1, 2)}',
            "G_u, H_u = (1, 2), (G_b, G_l)",
            "G_m, H_m = Net(0.5), Net(0.25)",
            "G_p, H_p = Part(G_b, (1, 2)), Part(G_t, G_l)",
        ]
        for _ in range(r.randint(2, 6)):
            text = self.filled(r.choice(_EXCHANGES), _GLOBALS, 0)
            # Functions are not made yet; an attribute that became a submodule refuses the next value.
            if not text.startswith(("h0", "step", "other", "G_m.mode")):
                made.append(text)
        return made

    def program(self) -> tuple[str, str]:
        r = self.r
        default = [self.expression("o", _GLOBALS, 0) for _ in range(4)]
        default = [r.choice([text, text, "(1, 2)", "()", "None"]) for text in default]
        inner = {"t": ["t"], "o": ["o", "k"], "u": ["rest"]}
        made = self.world()
        head = f"def h0(t, o={default[0]}, *rest, k={default[1]}):"
        made += self.function(head, inner, 0, 3, calls="n")
        made += ["def make(kept, count):"]
        closure = {"t": ["t"], "o": ["kept", "o"], "i": ["count"]}
        head = f"def step(t, o={default[2]}):"
        step = self.function(head, closure, 0, 3, calls=r.choice(["n", "h0"]))
        step.insert(1, _INDENT + "nonlocal kept, count")
        step.insert(2, _INDENT + r.choice(["count += 1", "kept = o", "kept = t"]))
        made += [_INDENT + text for text in [*step, "return step"]]
        made += [f"step, other = make({self.expression('o', _GLOBALS, 0)}, 0), make(G_b, G_i)"]
        scope = {"t": ["x"], "o": ["p", "q", "p"], "u": ["rest"], "d": ["named"]}
        made += self.function(f"def f(x, p, q={default[3]}, *rest, **named):", scope, 2, 8)
        calls = []
        for _ in range(r.randint(3, 5)):
            calls.append(self.filled(r.choice(_CALLS), _GLOBALS, 1))
            for _ in range(r.randint(0, 2)):
                calls.append(self.filled(r.choice(_EXCHANGES), _GLOBALS, 1))
        calls.append(self.filled(r.choice(_CALLS), _GLOBALS, 0))
        calls += r.sample(calls, 2)
        return PRELUDE.strip() + "\n" + "\n".join(made), "\n".join(calls)


def program(seed: int) -> str:
    """The program as text for a file of `tests/same`."""
    return generated.text_of(f"objects_{seed}", *_Maker(seed).program())


def fault(seed: int, **options: Any) -> str:
    """Runs the program of this seed; what differs from plain Python, in words, or nothing."""
    return generated.fault(f"objects_{seed}", *_Maker(seed).program(), **options)


def main() -> int:
    options = generated.arguments(__doc__).parse_args()
    return generated.run(options, program, lambda seed: fault(seed, backend=options.backend))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
