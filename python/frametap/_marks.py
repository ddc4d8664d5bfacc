"""Declarations about the sizes of a tensor: :func:`mark_dynamic`, :func:`mark_static`.

The marks are the attributes that ``torch._dynamo.mark_dynamic`` writes, so that each side honours the other's; torch's
compiler need not be imported for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from frametap._errors import FrametapError

__all__ = ["mark_dynamic", "mark_static"]


class _Range(NamedTuple):
    """Has the fields of torch's own."""

    dim: int
    min: int | None
    max: int | None


def mark_dynamic(
    t: torch.Tensor,
    dim: int | Sequence[int] | Mapping[int, Any],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Declares that sizes of ``t`` differ from call to call.

    ``dim``: one dimension, several, or a mapping as in the ``dynamic_shapes`` of ``torch.export``. A
    mapping has ``torch.export.Dim(name, min=, max=)`` for a dimension, or one of ``Dim.DYNAMIC``,
    ``Dim.AUTO``, ``Dim.STATIC`` and ``None`` (static).

    ``min``, ``max``: the range, ends included, in which the captured function shall take one
    branch.

    Sizes are left open without it. With it, a call raises :class:`frametap.ConstraintError` if its
    recording would fix such a size or take another branch for a part of the range. The error names
    the line and the range that would fit. A backend that takes sizes as constants gets a symbol at
    once.

    Raises :class:`FrametapError` if ``t`` is not a tensor, ``dim`` is not a dimension of it, or a
    range has no size.
    """
    dims = _dims(t, dim, "mark_dynamic")
    for index, said in dims.items():
        low, high = min, max
        if said is not None:
            kind = _kind_of(said)
            if kind == "static":
                mark_static(t, index)
                continue
            if kind == "range":
                low, high = said.min, said.max
        _mark_dynamic(t, index, low, high)


def mark_static(t: torch.Tensor, dim: int | Sequence[int] | None = None) -> None:
    """Declares that sizes of ``t`` (all without ``dim``) are constants: another size is recorded
    again.
    """
    if dim is None:
        dim = range(t.dim())
    for index in _dims(t, dim, "mark_static"):
        _set_of(t, "_dynamo_static_indices").add(index)
        t._has_dynamo_dim_marking = True  # type: ignore[attr-defined]


def _mark_dynamic(t: torch.Tensor, index: int, low: int | None, high: int | None) -> None:
    size = t.shape[index]
    if low is not None and high is not None and low > high:
        raise FrametapError(
            f"mark_dynamic: dimension {index} has min={low} and max={high}; min must be at most max"
        )
    if (low is not None and size < low) or (high is not None and size > high):
        raise FrametapError(
            f"mark_dynamic: dimension {index} has {size}, outside of the range from "
            f"{0 if low is None else low} to {'any' if high is None else high} that is given for it"
        )
    _set_of(t, "_dynamo_dynamic_indices").add(index)
    ranges = _set_of(t, "_dynamo_dynamic_range")
    ranges -= {known for known in ranges if known.dim == index}
    ranges.add(_Range(index, low, high))
    for name in ("_dynamo_hint_overrides", "_specialize_on"):  # torch reads them beside the indices
        if not hasattr(t, name):
            setattr(t, name, {})
    t._specialize_on[index] = []  # type: ignore[attr-defined]
    t._has_dynamo_dim_marking = True  # type: ignore[attr-defined]


def _set_of(t: torch.Tensor, name: str) -> set[Any]:
    if not hasattr(t, name):
        setattr(t, name, set())
    found: set[Any] = getattr(t, name)
    return found


def _dims(t: Any, dim: Any, name: str) -> dict[int, Any]:
    """The dimensions, from 0 on, and what is said of each."""
    if not isinstance(t, torch.Tensor):
        raise FrametapError(f"{name}: a tensor expected, got {type(t).__name__}")
    said = {dim: None} if isinstance(dim, int) else dim
    if not isinstance(said, Mapping):
        said = dict.fromkeys(said)
    for index in said:
        if type(index) is not int or not -t.dim() <= index < t.dim():
            raise FrametapError(
                f"{name}: {index!r} is not a dimension of a tensor with {t.dim()} (-{t.dim()} to {t.dim() - 1})"
            )
    # In a mapping, None says something, as torch.export has it.
    static = isinstance(dim, Mapping)
    return {
        index % t.dim(): "static" if static and value is None else value
        for index, value in said.items()
    }


def _kind_of(said: Any) -> str:
    """Returns the kind of a value in a mapping of dimensions: "static", "dynamic" or "range"."""
    if said == "static":
        return "static"
    hint = getattr(said, "type", None)  # torch.export.Dim.AUTO and its like
    if hasattr(hint, "name"):
        return "static" if hint.name == "STATIC" else "dynamic"
    if isinstance(getattr(said, "min", None), int) and hasattr(said, "max"):
        return "range"
    raise FrametapError(
        f"mark_dynamic: for a dimension a torch.export.Dim or None expected, got {said!r:.60}"
    )
