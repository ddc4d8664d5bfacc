"""Puts tests/ itself on sys.path (pytest does so for a conftest's folder), so that tests share `fixtures` and `same`."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_state():
    """Each test starts with the same random state, and leaves no captured segment to the next one."""
    from fixtures.subject import frametap

    torch.manual_seed(0)
    yield
    frametap.reset()
