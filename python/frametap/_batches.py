"""Batches that the user gives: what counts as one, what is in it, copies of it, and a line that counts them.

Not here: what is done with them (``_quantize.py``, ``_freeze.py``).
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeAlias

import torch

from frametap._errors import FrametapError

__all__ = [
    "Batch",
    "ProgressLine",
    "accepting",
    "arguments",
    "copied",
    "described",
    "iterate",
    "tensors",
]

Batch: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def iterate(data: Any, words: str, error: type[FrametapError]) -> Iterator[Any]:
    """`words`: who asks for which argument, as in ``"quantize: calibration_data"``."""
    if isinstance(data, (torch.Tensor, str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise error(
            f"{words} must be an iterable of batches, got {type(data).__name__}"
            + ("; put it in a list" if isinstance(data, (torch.Tensor, Mapping)) else "")
        )
    return iter(data)


def arguments(batch: Any, words: str, error: type[FrametapError]) -> Batch:
    """`words`: who asks for which batch, as in ``"quantize: calibration batch 3"``."""
    if isinstance(batch, torch.Tensor):
        return (batch,), {}
    if isinstance(batch, (tuple, list)):
        return tuple(batch), {}
    if isinstance(batch, Mapping):
        return (), dict(batch)
    raise error(
        f"{words} is {type(batch).__name__} {batch!r:.40}; a batch is a tensor, a tuple of positional "
        "or a dict of keyword arguments"
    )


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def described(batch: Batch) -> str:
    def one(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        return type(value).__name__

    args, kwargs = batch
    return ", ".join(
        [*map(one, args), *(f"{name}: {one(value)}" for name, value in kwargs.items())]
    )


def copied(batch: Batch) -> Batch:
    """The batch with tensors of its own. One that occurs twice is one in the copy, too."""
    memo: dict[int, Any] = {}
    for tensor in tensors(batch):
        # deepcopy refuses tensors with a history; a batch has none that counts.
        memo.setdefault(id(tensor), tensor.detach().clone().requires_grad_(tensor.requires_grad))
    try:
        return copy.deepcopy(batch, memo)
    except Exception:  # noqa: BLE001 - an object in it cannot be copied, whatever the cause: it is passed as it is
        return _with_tensors(batch, memo)


def _with_tensors(value: Any, copies: Mapping[int, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return copies[id(value)]
    if type(value) is dict:
        return {key: _with_tensors(item, copies) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(_with_tensors(item, copies) for item in value)
    return value


@contextlib.contextmanager
def accepting(batch: Batch, who: str, which: str, error: type[FrametapError]) -> Iterator[None]:
    """A call of the model on the batch: errors of the model say which batch it was. `which`: as in ``"batch 3"``."""
    try:
        yield
    except FrametapError:
        raise
    except Exception as cause:  # whatever the model makes of data that does not fit
        raise error(
            f"{who}: the model does not accept {which} ({described(batch)}): {type(cause).__name__}: {cause}\n"
            f"  {_advice(batch, cause)}"
        ) from cause


def _advice(batch: Batch, cause: Exception) -> str:
    args, kwargs = batch
    if isinstance(cause, TypeError) and len(args) > 1:
        return "each item of a tuple is an argument of the model: leave labels out"
    if isinstance(cause, TypeError) and kwargs:
        return "a dict holds keyword arguments: for a dict as the argument itself, give ({...},)"
    others = {tensor.dtype for tensor in tensors(batch)} - {torch.float32, torch.int64, torch.bool}
    if isinstance(cause, RuntimeError) and others:
        names = " and ".join(sorted(str(dtype).removeprefix("torch.") for dtype in others))
        return f"the batch holds {names}: convert it to the type of the model's inputs, as with .float()"
    return "a batch is a tensor, a tuple of positional or a dict of keyword arguments"


class ProgressLine:
    """A line on stderr. `shown`: None stands for where that is a terminal."""

    def __init__(self, word: str, data: Any, shown: bool | None) -> None:
        self._word = word
        self._shown = sys.stderr.isatty() if shown is None else shown
        try:
            self._of = f" of {len(data)}"
        except TypeError:
            self._of = ""

    def __enter__(self) -> Self:
        return self

    def show(self, number: int) -> None:
        if self._shown:
            sys.stderr.write(f"\r{self._word}: batch {number + 1}{self._of}")
            sys.stderr.flush()

    def __exit__(self, *error: object) -> None:
        if self._shown:
            sys.stderr.write("\r\033[K" if sys.stderr.isatty() else "\n")
            sys.stderr.flush()
