"""Random programs over numbers that differ from call to call: sizes, arguments, globals, attributes.

Their results are passed to ops, decide branches, or are dropped. Between calls a number becomes another, a float, a
bool, or one that raises; the harness of `tests/same` compares all that can be seen. A program is made of its seed alone:
``python tests/stress/random_numbers.py --seeds 1200:1201 --show`` makes that one again, as text for a file there.
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

# {e} is an expression, {c} a small constant.
LEAVES = """
x.shape[0]
x.size(1)
len(x)
x.numel()
x.dim()
n
n
k
k
g
box.k
{c}
"""

EXPRESSIONS = """
({e} + {e})
({e} - {e})
({e} * {e})
({e} // {e})
({e} % {e})
({e} / {e})
({e} ** {c})
({e} & {e})
({e} | {e})
({e} ^ {e})
({e} << {c})
({e} >> {c})
(-{e})
(+{e})
(~{e})
(not {e})
({e} < {e})
({e} == {e})
({e} != {e})
({e} >= {e})
(1 < {e} < 5)
({e} if {e} else {e})
({e} or {e})
({e} and {e})
({e} in (1, 2, 3))
[{e}, {e}][0]
[{e}, {e}][-1]
abs({e})
int({e})
float({e})
bool({e})
str({e})
round({e})
round({e}, 1)
min({e}, {e})
max({e}, {e})
sum([{e}, {e}])
divmod({e}, {e})[0]
divmod({e}, {e})[1]
pow({e}, 2)
complex({e}).real
float({e}).is_integer()
({e}).bit_length()
({e}).__index__()
int({e}).to_bytes(9, "little", signed=True)[0]
isinstance({e}, int)
type({e}).__name__
math.ceil({e})
math.copysign(1, {e})
math.floor({e})
math.gcd(int({e}), int({e}))
math.isclose({e}, {e})
math.isqrt(abs(int({e})))
math.log2(1 + abs({e}))
math.prod([{e}, {e}])
math.sqrt(abs({e}))
"""

# The uses of a number.
USES = """
x * {e}
{e} - x
{e} / (x + 10)
x.add({e})
x.addcmul(x, x, value={e})
x.clamp(min={e})
x.double() * {e}
x.long() * {e}
x.long() // ({e} or 1)
x.masked_fill(x > 0, {e})
x.mul({e}).sum().item()
x.new_zeros(abs(int({e})) % 4, 2)
x.narrow(0, 0, min(len(x), abs(int({e})) % 3))
x.repeat(abs(int({e})) % 3, 1)
x.roll(int({e}) % 5, 0)
x.sum() + {e}
x.to(torch.bfloat16) * {e}
x[: int({e}) % 4]
(x > 0) * {e}
F.pad(x, (abs(int({e})) % 3, 1))
torch.add(x, x, alpha={e})
torch.full((2,), {e})
torch.scalar_tensor({e})
torch.tensor([{e}, 1])
torch.where(x > {e}, x, 0)
"""

_CONSTANTS = ("0", "1", "2", "3", "5", "-1", "-3", "0.5", "-1.5")
_NUMBERS = (*_CONSTANTS, "4", "7", "12", "-2", "True", "False", "-0.0", "1.0", "2.5", "-3.25")
_NUMBERS += ("10**10", "2**62", "2**63", "float('inf')", "float('nan')")
_LEAVES, _EXPRESSIONS, _USES = map(generated.lines, (LEAVES, EXPRESSIONS, USES))


class _Maker:
    def __init__(self, seed: int) -> None:
        self.r = random.Random(f"numbers {seed}")

    def expression(self, depth: int) -> str:
        r = self.r
        template = r.choice(_LEAVES if depth == 0 or r.random() < 0.15 else _EXPRESSIONS)
        template = re.sub(r"\{c\}", lambda _: r.choice(_CONSTANTS), template)
        return re.sub(r"\{e\}", lambda _: self.expression(depth - 1), template)

    def number(self) -> str:
        return self.r.choice(_NUMBERS) if self.r.random() < 0.55 else str(self.r.randint(0, 9))

    def call(self) -> str:
        rows, columns = self.r.choice([0, 1, 2, 3, 4, 5, 8]), self.r.randint(1, 4)
        return f"f(noise({rows}, {columns}), {self.number()}, {self.number()})"

    def program(self) -> tuple[str, str]:
        r = self.r
        body = ["out = []"]
        for i in range(r.randint(2, 4)):
            value = self.expression(r.randint(1, 3))
            if r.random() < 0.3:
                body += [f"if {self.expression(2)}:", f"    n = {value}"]
            if r.random() < 0.1:
                body.append(self.expression(2))
            body += [f"v{i} = {value}", f"out.append(v{i})"]
            body += ["try:", f"    out.append({r.choice(_USES).replace('{e}', f'v{i}')})"]
            body += ["except (RuntimeError, TypeError) as e:", "    out.append(type(e))"]
        body.append("return out")
        code = ["class Box: pass", "box = Box()", "box.k, g = 3, 2", "def f(x, n, k):"]
        code += ["    " + line for line in body]
        calls = []
        for _ in range(r.randint(5, 8)):
            for name in ("g", "box.k"):
                if r.random() < 0.15:
                    calls.append(f"{name} = {self.number()}")
            calls.append(self.call())
        return "\n".join(code), "\n".join(calls)


def program(seed: int) -> str:
    """The program as text for a file of `tests/same`."""
    return generated.text_of(f"numbers_{seed}", *_Maker(seed).program())


def fault(seed: int, **options: Any) -> str:
    """Runs the program of this seed; what differs from plain Python, in words, or nothing."""
    return generated.fault(f"numbers_{seed}", *_Maker(seed).program(), **options)


def main() -> int:
    options = generated.arguments(__doc__).parse_args()
    return generated.run(options, program, lambda seed: fault(seed, backend=options.backend))


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
