"""The quick form of the fault sweeps; `tools/dev stress` runs them all."""

from __future__ import annotations

import os

import pytest
import torch

from fixtures.subject import EAGER, frametap

from .sweep import finished, pieces, program_names, quick_faults

pytestmark = pytest.mark.skipif(EAGER, reason="there is nothing to force")


def test_faults_change_nothing() -> None:
    problems = {
        pair: problem
        for sweep in finished(pieces(program_names(), quick_faults))
        for pair, problem in sweep.problems.items()
    }
    assert not problems, "\n".join(
        f"--- {fault} {name}\n{problem}" for (fault, name), problem in problems.items()
    )


@pytest.mark.skipif(os.environ.get("FRAMETAP_FAST_PATHS") == "off", reason="there are none")
def test_forced_errors_leave_fast_paths_on() -> None:
    """Layers are repeated as in production, and an op of a repeated layer raises as the interpreted one does."""

    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() + 1

    model = torch.nn.Sequential(*(Layer() for _ in range(8)))
    x = torch.ones(2)
    met = []
    for n in (*range(1, 17), 1000):
        for function in (model, frametap.compile(model)):
            before = frametap._C.repeated_module_calls()
            frametap._C.stress(f"raise:{n}")
            try:
                function(x)
                said = "nothing"
            except RuntimeError as error:
                said = str(error)
            met.append((said, frametap._C.stress("")))
        assert met[-1] == met[-2], n
    assert met[-1] == ("nothing", 16)
    assert frametap._C.repeated_module_calls() > before


def test_memory_that_ends_while_an_effect_is_made() -> None:
    """Nothing else is made after that: a constructor called with the exception pending raises SystemError."""
    for sweep in finished(pieces(["one_tensor_in_a_cache"], lambda _: ["alloc:12", "alloc:24"])):
        assert not sweep.problems


def test_memory_that_ends_while_a_class_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a struct sequence has hidden fields: made without them, its end reads past its memory."""
    monkeypatch.setenv("PYTHONMALLOC", "debug")  # so that no luck is needed to see it
    monkeypatch.delenv("FRAMETAP_SELF_CHECK")  # it allocates, too
    faults = ["alloc:9", "alloc:21"]
    for sweep in finished(pieces(["struct_sequences_with_hidden_fields"], lambda _: faults)):
        assert not sweep.problems
