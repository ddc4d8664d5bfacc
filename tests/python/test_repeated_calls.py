"""Calls of modules that repeat another call of the recording (frame_eval/record/fast_paths/repeated_calls.cc).

The recording is the one that interpretation gives, whatever differs in one of the layers, before it or after it.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import itertools
import math
import re
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fixtures.models import MODELS, blocks
from fixtures.subject import frametap
from fixtures.switches import switched


@contextlib.contextmanager
def repeating(on: bool, self_check: bool = True) -> Iterator[None]:
    frametap._C.self_check(self_check)
    try:
        with switched(on, frametap._C.repeat_module_calls):
            yield
    finally:
        frametap._C.self_check(True)


LABEL = "a string of more than one word"


class Rich(nn.Module):
    """Reads its own things in many ways."""

    kind = "class attribute"

    def __init__(self) -> None:
        super().__init__()
        self.sub = nn.Linear(4, 4)
        self.other = nn.Linear(4, 4)
        self.act = nn.ReLU()
        self.norm = nn.LayerNorm(4)
        self.scale = 1.5
        self.number = 2
        self.flag = True
        self.name = "one"
        self.label = LABEL
        self.items = [0.5, 2.0]
        self.pair = (1, 2.0)
        self.table = {"a": 1.0, "b": 2.0}
        self.nested = {"rows": [[1.0], [2.0, 3.0]]}
        self.extra = None
        self.fn = F.silu
        self.register_buffer("shift", torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("gone", None)

    def helper(self, x: Tensor) -> Tensor:
        return x + 0.25

    def forward(
        self, x: Tensor, mask: Tensor | None = None, factor: float = 1.0, *, last: bool = False
    ) -> Tensor:
        y = self.sub(x)
        if self.flag:
            y = y + 1
        for item in self.items:
            y = y * item
        for key, value in self.table.items():
            y = y - value if key == "a" else y + value
        if "c" in self.table:
            y = y * 3
        if self.name == "one":
            y = y.abs()
        if self.label is LABEL:
            y = y + 3
        if self.number is self.pair[0]:
            y = y - 4
        y = y * self.scale + self.number
        y = y + self.nested["rows"][-1][-1] * len(self.nested["rows"])
        y = y + self.pair[0] * self.pair[1]
        if self.other is self.sub:
            y = y * 2
        if self.extra is not None:
            y = y + self.extra(y)
        if hasattr(self, "tag"):
            y = y - 7
        if self.gone is not None:
            y = y * self.gone
        if self.sub.weight.requires_grad and self.training:
            y = y + 0.125
        if mask is not None:
            y = y * mask
        if last:
            y = -y
        y = self.fn(y) if self.fn is not None else y
        y = self.helper(y) + self.shift
        y = self.act(self.norm(y)) * factor
        return y.view(y.shape[0], -1)


class OtherRich(Rich):
    def helper(self, x: Tensor) -> Tensor:
        return x - 0.5


class OtherLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


class Two(enum.IntEnum):
    TWO = 2


class Text(str):
    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


def _hook(module: nn.Module, args: object, out: Tensor) -> Tensor:
    return out * 3


def _callback(module: nn.Module) -> None:
    module.end = weakref.ref(module.sub.weight, print)


def _own_forward(module: Rich) -> None:
    module.forward = lambda x, *args, **kwargs: x + 100


def _own_label(module: Rich) -> None:
    module.label = LABEL[:5] + LABEL[5:]


def _set(name: str, value: object) -> Callable[[Rich], None]:
    def change(module: Rich) -> None:
        setattr(module, name, copy.deepcopy(value))

    return change


def _own(module: nn.Module, name: str, value: object) -> None:
    module.__dict__[name] = value


CHANGES: dict[str, Callable[[Rich], object]] = {
    "nothing": lambda m: None,
    "float": _set("scale", 2.5),
    "float of an int": _set("scale", 2),
    "negative zero": _set("scale", -0.0),
    "nan": _set("scale", math.nan),
    "int": _set("number", 3),
    "bool for an int": _set("number", True),
    "enum for an int": _set("number", Two.TWO),
    "flag": _set("flag", False),
    "truthy list for a flag": _set("flag", [0]),
    "string": _set("name", "two"),
    "equal string": _own_label,
    "another label": _set("label", "another"),
    "equal ints, one object": lambda m: setattr(m, "pair", (m.number, 2.0)),
    "subclass of str": _set("name", Text("one")),
    "longer list": _set("items", [0.5, 2.0, 3.0]),
    "empty list": _set("items", []),
    "item": lambda m: m.items.__setitem__(1, 5.0),
    "item of another type": lambda m: m.items.__setitem__(1, 3),
    "tuple for a list": _set("items", (0.5, 2.0)),
    "item of a tuple": _set("pair", (1, 3.0)),
    "value in a dict": lambda m: m.table.update(a=4.0),
    "new key": lambda m: m.table.update(c=1.0),
    "key gone": lambda m: m.table.pop("a"),
    "order of keys": _set("table", {"b": 2.0, "a": 1.0}),
    "ordered dict": _set("table", collections.OrderedDict(a=1.0, b=2.0)),
    "default dict": _set("table", collections.defaultdict(float, a=1.0, b=2.0)),
    "deep": lambda m: m.nested["rows"][-1].append(9.0),
    "deeper": lambda m: m.nested["rows"].append([1.0]),
    "one submodule twice": lambda m: setattr(m, "other", m.sub),
    "other class": lambda m: setattr(m, "__class__", OtherRich),
    "other class of a submodule": lambda m: setattr(m, "sub", OtherLinear(4, 4)),
    "class of a submodule assigned": lambda m: setattr(m.sub, "__class__", OtherLinear),
    "submodule without bias": lambda m: setattr(m, "sub", nn.Linear(4, 4, bias=False)),
    "bias removed": lambda m: setattr(m.sub, "bias", None),
    "another activation": lambda m: setattr(m, "act", nn.Tanh()),
    "inplace": lambda m: setattr(m.act, "inplace", True),
    "another norm": lambda m: setattr(m, "norm", nn.Identity()),
    "eps": lambda m: setattr(m.norm, "eps", 0.5),
    "extra module": lambda m: setattr(m, "extra", nn.Linear(4, 4)),
    "extra function": lambda m: setattr(m, "extra", torch.sin),
    "function": lambda m: setattr(m, "fn", F.gelu),
    "function of C": lambda m: setattr(m, "fn", torch.tanh),
    "lambda": lambda m: setattr(m, "fn", lambda x: x * 4),
    "no function": _set("fn", None),
    "tag": _set("tag", 1),
    "class attribute hidden": _set("kind", 3),
    "helper of its own": lambda m: _own(m, "helper", lambda x: x * 8),
    "forward of its own": _own_forward,
    "forward of a submodule": lambda m: setattr(m.sub, "forward", lambda x: x - 3),
    "buffer": lambda m: m.shift.add_(1),
    "new buffer": lambda m: setattr(m, "shift", torch.arange(4.0)),
    "double buffer": lambda m: setattr(m, "shift", m.shift.double()),
    "buffer of another rank": lambda m: setattr(m, "shift", m.shift[None]),
    "buffer of another size": lambda m: setattr(m, "shift", torch.ones(1)),
    "expanded buffer": lambda m: setattr(m, "shift", torch.ones(1).expand(4)),
    "buffer with an offset": lambda m: setattr(m, "shift", torch.arange(8.0)[4:]),
    "buffer that was none": lambda m: setattr(m, "gone", torch.full((4,), 2.0)),
    "buffer requires grad": lambda m: m.shift.requires_grad_(),
    "buffer with an attribute": lambda m: setattr(m.shift, "tag", 1),
    "parameter is frozen": lambda m: m.sub.weight.requires_grad_(False),
    "parameter in double": lambda m: m.double(),
    "parameter transposed": lambda m: setattr(
        m.sub, "weight", nn.Parameter(m.sub.weight.detach().t())
    ),
    "parameter attribute": lambda m: setattr(m.sub.weight, "tag", 1),
    "no parameter": lambda m: (
        setattr(m.sub, "weight", m.sub.weight) or m.sub._parameters.update(bias=torch.ones(4))
    ),
    "parameter hidden": lambda m: _own(m.sub, "bias", None),
    "submodule hidden": lambda m: _own(m, "act", torch.sigmoid),
    "training": lambda m: m.train(),
    "training of a submodule": lambda m: m.sub.train(),
    "forward hook": lambda m: m.register_forward_hook(_hook),
    "forward hook of a submodule": lambda m: m.sub.register_forward_hook(_hook),
    "pre-hook of a submodule": lambda m: m.act.register_forward_pre_hook(
        lambda mod, args: (args[0] + 1,)
    ),
    "weak reference with a callback": _callback,
    "slot of _modules": lambda m: m._modules.update(act=nn.Sigmoid()),
    "parametrized": lambda m: nn.utils.parametrize.register_parametrization(
        m.sub, "weight", nn.Tanh()
    ),
    "weight norm": lambda m: nn.utils.parametrizations.weight_norm(m.sub),
    "spectral norm, old": lambda m: nn.utils.weight_norm(m.sub),
}


def _stack(
    layers: int, change: Callable[[Rich], object] | None = None, at: int = 3
) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(*(Rich() for _ in range(layers))).eval()
    if change is not None:
        change(model[at])
    return model


def _outcome(f: Callable[[Tensor], Tensor], x: Tensor) -> object:
    try:
        out = f(x)
        grads = []
        if out.requires_grad:
            out.sum().backward()
            parameters = f.parameters() if isinstance(f, nn.Module) else f._original.parameters()
            for parameter in parameters:
                grads.append(None if parameter.grad is None else parameter.grad.clone())
                parameter.grad = None
        return out.detach().clone(), grads
    except Exception as error:  # noqa: BLE001 - what is raised is compared
        return type(error), str(error).splitlines()[0]


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return (
            a.dtype == b.dtype
            and a.shape == b.shape
            and torch.allclose(a, b, equal_nan=True, atol=1e-6)
        )
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return a == b


@pytest.mark.parametrize("self_check", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_layer_that_is_different(name: str, grad: bool, self_check: bool) -> None:
    x = torch.linspace(-1, 1, 8).view(2, 4)
    with torch.set_grad_enabled(grad), repeating(True, self_check):
        for at in (0, 1, 3, 5):
            expected = _outcome(_stack(6, CHANGES[name], at), x)
            captured = frametap.compile(_stack(6, CHANGES[name], at))
            for _ in range(3):
                assert _same(_outcome(captured, x), expected), f"layer {at}"


@pytest.mark.parametrize("name", CHANGES)
def test_a_layer_that_changes(name: str) -> None:
    x = torch.linspace(-1, 1, 8).view(2, 4)
    with torch.no_grad(), repeating(True, self_check=False):
        for at in (2, 5):
            plain, model = _stack(6), _stack(6)
            captured = frametap.compile(model)
            for _ in range(2):
                assert _same(_outcome(captured, x), _outcome(plain, x))
            for stack in (plain, model):
                torch.manual_seed(1)
                CHANGES[name](stack[at])
            expected = _outcome(plain, x)
            for _ in range(3):
                assert _same(_outcome(captured, x), expected), f"layer {at}"


@pytest.mark.parametrize("name", CHANGES)
def test_graph_and_guards_are_those_of_interpretation(name: str) -> None:
    x = torch.linspace(-1, 1, 8).view(2, 4)
    texts = []
    model = _stack(6, CHANGES[name])
    for on in (True, False):
        frametap.reset()
        with torch.no_grad(), repeating(on, self_check=False):
            captured = frametap.compile(model)
            for _ in range(2):  # the first imports what is imported late
                frametap.reset(captured)
                _outcome(captured, x)
            lines = [line for s in frametap.segments(captured) for line in str(s).splitlines()]
            # An object that was read before the first change may be the object that is changed.
            texts.append([line for line in lines if ": is not L." not in line])
    assert texts[0] == texts[1]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", ["resnet18", "encoder", "unet", "vit", "gpt2"])
def test_graphs_of_models_are_those_of_interpretation(name: str, train: bool) -> None:
    case = MODELS[name]
    model, inputs = case.build().train(train), case.inputs(2)
    graphs = []
    for on in (True, False):
        frametap.reset()
        with torch.set_grad_enabled(train), repeating(on, self_check=False):
            captured = frametap.compile(model)
            for _ in range(2):
                frametap.reset(captured)
                captured(**inputs)
        texts = [str(segment) for segment in frametap.segments(captured)]
        graphs.append([re.sub(r"(?s)  guard \{.*?\n  \}\n", "", text) for text in texts])
    assert graphs[0] == graphs[1]


@pytest.mark.parametrize("self_check", [False, True])
def test_random_numbers_are_those_of_plain_python(self_check: bool) -> None:
    model = MODELS["encoder"].build().train()
    x = MODELS["encoder"].inputs(2)
    outs = []
    with repeating(True, self_check):
        for f in (model, frametap.compile(copy.deepcopy(model))):
            torch.manual_seed(3)
            outs.append([f(**x).detach() for _ in range(3)] + [torch.get_rng_state()])
    assert _same(outs[0], outs[1])


def test_layers_are_repeated() -> None:
    with torch.no_grad(), repeating(True, self_check=False):
        counts = []
        for layers in (4, 8):
            before = frametap._C.repeated_module_calls()
            frametap.compile(_stack(layers))(torch.ones(2, 4))
            counts.append(frametap._C.repeated_module_calls() - before)
        assert counts[1] - counts[0] == 4  # one call for each further layer, none for its parts


def test_a_first_input_without_grad_is_no_difference() -> None:
    case = blocks(8)
    with repeating(True, self_check=False):
        before = frametap._C.repeated_module_calls()
        frametap.compile(case.build().train())(**case.inputs(2))
        assert frametap._C.repeated_module_calls() - before == 7


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.requires_grad else x + 3


class Gated(nn.Module):
    """A part of it asks whether its input requires grad."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.sub = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.sub(self.gate(x)).relu()


@pytest.mark.parametrize("self_check", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("layer", [Gated, Gate, lambda: nn.Linear(4, 4), nn.ReLU])
def test_whether_inputs_require_grad(
    layer: Callable[[], nn.Module], requires_grad: bool, frozen: bool, self_check: bool
) -> None:
    torch.manual_seed(0)
    layers = [layer(), layer(), nn.Linear(4, 4), layer(), layer(), layer()]
    model = nn.Sequential(*layers)
    if frozen:
        layers[0].requires_grad_(False)
    captured = frametap.compile(copy.deepcopy(model))
    with repeating(True, self_check):
        for requires in (requires_grad, not requires_grad, requires_grad):
            x = torch.linspace(-1, 1, 8).view(2, 4).requires_grad_(requires)
            y = x.detach().clone().requires_grad_(requires)
            assert _same(_outcome(captured, x), _outcome(model, y))
            assert _same(x.grad, y.grad)


PAIRS = [pair for pair in itertools.combinations(CHANGES, 2)]


@pytest.mark.parametrize("start", range(8))
def test_two_layers_that_are_different(start: int) -> None:
    """Each pair of changes, one in each of two layers, a few of them in one process."""
    x = torch.linspace(-1, 1, 8).view(2, 4)
    with torch.no_grad(), repeating(True, self_check=bool(start % 2)):
        for first, second in PAIRS[start::64]:

            def build(first: str = first, second: str = second) -> nn.Sequential:
                model = _stack(6, CHANGES[first], 2)
                CHANGES[second](model[4])
                return model

            expected = _outcome(build(), x)
            captured = frametap.compile(build())
            for _ in range(2):
                assert _same(_outcome(captured, x), expected), (first, second)


class Caller(nn.Module):
    """Calls its layers in the given way."""

    def __init__(self, call: Callable[[Caller, Tensor], object]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Rich() for _ in range(6))
        self.call = call
        self.calls = 0
        self.log: list[object] = []
        self.mask = nn.Parameter(torch.ones(4))
        self.eval()

    def forward(self, x: Tensor) -> object:
        return self.call(self, x)


def _masks(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        x = layer(x, self.mask if i % 2 else None)
    return x


def _factors(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        x = layer(x, factor=1.0 + (i > 3))
    return x


def _keywords(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        x = layer(x, last=True) if i % 2 else layer(x, None, last=True)
    return x


def _same_argument(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        y = x + 1
        x = layer(y, y if i in (2, 4) else x + 2)
    return x


def _sizes(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        x = layer(torch.cat([x, x]) if i == 3 else x)
    return x


def _layouts(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        x = x * 1
        x = layer(x.t().contiguous().t() if i == 3 else x)
    return x


def _dtypes(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        x = layer.double()(x.double()) if i == 5 else layer(x)
    return x


def _twice(self: Caller, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = layer(layer(x))
    return x


def _counted(self: Caller, x: Tensor) -> Tensor:
    for layer in self.layers:
        self.calls += 1
        x = layer(x)
    return x


def _logged(self: Caller, x: Tensor) -> object:
    for layer in self.layers:
        x = layer(x)
        self.log.append(len(self.log))
    return x


def _changed_on_the_way(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        layer.scale = 1.0 + i
        x = layer(x)
    return x


def _items_on_the_way(self: Caller, x: Tensor) -> Tensor:
    for layer in self.layers:
        layer.items.append(0.5)
        x = layer(x)
        layer.items.pop()
    return x


def _states(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        with torch.set_grad_enabled(i % 2 == 0):
            x = layer(x)
    return x


def _autocast(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        with torch.autocast("cpu", enabled=i > 2):
            x = layer(x.float()).float()
    return x


def _decided(self: Caller, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = layer(x)
        if x.sum() > 0:
            x = x + 1
    return x


def _written(self: Caller, x: Tensor) -> Tensor:
    for i, layer in enumerate(self.layers):
        x = layer(x)
        if i == 3:
            x.add_(1)
    return x


def _kept(self: Caller, x: Tensor) -> object:
    outs = []
    for layer in self.layers:
        x = layer(x)
        outs.append(x)
    return [out is x for out in outs], outs


def _read_between(self: Caller, x: Tensor) -> object:
    scales = []
    for layer in self.layers:
        x = layer(x)
        scales.append((layer.scale, layer.table["a"], layer.sub.weight.shape[0], layer.items[-1]))
    return x, scales


def _shared(self: Caller, x: Tensor) -> Tensor:
    if self.layers[4].sub is not self.layers[1].sub:
        self.layers[4].sub = self.layers[1].sub
    for layer in self.layers:
        x = layer(x)
    return x


def _caught(self: Caller, x: Tensor) -> object:
    for i, layer in enumerate(self.layers):
        try:
            x = layer(x, torch.ones(3) if i == 4 else None)
        except RuntimeError:
            x = x * 2
    return x


CALLS = [
    _masks, _factors, _keywords, _same_argument, _sizes, _layouts, _dtypes, _twice, _counted, _logged,
    _changed_on_the_way, _items_on_the_way, _states, _autocast, _decided, _written, _kept, _read_between, _shared, _caught,
]  # fmt: skip


@pytest.mark.parametrize("self_check", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__.strip("_"))
def test_layers_that_are_called_differently(
    call: Callable[[Caller, Tensor], object], self_check: bool
) -> None:
    plain, model = Caller(call), Caller(call)
    with torch.no_grad(), repeating(True, self_check):
        captured = frametap.compile(model)
        for batch in (2, 2, 3, 2):
            x = torch.linspace(-1, 1, 4 * batch).view(batch, 4)
            assert _same(captured(x), plain(x))
            assert model.calls == plain.calls
            assert model.log == plain.log


class Bound(nn.Module):
    """Calls what it was given: a compiled method, of this module or another one."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.function: Callable[[Tensor], Tensor] | None = None

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.factor

    def forward(self, x: Tensor) -> Tensor:
        assert self.function is not None
        return self.function(x) + 1


def test_a_compiled_method_is_that_of_its_module() -> None:
    model = nn.Sequential(*(Bound(i + 1.0) for i in range(6)))
    for layer in model:
        layer.function = frametap.compile(layer.scaled)
    model[4].function = frametap.compile(model[0].scaled)
    x = torch.ones(2)
    with repeating(True, self_check=False):
        captured = frametap.compile(model)
        assert _same(captured(x), model(x))
        model[5].function = frametap.compile(model[1].scaled)
        assert _same(captured(x), model(x))
