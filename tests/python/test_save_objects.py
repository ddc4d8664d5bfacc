"""Saved programs of models as libraries write them: decorated functions, results of classes, branches on elements."""

from __future__ import annotations

import collections
import dataclasses
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import frametap

Reload = Callable[..., Any]


@pytest.fixture
def reload(tmp_path: Path) -> Reload:
    def through_a_file(captured: Any, **options: Any) -> Any:
        frametap.save(captured, tmp_path / "program.frametap")
        return frametap.load(tmp_path / "program.frametap", **options)

    return through_a_file


def captured(model: Any, *calls: Any) -> Any:
    compiled = frametap.compile(model)
    with torch.no_grad():
        for call in calls:
            compiled(call)
            compiled(call)
    return compiled


# -- functions that have the same name --


def keeping_the_name(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return function(self, *args, **kwargs)

    return wrapper


def taking_all(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        assert len(args) == 2
        return function(*args, **kwargs)

    return wrapper


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    @keeping_the_name
    @keeping_the_name
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.linear(x) * scale


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    @taking_all
    @keeping_the_name
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.inner(x, scale=2.0).relu() * scale


@pytest.mark.parametrize("model", [Inner, Outer])
def test_decorators_that_keep_the_name(reload: Reload, model: Any) -> None:
    live = captured(model().eval(), torch.randn(2, 8))
    program = reload(live)
    for rows in (2, 5):
        x = torch.randn(rows, 8)
        assert torch.equal(program(x), live(x))
    with pytest.raises(frametap.ArtifactError, match="args"):
        program(x, 3.0)


def test_a_wrapper_that_is_replaced_is_noticed(reload: Reload) -> None:
    class Replaced(nn.Module):
        @keeping_the_name
        def forward(self, x: Tensor) -> Tensor:
            return self.part(x)

        @keeping_the_name
        def part(self, x: Tensor) -> Tensor:
            return x + 1

    live = captured(Replaced(), torch.ones(2))
    original = Replaced.part
    Replaced.part = keeping_the_name(lambda self, x: x + 2)
    Replaced.part.__qualname__, Replaced.part.__module__ = (
        original.__qualname__,
        original.__module__,
    )
    with pytest.raises(frametap.ArtifactError, match="holds for the model as it is now"):
        reload(live)


def test_all_arguments_as_the_result_are_refused(reload: Reload) -> None:
    class GivesAll(nn.Module):
        def forward(*args: Any) -> Any:
            return args[1] + 1, args

    with pytest.raises(frametap.ArtifactError, match=r"holds \*args, and so the model itself"):
        reload(captured(GivesAll(), torch.ones(2)))


# -- objects in results --


@dataclasses.dataclass
class Output(collections.OrderedDict):  # as transformers' ModelOutput
    logits: Any = None
    loss: Any = None
    cache: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) is not None:
                super().__setitem__(field.name, value)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("a loaded program runs no method of a class")


class Cache:
    def __init__(self, keys: Tensor) -> None:
        self.keys, self.layers = keys, [keys]

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


class Pair(NamedTuple):
    one: Tensor
    two: Tensor


def gives_output(x: Tensor) -> Output:
    return Output(logits=x + 1, cache=Cache(x * 2))


def gives_pair(x: Tensor) -> Pair:
    return Pair(x + 1, x * 2)


def gives_one_twice(x: Tensor) -> Any:
    cache, items = Cache(x + 1), [x * 2]
    return {"a": cache, "b": (cache, items), "c": items}


def test_an_output_without_its_class(reload: Reload) -> None:
    result = reload(captured(gives_output, torch.ones(2)))(torch.zeros(3))
    assert isinstance(result, dict)
    assert list(result) == ["logits", "cache"]
    assert torch.equal(result.logits, torch.ones(3))
    assert result["logits"] is result.logits
    assert result[0] is result.logits
    assert result[:1] == (result.logits,)
    assert result.loss is None
    assert result.cache is result["cache"]
    assert result.cache.layers[0] is result.cache.keys
    assert result.saved_class.endswith("test_save_objects.Output")
    with pytest.raises(KeyError):
        result["loss"]
    with pytest.raises(IndexError):
        result[2]


def test_an_output_with_its_class(reload: Reload) -> None:
    program = reload(captured(gives_output, torch.ones(2)), classes=[Output, Cache])
    result = program(torch.zeros(3))
    assert type(result) is Output
    assert type(result.cache) is Cache
    assert "saved_class" not in vars(result)
    assert result[0] is result.logits
    assert program(torch.zeros(3)) is not result


def test_a_named_tuple(reload: Reload) -> None:
    live = captured(gives_pair, torch.ones(2))
    for program in (reload(live), reload(live, classes=[Pair])):
        result = program(torch.zeros(3))
        one, two = result
        assert torch.equal(one, torch.ones(3))
        assert result.one is one
        assert result.two is two is result[1]
        with pytest.raises(AttributeError):
            _ = result.three
    assert type(result) is Pair


@pytest.mark.parametrize(
    "op",
    [lambda x: x.max(0), lambda x: torch.topk(x, 2), lambda x: x.cummin(0), torch.linalg.slogdet],
)
def test_results_of_torch_are_of_its_types(reload: Reload, op: Any) -> None:
    x = torch.arange(9.0).view(3, 3)
    got, want = reload(captured(op, x))(x), op(x)
    assert type(got) is type(want)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))
    assert repr(got) == repr(want)


def test_an_object_that_occurs_twice(reload: Reload) -> None:
    program = reload(captured(gives_one_twice, torch.ones(2)))
    result = program(torch.zeros(2))
    assert result["a"] is result["b"][0]
    assert result["c"] is result["b"][1]
    assert program(torch.zeros(2))["a"] is not result["a"]


def test_classes_that_do_not_fit(reload: Reload) -> None:
    live = captured(gives_pair, torch.ones(2))
    wrong = type("Pair", (), {"__module__": Pair.__module__, "__qualname__": Pair.__qualname__})
    with pytest.raises(frametap.ArtifactError, match="not a subclass of tuple"):
        reload(live, classes=[wrong])(torch.ones(2))
    with pytest.raises(frametap.ArtifactError, match="two classes named"):
        reload(live, classes=[Pair, wrong])
    with pytest.raises(frametap.ArtifactError, match="which is not a class"):
        reload(live, classes=[Pair(torch.ones(1), torch.ones(1))])


# -- branches on elements --


def if_counting(positions: Tensor) -> Tensor:
    if (positions[1:] - positions[:-1] != 1).any():
        return positions * 2.0
    return positions + 1.0


def packed(x: Tensor, positions: Tensor | None = None) -> Tensor:
    if positions is None:
        positions = torch.arange(x.shape[0])
    if (torch.diff(positions) != 1).any():
        return x * 2
    return x + 1


def test_branches_on_elements_are_checked(reload: Reload) -> None:
    counting, other = torch.arange(4), torch.tensor([0, 2, 1])
    both = reload(captured(if_counting, counting, other))
    assert torch.equal(both(torch.arange(6)), torch.arange(6) + 1.0)
    assert torch.equal(both(other), other * 2.0)
    one = reload(captured(if_counting, counting))
    assert torch.equal(one(torch.arange(6)), torch.arange(6) + 1.0)
    with pytest.raises(frametap.ArtifactError, match="positions"):
        one(other)


def test_branches_on_sizes_in_tensors(reload: Reload) -> None:
    program = reload(captured(packed, torch.ones(4)))
    assert torch.equal(program(torch.ones(7)), torch.full((7,), 2.0))


# -- models of libraries --


def test_int8_encoder_layer(reload: Reload) -> None:
    model = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    quantized = frametap.quantize(model, [(torch.randn(2, 5, 32),) for _ in range(3)])
    x = torch.randn(2, 5, 32)
    assert torch.equal(reload(quantized)(x), quantized(x))
    assert torch.backends.mha.get_fastpath_enabled()


def of_transformers() -> dict[str, Any]:
    transformers = pytest.importorskip("transformers")
    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 90,
        "max_position_embeddings": 64,
    }
    of_gpt2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 90, "n_positions": 64}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    return {
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**small)),
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**of_gpt2, **ends, use_cache=False)
        ),
        "gpt2 with its cache": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(**of_gpt2, **ends)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**small)),
    }


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt2 with its cache", "llama"])
@pytest.mark.parametrize("is_int8", [False, True], ids=["float", "int8"])
def test_models_of_transformers(reload: Reload, name: str, is_int8: bool) -> None:
    model = of_transformers()[name]().eval()
    ids = [torch.randint(0, 90, (2, 9)) for _ in range(3)]
    live = frametap.quantize(model, [(i,) for i in ids]) if is_int8 else captured(model, ids[0])
    with torch.no_grad():
        want = live(ids[1])
        program = reload(live)
        got = program(ids[1])
    assert list(got) == list(want)
    assert got.saved_class.endswith(type(want).__name__)
    for key, value in want.items():
        if isinstance(value, Tensor):
            assert torch.equal(got[key], value)
            assert torch.equal(getattr(got, key), value)
    with torch.no_grad():
        restored = reload(live, classes=[type(want)])(ids[1])
    assert type(restored) is type(want)
    assert torch.equal(restored[0], want[0])


def test_a_fresh_process_has_no_transformers(tmp_path: Path) -> None:
    model = of_transformers()["bert"]().eval()
    ids = torch.randint(0, 90, (2, 9))
    path = tmp_path / "bert.frametap"
    live = captured(model, ids)
    frametap.save(live, path)
    torch.save((ids, live(ids).last_hidden_state.detach()), tmp_path / "want.pt")
    code = (
        "import frametap, sys, torch\n"
        f"torch.set_num_threads({torch.get_num_threads()})\n"  # attention has other last bits with more
        f"ids, want = torch.load({str(tmp_path / 'want.pt')!r})\n"
        f"got = frametap.load({str(path)!r})(ids)\n"
        "assert torch.equal(got.last_hidden_state, want)\n"
        "assert 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
