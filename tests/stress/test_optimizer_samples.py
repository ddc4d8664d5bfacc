"""A part of torch's samples of its optimizers; `python tests/stress/optimizer_samples.py` runs them all."""

from __future__ import annotations

import pytest

from .optimizer_samples import all_optimizers, fault


@pytest.mark.parametrize("form", ["training", "step"])
def test_optimizers_do_what_plain_python_does(form: str) -> None:
    faults = [text for one in all_optimizers() if (text := fault(one, form=form, most=1))]
    assert not faults, "\n\n".join(faults)
