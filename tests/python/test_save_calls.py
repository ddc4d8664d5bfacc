"""Calls of saved programs bind as the original's, and what a model writes to itself is saved or refused in plain words."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

import frametap


def saved(f, path, *calls):
    g = frametap.compile(f)
    for call in calls:
        g(*call)
    frametap.save(g, path)
    return frametap.load(path)


def n2(x, n, n2):
    if n + n2 > 3:
        return x * 2
    return x


def dotted(x, l, n):
    if l["n"] + l["L.n"] * n > 3 and n > 1:
        return x * 2
    return x


def sizes(x, xx):
    if x.size(0) + xx.size(0) > 3 and xx.size(0) > x.size(0):
        return x * 2
    return x + 1


def waves(x, phase):
    if math.cos(phase) * 2 > math.sin(phase):
        return x * 2
    return x + 1


X = torch.ones(2)


@pytest.mark.parametrize(
    ("f", "args", "others"),
    [
        (n2, (X, 2, 5), [(X, 1, 9), (X, 5, 2)]),
        (dotted, (X, {"n": 1, "L.n": 2}, 3), [(X, {"n": 2, "L.n": 2}, 2)]),
        (sizes, (X, torch.ones(4)), [(X, torch.ones(5)), (torch.ones(3), torch.ones(7))]),
        (waves, (X, 0.5), [(X, 0.75)]),
    ],
    ids=["prefix", "key_like_a_name", "sizes", "waves"],
)
def test_names_in_formulas(f, args, others, tmp_path):
    loaded = saved(f, tmp_path / "p", args)
    for call in (args, *others):
        assert torch.equal(loaded(*call), f(*call))


def modes(x, mode, device):
    if mode == "fast" and device == torch.device("cpu"):
        x = x + 1
    return x


def test_constants_are_checked_by_type_and_value(tmp_path):
    cpu = torch.device("cpu")
    loaded = saved(modes, tmp_path / "p", (X, "fast", cpu))
    assert torch.equal(loaded(X, "fast", cpu), modes(X, "fast", cpu))
    for mode, device in (("slow", cpu), ("fast", "cpu"), ("fast", torch.device("meta"))):
        with pytest.raises(frametap.ArtifactError, match="argument (mode|device)"):
            loaded(X, mode, device)


def both(x, y):
    if x.sum() > 0 and not y.sum() > 0:
        return x + y
    if x.max() > 5 or y.max() > 5:
        return x * y
    return x - y


def test_branches_of_every_form_are_saved(tmp_path):
    """`and`, `or` and `not` are other instructions than `if`, and have other places to continue at."""
    calls = [(X * a, X * b) for a in (-1.0, 1.0, 6.0) for b in (-1.0, 1.0, 6.0)]
    loaded = saved(both, tmp_path / "p", *calls)
    for call in calls:
        assert torch.equal(loaded(*call), both(*call))


def test_a_formula_still_refuses(tmp_path):
    loaded = saved(n2, tmp_path / "p", (X, 2, 5))
    with pytest.raises(frametap.ArtifactError, match="argument n"):
        loaded(X, 1, 1)


def container(x, shape=(2,), n=3):
    return x.reshape(shape) * n


def deep(x, opts={"a": [1, (2, 3)]}, *rest, k=(1.5,), **more):  # noqa: B006
    return x * opts["a"][1][0] + k[0] + len(rest) + more.get("z", 0)


def only(x, /, y=2, *, z=3):
    return x * y + z


ACTS = [torch.relu, nn.ReLU(), torch.ones(2)]


def test_containers_are_defaults(tmp_path):
    loaded = saved(container, tmp_path / "p", (X,), (X, (2,), 4), (X, (1, 2)))
    for args, kwargs in [
        ((X,), {}),
        ((X, (2,)), {}),
        ((X, (2,), 5), {}),
        ((X,), {"n": 4}),
        ((X, (1, 2)), {"n": 4}),
    ]:
        assert torch.equal(loaded(*args, **kwargs), container(*args, **kwargs))
    assert str(loaded.__signature__) == "(x, shape=(2,), n=3)"
    with pytest.raises(frametap.ArtifactError, match="argument shape"):
        loaded(X, 2)


def keyed(self, values):
    return values["b"][0] * self + values["b"][1]["c"][1] + values["e f"]


def test_a_parameter_called_self_and_names_of_nested_items(tmp_path):
    def values(n):
        return {"b": [n, {"c": (1, n)}], "e f": X}

    g = saved(keyed, tmp_path / "program", (X, values(2)))
    for n in (2, 5):
        assert torch.equal(g(self=X, values=values(n)), keyed(X, values(n)))


def test_every_kind_of_parameter(tmp_path):
    loaded = saved(deep, tmp_path / "p", (X,), (X, {"a": [1, (2, 3)]}, 7))
    assert torch.equal(loaded(X), deep(X))
    assert torch.equal(loaded(X, {"a": [1, (2, 3)]}, 7), deep(X, {"a": [1, (2, 3)]}, 7))
    loaded = saved(only, tmp_path / "q", (X,))
    for args, kwargs in [((X, 5), {}), ((X,), {"y": 5, "z": 1}), ((X,), {"z": 7})]:
        assert torch.equal(loaded(*args, **kwargs), only(*args, **kwargs))


@pytest.mark.parametrize("default", ACTS, ids=["function", "module", "tensor"])
def test_an_object_as_default_keeps_its_place(default, tmp_path):
    def f(x, act=default, n=3):
        return (act(x) if callable(act) else act + x) * n

    loaded = saved(f, tmp_path / "p", (X,))
    assert torch.equal(loaded(X), f(X))
    assert torch.equal(loaded(X, n=4), f(X, n=4))
    with pytest.raises(frametap.ArtifactError, match="argument act is fixed"):
        loaded(X, 4)


class Model(nn.Module):
    def forward(self, x, y=1):
        return x * y


def bad_calls(f):
    for args, kwargs in [((), {}), ((X, 1, 2, 3, 4), {}), ((X,), {"nope": 1}), ((X,), {"x": 1})]:
        try:
            f(*args, **kwargs)
        except TypeError as error:
            yield str(error)


@pytest.mark.parametrize("f", [only, n2, container])
def test_wrong_calls_of_functions_have_pythons_words(f, tmp_path):
    loaded = saved(f, tmp_path / "p", (X, 1, 1)[: f.__code__.co_argcount if f is n2 else 1])
    assert list(bad_calls(loaded)) == list(bad_calls(f))


def test_wrong_calls_of_models_have_pythons_words(tmp_path):
    model = Model()
    loaded = saved(model, tmp_path / "p", (X,))
    assert list(bad_calls(loaded)) == list(bad_calls(model.forward))


class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(2))
        self.inner = nn.BatchNorm1d(2, affine=False)
        self.seen = None
        self.count = 0

    def forward(self, x):
        self.steps = self.steps + 1
        self.mean = self.mean * 0.5 + x.mean(0)
        self.mean.mul_(2)
        self.count += 1
        return self.inner(x) + self.mean / self.steps, self.count


def test_buffers_that_are_assigned(tmp_path):
    torch.manual_seed(0)
    model = Buffers()
    compiled = frametap.compile(model)
    xs = [torch.randn(4, 2) for _ in range(6)]
    for x in xs[:3]:
        compiled(x)
    frametap.save(compiled, tmp_path / "p")
    loaded = frametap.load(tmp_path / "p")
    for x in xs[3:]:
        want, got = model(x), loaded(x)
        torch.testing.assert_close(got[0], want[0], rtol=0, atol=0)
        assert got[1] == want[1]
    state = loaded.state_dict()
    assert torch.equal(state["self.steps"], model.steps)
    assert torch.equal(state["self.mean"], model.mean)


def test_a_buffer_called_unused_is_a_weight(tmp_path):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("unused", torch.full((2,), 3.0))
            self.scale = nn.Parameter(torch.full((2,), 5.0))

        def forward(self, x, scale=torch.full((2,), 7.0)):  # noqa: B008
            return x * self.unused + scale * self.scale

    model = M()
    loaded = saved(model, tmp_path / "p", (X,))
    assert torch.equal(loaded(X), model(X))


class Holds(nn.Module):
    def forward(self, x):
        self.items = [x * 2]
        return x * 2


class Global(nn.Module):
    def forward(self, x):
        global LAST
        LAST = x * 2
        return x * 2


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        last = None

        def keep(x):
            nonlocal last
            last = x

        self.keep = keep

    def forward(self, x):
        self.keep(x * 2)
        return x * 2


class Removes(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {"a": 1}

    def forward(self, x):
        self.seen["a"] = [x]
        return x * 2


class Exchanges(nn.Module):
    def __init__(self):
        super().__init__()
        self.average = nn.Parameter(torch.ones(2))

    def forward(self, x):
        y = x * self.average
        self.average.data = self.average.data * 0.5
        return y


KINDS = [
    (Exchanges, "assigns self.average.data"),
    (Holds, "assigns self.items"),
    (Global, "assigns the global LAST"),
    (Outer, "a variable of an outer function"),
    (Removes, "assigns self.seen['a']"),
]


@pytest.mark.parametrize(("kind", "words"), KINDS)
def test_other_changes_are_refused_in_the_users_words(kind, words, tmp_path):
    f = frametap.compile(kind())
    f(X)
    f(X)
    with pytest.raises(frametap.ArtifactError) as raised:
        frametap.save(f, tmp_path / "p")
    text = str(raised.value)
    assert words in text
    assert "const 0" not in text
    assert "_buffers" not in text
    assert re.search(r" at \S*(forward|keep):\d+", text)
