"""Random programs over tensors, sizes and numbers, each called with many sizes, captured and plainly.

Results, exceptions with their texts, changed arguments and strides must be as in plain Python. A program is made of
its seed alone: ``python tests/stress/random_programs.py --seeds 1200:1201 --show`` makes that one again.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.subject import frametap
from stress import generated

# {t} and {u} are tensors, {i} and {j} ints, {s} is a float, {r} and {q} are lists of ints. Expressions that raise for some
# sizes are welcome.
TENSORS = """
{t}.relu()
{t} * {i}
{t} + {i}
{i} - {t}
{t} / ({i} * {i} + 1)
{t} * {s}
{s} / ({t} * {t} + 1)
{t}.transpose(0, -1)
{t}.flatten()
{t}.reshape(-1)
{t}.reshape({t}.shape[0], -1)
{t}.view(-1, {t}.shape[-1])
{t}.view({t}.size())
{t}.reshape({t}.shape[::-1])
{t}.unsqueeze(0)
{t}.unsqueeze(-1)
{t}.squeeze()
{t}.squeeze(0)
{t}.squeeze(-1)
{t}.sum(0)
{t}.sum(-1, keepdim=True)
{t}.sum() * {i}
{t}.mean()
{t}.amax(0)
{t}.argmax(-1)
{t}.sort(0)[0]
{t}.topk(min({t}.shape[-1], 2))[0]
{t}[0]
{t}[-1]
{t}[..., 0]
{t}[: {i}]
{t}[{i} :]
{t}[..., : {i}]
{t}[:, None]
{t}[::2]
{t}[{i}]
{t}[{i} // 2 : {t}.shape[0]]
{t}[slice(0, {i})]
{t}[torch.arange({t}.shape[0])]
{t}.contiguous()
{t}.clone()
{t}.t() if {t}.dim() == 2 else {t}
{t}.expand(2, *{t}.shape)
{t}.repeat(2, *[1] * ({t}.dim() - 1))
{t}.repeat_interleave(2, 0)
torch.cat([{t}, {t}], 0)
torch.stack([{t}, {t}])
torch.cat({t}.split(2), 0)
torch.stack([r * k for k, r in enumerate({t})]) if len({t}) else {t}
F.pad({t}, (0, {i} % 3))
F.pad({t}, (0, -{t}.shape[-1] % 4))
F.softmax({t}, -1)
F.layer_norm({t}, {t}.shape[-1:])
F.one_hot(torch.arange({t}.shape[0]), {t}.shape[0] + 1)
F.interpolate({t}[None, None], scale_factor=2.0) if {t}.dim() == 2 else {t}
F.avg_pool1d({t}[None], 2) if {t}.dim() == 2 else {t}
F.linear({t}, {t}.new_ones(3, {t}.shape[-1]))
{t}.split(2)[0]
{t}.chunk(2, -1)[-1]
{t}.unbind(0)[-1]
{t}.tensor_split(2)[0]
{t}.cumsum(0)
{t}.flip(0)
{t}.roll({i}, 0)
{t}.to(torch.float64)
{t}.type_as(torch.ones(1))
{t}.tril() if {t}.dim() > 1 else {t}
{t}.diagonal() if {t}.dim() > 1 else {t}
{t}.permute(*reversed(range({t}.dim())))
{t}.movedim(0, -1)
{t}.swapaxes(0, -1).contiguous()
{t}.narrow(0, 0, max({t}.shape[0] // 2, 1))
{t}.unfold(0, 1, 1)
{t}.unflatten(0, (1, -1))
{t}.select(-1, 0)
{t}.index_select(0, torch.arange(len({t})))
{t}.gather(0, torch.zeros_like({t}, dtype=torch.int64))
{t}.float() @ {t}.float().transpose(-1, -2) if {t}.dim() > 1 else {t}
{t}.masked_fill({t} > {i}, 0)
torch.where({t} > 0, {t}, 0)
{t}.new_zeros({t}.shape[:-1] + ({i} % 4,))
{t}.new_ones({i} % 5, 2)
{t}.new_full(({t}.shape[0],), {s})
torch.zeros({t}.shape)
torch.zeros(*{t}.shape)
torch.zeros_like({t})
torch.ones({i} % 6 + 1)
torch.full((len({t}), 2), float({i}))
torch.arange({t}.numel())
torch.arange({i}, {i} + len({t}))
torch.arange(len({t})) * 1.0
torch.linspace(0, {s}, {t}.shape[0])
torch.eye({t}.shape[-1])
torch.tensor([{i}, {t}.shape[0]])
torch.tensor({s}) + {t}
torch.tensor([[{i}, {s}], [{j}, 1.5]])
torch.tensor({i}) * {t}
torch.tensor({t}.shape)
torch.tensor([{i}, {j}], dtype=torch.int8)
torch.as_tensor([{i}, {t}.shape[-1]], dtype=torch.float64)
{t}.new_tensor([{i}, {j}])
{t}.new_tensor({s})
torch.scalar_tensor({i})
torch.tensor({t}.tolist())
torch.tensor([v * {i} for v in {t}.flatten().tolist()])
torch.triu(torch.full(({t}.shape[0], {t}.shape[0]), -1.0), 1)
{t} + {u}
{t} * {u}
{t} - {u}.mean(0)
{t} @ {u}
torch.cat([{t}, {u}], 0)
torch.maximum({t}, {u})
{t}.expand_as({u})
{t}.view_as({u})
{t}.reshape({u}.shape)
torch.outer({t}.flatten(), {u}.flatten())
torch.broadcast_tensors({t}, {u})[0]
{t} if {t}.shape == {u}.shape else {u}
{t} if {t}.dtype == torch.float32 else {u}
{t} if {t}.numel() > {u}.numel() else {u}
{t} if torch.result_type({t}, {u}) == torch.float32 else {t} * 2
{t}.reshape({r})
{t}.new_zeros([abs(k) % 5 for k in {r}[:3]])
{t} * {r}[0]
torch.full([{r}[0] % 4, 2], {r}[-1])
torch.stack([{t} + k for k in {r}])
helper({t}, {i})
helper(x={t}, n={t}.shape[0])
"""
INTS = """
{t}.shape[0]
{t}.shape[-1]
{t}.size(0)
{t}.size()[-1]
len({t})
{t}.numel()
{t}.nelement()
{t}.dim()
len({t}.shape)
{t}.shape.numel()
{t}.stride(0)
{t}.shape.index({t}.shape[-1])
sum({t}.shape)
math.prod({t}.shape)
max({t}.shape)
sorted({t}.shape)[0]
int({t}.sum())
len({t}.tolist())
{t}.long().flatten()[:2].tolist()[0]
{t}.argmax(-1).flatten().tolist()[-1]
{i} + {j}
{i} - {j}
{i} * 2
{i} // 2
{i} % 3
-{i}
~{i}
{i} ** 2
{i} & 5
{i} << 1
{i} if {i} % 2 == 0 else {j}
max({i}, {j})
min({i}, 3)
abs({i} - 4)
({i} + 7) // 8 * 8
divmod({i}, 3)[1]
round({i} / 2)
int({i} * 0.5)
int({s})
int({i} > 2)
math.ceil({i} / 3)
len([k for k in range({i}) if k])
(lambda k: k + {t}.shape[0])({i})
dict(a={i}, b={j})["a"]
[{i}, {j}, {t}.shape[0]][-1]
next(iter({t}.shape))
count_of({t})
{r}[0]
{r}[-1]
{r}[{i}]
len({r})
sum({r})
max({r})
min({r}[0], {i})
math.prod({r})
{r}.pop()
{r}.pop(0)
{r}.index({i})
"""
ROWS = """
list({t}.shape)
list({t}.shape[:-1])
[{i}, {j}]
[{i}] + {r}
{r} + {q}
{r}.copy()
list({r})
{r}[:-1]
{r}[::-1]
[*{r}, {i}]
[k * 2 for k in {r}]
{r}
sorted({r})
list(tuple({r})[:2])
[max(a, b) for a, b in zip({r}, {q})]
[{r}, {q}][{i} % 2]
"""
FLOATS = """
{s} * 2
{s} + {i}
{i} / 4
float({i})
math.sqrt({t}.shape[-1])
{t}.shape[-1] ** -0.5
max({s}, 1.0)
-{s}
{t}.float().mean().item()
{t}.float().flatten()[:1].tolist()[0]
sum({t}[0].float().flatten().tolist())
math.log({t}.numel() + 1)
"""
STATEMENTS = """
if {i} > {j}:| {t} = {t} * 2
if {s} > 1:| {t} = {t} + 1
if {t}.shape[0] == {u}.shape[0]:| acc.append({t} is {u})
if {t}.is_contiguous():| acc.append(1)
if {t}.sum() > {i}:| {t} = {t} - 1
if torch.tensor({i}) > {j}:| {t} = {t} + 3
acc.append({t}.tolist())
acc.append([{t}.sum().item(), {i}]); acc[-1].reverse()
acc.extend({t}.flatten()[:3].tolist())
for v in {t}.flatten()[:3].tolist():| {t} = {t} + v
if not {t}.shape[0] % 2:| acc.append("even")
for k in range(min({i}, 3)):| {t} = {t} + k
for k, v in enumerate({t}.shape):| acc.append(v * k)
for a, b in zip({t}.shape, {u}.shape):| acc.append(a == b)
while {i} > 40:| {i} = {i} // 2
{t} += {i}
{t}.mul_({i})
{t}.clamp_(max={i})
{t}[0] = {i}
{t}[..., -1] = {t}[..., 0]
{t}[: {i}] = {s}
acc.append({i})
acc.append({s})
acc.append({t}.shape)
acc.append({t}.dtype)
acc.append(str({t}.shape))
acc.append(f"{{{i}}}")
acc.append({i} in {t}.shape)
acc.append({t}.ndim == {u}.ndim)
acc.append({t}.shape[:2] + (1,))
acc.append(({i}, {j}) == ({j}, {i}))
acc += [n + 1 for n in {t}.shape]
acc.insert(0, {t}.shape[0])
acc.append(tuple(n * 2 for n in {t}.shape))
{r}.append({i})
{r}.extend({q})
{r}.insert({i}, {j})
{r}[0] = {i}
{r}[-1] = {t}.shape[0]
{r}[{i}] = {j}
{r} += [{i}]
{r}.reverse()
{r}.sort()
del {r}[0]
acc.append({r})
acc.append({r} == {q})
acc.append({i} in {r})
acc.append(str({r}))
a, b, *rest = {r}; acc.append(a); acc.append(rest)
for k in {r}:| acc.append(k + 1)
if {r}[0] > {i}:| {r}[0] = {j}
first, *rest = {t}.shape; acc.extend(rest)
*rest, last = {t}.shape; acc.append(last); acc.append(rest)
box.seen = {i}; acc.append(box.seen)
box.total += {t}.shape[0]; {t} = {t} * box.total
"""


_TENSORS, _INTS, _FLOATS = map(generated.lines, (TENSORS, INTS, FLOATS))
_ROWS, _STATEMENTS = map(generated.lines, (ROWS, STATEMENTS))

PRELUDE = """
class Box:
    seen = 0
    total = 1

box = Box()

def helper(x, n=2):
    rows = x.shape[0]
    return x.reshape(rows, -1) * (n if rows > 1 else rows)

def count_of(x):
    total = 1
    for n in x.shape:
        total *= n
    return total
"""


class Arguments(NamedTuple):
    x: list[int]
    y: list[int]
    n: int
    s: float
    row: list[int]
    transposed: bool


def program(seed: int) -> str:
    """The text of a function ``f(x, y, n, s, row)``."""
    r = random.Random(seed)
    tensors, ints, floats, lines = ["x", "y"], ["n"], ["s"], ["acc = []"]
    rows = ["row"]
    written: list[str] = []  # expressions, some of which come again
    for step in range(r.randint(3, 9)):
        names = {
            "t": r.choice(tensors),
            "u": r.choice(tensors),
            "i": r.choice(ints),
            "j": r.choice(ints),
            "s": r.choice(floats),
            "r": r.choice(rows),
            "q": r.choice(rows),
        }
        kind = r.random()
        if kind < 0.5:
            again = bool(written) and r.random() < 0.25
            written.append(r.choice(written if again else _TENSORS).format(**names))
            lines.append(f"t{step} = {written[-1]}")
            tensors.append(f"t{step}")
        elif kind < 0.58:
            lines.append(f"r{step} = " + r.choice(_ROWS).format(**names))
            rows.append(f"r{step}")
        elif kind < 0.75:
            lines.append(f"i{step} = " + r.choice(_INTS).format(**names))
            ints.append(f"i{step}")
        elif kind < 0.82:
            lines.append(f"s{step} = " + r.choice(_FLOATS).format(**names))
            floats.append(f"s{step}")
        else:
            head, _, body = r.choice(_STATEMENTS).format(**names).partition("|")
            lines.append(head if not body else f"{head}\n        {body.strip()}")
    lines.append(
        f"return {r.choice(tensors[-3:])}, {r.choice(tensors)}, {r.choice(ints)}, {r.choice(rows)}, "
        "acc, x, y, row"
    )
    body = "\n    ".join(lines)
    return f"{PRELUDE}\ndef f(x, y, n, s, row):\n    {body}\n"


def arguments(seed: int) -> list[Arguments]:
    r = random.Random(f"arguments {seed}")
    ranks = r.choice([(2, 2), (2, 1), (3, 2), (1, 1), (2, 3), (3, 3), (4, 2)])
    calls = []
    for _ in range(7):
        common = [r.choice([1, 2, 3, 4, 5, 8]) for _ in range(4)]

        def shape(rank: int, common: list[int] = common) -> list[int]:
            return (
                common[:rank] if r.random() < 0.7 else [r.choice([1, 2, 3, 4]) for _ in range(rank)]
            )

        n, s = r.choice([0, 1, 2, 3, 5, 7, -2]), r.choice([0.5, 1.0, 2.0, 2.5, -1.5])
        row = [r.choice([1, 2, 3, 4, 6, 12, -1]) for _ in range(r.choice([2, 2, 2, 3]))]
        calls.append(Arguments(shape(ranks[0]), shape(ranks[1]), n, s, row, r.random() < 0.2))
    return calls + calls[:2]


def _call(f: Callable[..., Any], given: Arguments, seed: int) -> Any:
    g = torch.Generator().manual_seed(seed)
    x = torch.randint(-4, 5, given.x, generator=g).float()
    y = torch.randint(-4, 5, given.y, generator=g).float()
    if given.transposed and x.dim() > 1:
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    try:
        with torch.set_grad_enabled(
            seed % 2 == 0
        ):  # without gradients, replays write over what is let go
            return "returned", f(x, y, given.n, given.s, list(given.row))
    except Exception as e:  # noqa: BLE001  it is compared
        text, _, _ = str(e).partition("\nException raised from")  # addresses follow
        return "raised", type(e).__name__, text


def _same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        form = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
        return form and torch.equal(a.nan_to_num(), b.nan_to_num())
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b or str(a) == str(b) == "nan"


def _function(seed: int) -> Callable[..., Any]:
    names: dict[str, Any] = {"torch": torch, "math": math, "F": torch.nn.functional}
    exec(compile(program(seed), f"<program {seed}>", "exec"), names)  # noqa: S102
    f: Callable[..., Any] = names["f"]
    return f


def fault(seed: int, **options: Any) -> str:
    """Runs the program of this seed; what differs from plain Python, in words, or nothing."""
    frametap.reset()
    plain, captured = _function(seed), frametap.compile(_function(seed), **options)
    for index, given in enumerate(arguments(seed)):
        want, got = _call(plain, given, index), _call(captured, given, index)
        if not _same(want, got):
            text = program(seed).removeprefix(PRELUDE)
            return f"seed {seed}, call {index}, {given}\n{text}\nplainly  {want}\ncaptured {got}"
    return ""


def main() -> int:
    parser = generated.arguments(__doc__)
    parser.add_argument("--dynamic", action="store_true", help="dynamic=True")
    options = parser.parse_args()
    chosen = {"backend": options.backend, "dynamic": options.dynamic or None}
    return generated.run(
        options,
        lambda seed: program(seed).removeprefix(PRELUDE),
        lambda seed: fault(seed, **chosen),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
