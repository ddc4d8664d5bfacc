"""Puts tests/ itself on sys.path (pytest does so for a conftest's folder), so that tests share `fixtures` and `same`.

Everything under test checks itself against the real frame and the real objects (frame_eval/session/self_check.h).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from fixtures import torch_ao_hidden

os.environ.setdefault("FRAMETAP_SELF_CHECK", "1")

HIDES_TORCH_AO = os.environ.get("FRAMETAP_TEST_WITHOUT_TORCH_AO") == "1"
if HIDES_TORCH_AO:
    torch_ao_hidden.hide()


_plain_methods: dict[str, object] = {}  # of nn.Module, before any test has used torch.compile


def plain_modules(torch: ModuleType) -> None:
    """Puts back the constructors of nn.Module, which torch.compile replaces for good by ones that keep books."""
    module = torch.nn.Module
    for name in ("__init__", "__setstate__"):
        plain = _plain_methods.setdefault(name, vars(module)[name])
        if vars(module)[name] is not plain:
            setattr(module, name, plain)
            module.___needs_generation_tag_patch = True  # torch.compile may replace them again


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """One thread, the same random state, and no captured segment of the test before.

    Tests that need neither torch nor the extension (layout, tables) must run without them.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        plain_modules(torch)
    if HIDES_TORCH_AO:
        torch_ao_hidden.hide_again()
    yield
    assert sys.exc_info()[1] is None, "an exception is still being handled after the test"
    frametap = sys.modules.get("frametap")
    if reset := getattr(frametap, "reset", None):
        reset()
