"""A part of torch's samples of its ops; `python tests/stress/op_samples.py` runs them all."""

from __future__ import annotations

import pytest

from .op_samples import all_ops, fault
from .samples import chosen


@pytest.mark.parametrize("part", range(4))
def test_ops_give_what_plain_python_gives(part: int) -> None:
    faults = [text for op in chosen(all_ops(), part, 4) if (text := fault(op, most=6))]
    assert not faults, "\n\n".join(faults)


@pytest.mark.parametrize("form", ["function", "inplace"])
def test_ops_have_the_gradients_of_plain_python(form: str) -> None:
    ops = chosen(all_ops(), 0, 4)
    faults = [text for op in ops if (text := fault(op, form=form, gradients=True, most=4))]
    assert not faults, "\n\n".join(faults)


def test_saved_ops_give_what_plain_python_gives() -> None:
    ops = chosen(all_ops(), 0, 30)
    faults = [text for op in ops if (text := fault(op, form="saved", most=4))]
    assert not faults, "\n\n".join(faults)
