"""A part of torch's samples of its modules; `python tests/stress/module_samples.py` runs them all."""

from __future__ import annotations

import pytest

from .module_samples import all_modules, fault
from .samples import chosen


@pytest.mark.parametrize(
    ("part", "form"), list(enumerate(["module", "changed", "saved", "toggled", "made"]))
)
def test_modules_do_what_plain_python_does(part: int, form: str) -> None:
    modules = chosen(all_modules(), part, 20)
    faults = [text for one in modules if (text := fault(one, form=form, gradients=True, most=2))]
    assert not faults, "\n\n".join(faults)
