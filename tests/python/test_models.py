"""Whole models: one graph where one is owed, and in every case the numbers of plain PyTorch, forward and backward."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fixtures.models import MODELS, Case, available
from fixtures.subject import EAGER, frametap

PLAIN_INIT = nn.Module.__init__
MODES = ["eval", "train"]
ONE_GRAPH = [case for case in MODELS.values() if case.one_graph]
BROKEN = [case for case in MODELS.values() if not case.one_graph]


@pytest.fixture(autouse=True)
def plain_module_init(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once torch.compile has run in a process, it tags every module that is made: then a model that makes a loss
    module in its forward has a break there, rightly."""
    monkeypatch.setattr(nn.Module, "__init__", PLAIN_INIT)


def skip_if_absent(case: Case) -> None:
    if not available(case):
        pytest.skip(f"{case.package} is not installed")


def assert_same(got: Any, want: Any, where: str) -> None:
    """Same types, same keys in the same order, same bits."""
    assert type(got) is type(want), f"{where}: {type(got)} is not {type(want)}"
    if isinstance(want, Tensor):
        assert got.requires_grad == want.requires_grad, where
        torch.testing.assert_close(
            got,
            want,
            rtol=0,
            atol=0,
            equal_nan=True,
            check_stride=True,
            msg=lambda m: f"{where}: {m}",
        )
    elif isinstance(want, dict):
        assert list(got) == list(want), where
        for key in want:
            assert_same(got[key], want[key], f"{where}[{key!r}]")
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want), where
        for i, (one, other) in enumerate(zip(got, want, strict=True)):
            assert_same(one, other, f"{where}[{i}]")
    elif type(want).__module__.startswith("transformers"):
        # A cache: compare what it holds.
        assert_same(vars(got), vars(want), where)
    elif type(want) in (int, float, str, bool):
        assert got == want, where


def step(
    case: Case, model: Any, module: nn.Module, batch: int, backward: bool
) -> tuple[Any, dict[str, Tensor]]:
    """One call, as a user makes it, from a fixed random state; with the gradients of all parameters."""
    torch.manual_seed(7)
    module.zero_grad(set_to_none=True)
    inputs = case.inputs(batch)
    with torch.set_grad_enabled(backward):
        output = model(**inputs)
    if not backward:
        return output, {}
    case.loss(output).backward()
    return output, {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def check(case: Case, mode: str, batches: list[int]) -> Any:
    """Runs the captured model beside the plain one; returns the captured one."""
    plain = case.build().train(mode == "train")
    twin = copy.deepcopy(plain)
    captured = frametap.compile(twin)
    for call, batch in enumerate(batches):
        want, want_grads = step(case, plain, plain, batch, backward=mode == "train")
        got, got_grads = step(case, captured, twin, batch, backward=mode == "train")
        where = f"{case.name} {mode} call {call}"
        assert_same(got, want, where)
        assert_same(got_grads, want_grads, where + " grad")
        assert_same(dict(twin.named_buffers()), dict(plain.named_buffers()), where + " buffer")
    return captured


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", ONE_GRAPH, ids=lambda case: case.name)
def test_one_graph(case: Case, mode: str) -> None:
    skip_if_absent(case)
    captured = check(case, mode, [2, 2, 2])
    if EAGER:
        return
    report = frametap.explain(captured)
    segments = frametap.segments(captured)
    assert len(segments) == 1, str(report)
    assert segments[0].exit.kind == "return", str(report)
    assert report.break_count == 0, str(report)
    assert report.recordings == 1, str(report)
    assert report.hits == 2 - case.put_off, str(report)


@pytest.mark.parametrize("case", ONE_GRAPH, ids=lambda case: case.name)
def test_eval_with_gradients(case: Case) -> None:
    """Eval mode with gradients on takes other paths (the encoder's slow path, running statistics that are read)."""
    skip_if_absent(case)
    plain = case.build().eval()
    twin = copy.deepcopy(plain)
    captured = frametap.compile(twin)
    for call in range(3):
        assert_same(
            step(case, captured, twin, 2, backward=True),
            step(case, plain, plain, 2, backward=True),
            f"{case.name} call {call}",
        )
    if not EAGER:
        assert len(frametap.segments(captured)) == 1, str(frametap.explain(captured))


@pytest.mark.parametrize("case", ONE_GRAPH, ids=lambda case: case.name)
def test_other_batch_sizes(case: Case) -> None:
    """A batch size that decided no branch records nothing. A batch size that was read may."""
    skip_if_absent(case)
    check(case, "eval", [2, 3, 5, 2, 3])


@pytest.mark.parametrize("case", MODELS.values(), ids=lambda case: case.name)
def test_train_and_eval_flips(case: Case) -> None:
    skip_if_absent(case)
    plain = case.build()
    twin = copy.deepcopy(plain)
    captured = frametap.compile(twin)
    for call, mode in enumerate([True, False, True, False, False, True]):
        plain.train(mode)
        captured.train(mode)
        assert twin.training == mode
        assert_same(
            step(case, captured, twin, 2, backward=mode),
            step(case, plain, plain, 2, backward=mode),
            f"{case.name} call {call}",
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_equal_with_named_breaks(case: Case, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    skip_if_absent(case)
    captured = check(case, mode, [2, 2, 2, 3])
    if EAGER:
        return
    report = frametap.explain(captured)
    with capsys.disabled():
        print(f"\n{case.name} {mode}: {report.graph_count} graphs, {report.break_count} breaks")
        for broken in report.breaks:
            print(f"  {broken.position}: {broken.reason}")
    for broken in report.breaks:
        assert str(broken.reason)
        assert str(broken.position)
        assert str(broken.advice)


@pytest.mark.parametrize("name", ["resnet18", "encoder"])
def test_training_steps(name: str) -> None:
    """Five steps of SGD with momentum: the parameters stay equal, so nothing of them was baked in."""
    case = MODELS[name]
    plain = case.build().train()
    twin = copy.deepcopy(plain)
    captured = frametap.compile(twin)
    for model, module in ((plain, plain), (captured, twin)):
        torch.manual_seed(3)
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
        for batch in (2, 2, 3, 2, 3):
            optimizer.zero_grad()
            case.loss(model(**case.inputs(batch))).backward()
            optimizer.step()
    assert_same(dict(twin.state_dict()), dict(plain.state_dict()), name)


@pytest.mark.parametrize("name", ["bert_masked", "llama", "t5"])
def test_mask_decides(name: str) -> None:
    """transformers looks whether a mask hides anything: each answer is one graph, and the right one is taken."""
    case = MODELS[name]
    skip_if_absent(case)
    plain = case.build().eval()
    captured = frametap.compile(copy.deepcopy(plain))
    hidden = case.inputs(2)
    seen = {**hidden, "attention_mask": torch.ones_like(hidden["attention_mask"])}
    plain(
        **hidden
    )  # transformers fills caches of its own in the first call of a process, which runs plainly
    for call, inputs in enumerate([hidden, seen, hidden, seen]):
        with torch.no_grad():
            assert_same(captured(**inputs), plain(**inputs), f"{name} call {call}")
    if not EAGER:
        report = frametap.explain(captured)
        assert (report.recordings, report.hits, report.break_count) == (2, 2, 0), str(report)


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "mamba"])
def test_cache_passed_back(name: str) -> None:
    """A cache that was made in one call is filled further by the next ones."""
    case = MODELS[name]
    skip_if_absent(case)
    plain = case.build().eval()
    captured = frametap.compile(copy.deepcopy(plain))
    ids = case.inputs(2)["input_ids"]
    names = {"gpt2": "past_key_values", "mamba": "cache_params"}
    cache_name = names.get(name, "past_key_values")
    caches: dict[Any, Any] = {plain: None, captured: None}
    for step_number, (first, last) in enumerate([(0, 4), (4, 5), (5, 6), (6, 7), (7, 8)]):
        outputs = []
        for model in (plain, captured):
            with torch.no_grad():
                output = model(
                    input_ids=ids[:, first:last],
                    **{cache_name: caches[model]},
                    use_cache=True,
                )
            caches[model] = output[cache_name]
            outputs.append(output)
        assert_same(outputs[1], outputs[0], f"{name} step {step_number}")


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_generate(name: str) -> None:
    """Twenty tokens, twice: greedy, and drawn at random from the same state."""
    case = MODELS[name]
    skip_if_absent(case)
    plain = case.build().eval()
    captured = frametap.compile(copy.deepcopy(plain))
    ids = case.inputs(2)["input_ids"][:, :8]
    options = {"max_new_tokens": 20, "min_new_tokens": 20, "pad_token_id": 0}
    for sample in (False, True, False):
        tokens = []
        for model in (plain, captured):
            torch.manual_seed(5)
            mask = torch.ones_like(ids)
            tokens.append(model.generate(ids, attention_mask=mask, do_sample=sample, **options))
        assert tokens[1].shape == (2, 28)
        assert_same(tokens[1], tokens[0], f"{name} sample={sample}")
    if not EAGER:
        assert frametap.explain(captured).hits > 0
