"""Names in exported modules: whatever inputs and overloads are called, and whatever frame of the program runs."""

from __future__ import annotations

import difflib
import keyword

import pytest
import torch

import frametap
from frametap import _C, fx

NAMES = [
    "0",
    "1",
    "in",
    "in_",
    "self",
    "self_",
    "torch",
    "inf",
    "class",
    "None",
    "__debug__",
    "__init__",
    "x.1",
]
NAMES += [
    "print",
    "ü",
    "_",
    "__",
    "a b",
    "forward",
    "arg",
    "arg_1",
    "device",
    "match",
    *keyword.kwlist,
]
NAMES = list(dict.fromkeys(NAMES))


def own_backend(gm, examples):
    return gm.forward


@pytest.mark.parametrize("backend", ["eager", "aot_eager", own_backend])
def test_any_key_of_a_dict_is_a_placeholder(backend):
    values = {name: torch.tensor([float(i)]) for i, name in enumerate(NAMES)}
    f = frametap.compile(lambda d: [v * 2 for v in d.values()], backend=backend)
    for _ in range(3):
        assert [v.item() for v in f(values)] == [2.0 * i for i in range(len(NAMES))]


@pytest.mark.parametrize(
    "given",
    [
        {"a": [torch.ones(2), torch.ones(2)], "b": torch.ones(2)},
        {"in": torch.ones(2), "in_": torch.ones(2)},
        {"self": torch.ones(2)},
        {"": torch.ones(2), " ": torch.ones(2), "1": torch.ones(2), "-1": torch.ones(2)},
    ],
    ids=["list", "keyword", "self", "no_identifier"],
)
def test_names_do_not_collide(given):
    def f(d):
        total = torch.zeros(2)
        for v in d.values():
            total = total + (v[0] + v[1] if isinstance(v, list) else v)
        return total

    g = frametap.compile(f, backend="eager")
    for _ in range(3):
        assert torch.equal(g(given), f(given))


def test_placeholders_of_a_graph_are_distinct_and_legal():
    text = "graph (%self : f32[2], %in : f32[2], %__debug__ : f32[2], %0 : f32[2], %1 : f32[2]) {\n"
    text += "  %a = aten.add.Tensor(%self, %in)\n  %b = aten.add.Tensor(%0, %1)\n"
    text += "  %c = aten.add.Tensor(%a, %__debug__)\n  return %b, %c\n}\n"
    module = fx.to_fx(_C.parse_graph(text))
    names = [n.target for n in module.graph.nodes if n.op == "placeholder"]
    assert len(set(names)) == 5
    assert all(n.isidentifier() and not keyword.iskeyword(n) and n != "self" for n in names)
    assert [v.tolist() for v in module(*(torch.full((2,), float(i)) for i in range(5)))] == [
        [7, 7],
        [3, 3],
    ]


@pytest.mark.parametrize("backend", ["native", "eager", own_backend])
def test_overload_named_like_a_keyword(backend):
    def f(x):
        return x.random_(-10, 10), torch.empty(3).random_(2, 5)

    g = frametap.compile(f, backend=backend)
    for seed in range(4):
        torch.manual_seed(seed)
        want = f(torch.zeros(3))
        torch.manual_seed(seed)
        got = g(torch.zeros(3))
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


FRAMES = {
    "none": {"__builtins__": {}},
    "few": {"__builtins__": {"len": len}},
    "own_import": {"__builtins__": {"__import__": None}},
}


@pytest.mark.parametrize("backend", ["native", "reference", "eager", own_backend])
@pytest.mark.parametrize("frame", FRAMES)
def test_frames_with_builtins_of_their_own(frame, backend):
    f = frametap.compile(eval("lambda x: x + 1", dict(FRAMES[frame])), backend=backend)
    for _ in range(3):
        assert f(torch.ones(2)).tolist() == [2, 2]


def test_the_programs_import_is_not_called():
    called = []
    names = {"__builtins__": {"__import__": lambda *args: called.append(args)}}
    f = frametap.compile(eval("lambda x: x + 1", names), backend=own_backend)
    assert [f(torch.ones(1)).item() for _ in range(3)] == [2, 2, 2]
    assert called == []


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_named_tuples_are_made_in_such_a_frame(backend):
    find = frametap.compile(
        difflib.SequenceMatcher(None, "abc", "abd").find_longest_match, backend=backend
    )
    for _ in range(3):
        assert tuple(find()) == (0, 0, 2)


def test_a_fault_of_compiling_in_such_a_frame_says_what_it_was():
    def broken(gm, examples):
        raise ValueError("not today")

    f = frametap.compile(eval("lambda x: x + 1", {"__builtins__": {}}), backend=broken)
    with pytest.raises(frametap.BackendError, match="ValueError: not today"):
        f(torch.ones(2))


def test_an_overload_named_by_a_keyword_is_left_to_python_under_compilers() -> None:
    """AOTAutograd writes its name into Python code."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2, x.clone().random_(3, 4) + 1

    compiled = frametap.compile(f, backend="aot_eager")
    for size in (2, 2, 3, 2):
        got = compiled(torch.ones(size))
        assert torch.equal(got[0], torch.full((size,), 2.0))
        assert torch.equal(got[1], torch.full((size,), 4.0))
