"""Inputs of which the sizes are open, for compilers that work on symbols.

Y1  A form compiled for such inputs is used for others only if every condition holds that torch's
    ``ShapeEnv`` noted during the compilation. Sizes and strides that were taken as constants are
    among them.

Not here: which sizes are open (the recording decides), the graph module (``fx.py``), what is compiled when
(``_callable.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

__all__ = ["Symbols"]

Condition = Callable[[Sequence[Any]], bool]


class Symbols:
    """Fake values for `inputs`: sizes, strides and numbers of those that are open are symbols of one ``ShapeEnv``.

    A size or number that is 0 or 1 is a constant, as everywhere in torch.
    """

    def __init__(self, inputs: Sequence[Any], is_open: Sequence[bool]) -> None:
        from torch._dynamo.source import LocalSource
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        # No duck shapes: that two sizes are equal by chance in the first call says nothing of the next.
        self._env = ShapeEnv(duck_shape=False)
        self.mode = FakeTensorMode(shape_env=self._env, allow_non_fake_inputs=True)
        self._open: list[int] = []
        self.values: list[Any] = []
        for index, (value, open_) in enumerate(zip(inputs, is_open, strict=True)):
            # The names that `produce_guards_expression` gives to what it is asked for.
            source = LocalSource(f"t{len(self._open)}")
            fake = value
            if isinstance(value, torch.Tensor):
                fake = self._fake_tensor(value, source if open_ else None)
            elif open_ and type(value) is int and abs(value) > 1:
                fake = self._symbol(value, source)
            if open_ and fake is not value:
                self._open.append(index)
            self.values.append(fake)

    def _fake_tensor(self, tensor: torch.Tensor, source: Any) -> torch.Tensor:
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        if source is None:
            return self.mode.from_tensor(tensor, static_shapes=True)
        context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
        return self.mode.from_tensor(tensor, source=source, symbolic_context=context)

    def fixed(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake value for a tensor of these very sizes."""
        return self._fake_tensor(tensor, None)

    def _symbol(self, number: int, source: Any) -> Any:
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        symbol = self._env.create_unspecified_symbol(number, source, DimDynamic.DYNAMIC)
        return self._env.create_symintnode(symbol, hint=number, source=source)

    @contextlib.contextmanager
    def tracing(self) -> Iterator[None]:
        """While a backend compiles: it takes these fakes as they are, and notes its conditions here."""
        from torch._guards import TracingContext, tracing

        with tracing(TracingContext(self.mode)):
            yield

    def condition(self) -> Condition:
        """Whether other inputs fit what was compiled under :meth:`tracing`."""
        text = self._env.produce_guards_expression(
            [self.values[i] for i in self._open], ignore_static=False
        )
        if text is None:
            return lambda inputs: True
        from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

        code = compile(text, "<conditions on sizes>", "eval")
        names = [(f"t{position}", index) for position, index in enumerate(self._open)]

        def fits(inputs: Sequence[Any]) -> bool:
            return bool(
                eval(code, SYMPY_INTERP, {"L": {name: inputs[index] for name, index in names}})
            )

        return fits
