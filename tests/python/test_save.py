"""``frametap.save`` and ``frametap.load`` on captured programs.

Laws: _settled_objects/S1, _settled_objects/S2, _save/S3, _saved_checks/S4.
"""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fixtures.models import MODELS
from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about files")]

SCALE = 3.0
TABLE = torch.arange(4.0)


@pytest.fixture
def reload(tmp_path: Path) -> Callable[[Any], Any]:
    """Saves and loads again."""

    def through_a_file(captured: Any) -> Any:
        path = tmp_path / "program.frametap"
        frametap.save(captured, path)
        return frametap.load(path)

    return through_a_file


def same(got: Any, want: Any) -> bool:
    if isinstance(want, Tensor):
        return isinstance(got, Tensor) and got.dtype == want.dtype and torch.equal(got, want)
    if isinstance(want, dict):
        return list(got) == list(want) and all(same(got[k], want[k]) for k in want)
    if isinstance(want, (tuple, list)):
        return (
            type(got) is type(want)
            and len(got) == len(want)
            and all(same(a, b) for a, b in zip(got, want, strict=True))
        )
    return type(got) is type(want) and got == want


# -- functions --


def plain(x: Tensor) -> Tensor:
    return (x + 1).relu()


def defaults(x: Tensor, scale: float = 2.0, *, name: str = "a") -> tuple[Tensor, str]:
    return x * scale, name


def nested(batch: dict[str, Tensor]) -> dict[str, Any]:
    return {"sum": batch["a"] + batch["b"], "parts": [batch["a"], (batch["b"] * 2, None, 3)]}


def of_globals(x: Tensor) -> Tensor:
    return F.relu(x * SCALE) + TABLE


def keywords(x: Tensor, **options: Any) -> Tensor:
    if "mask" in options:
        x = x * options["mask"]
    return x + 1


def optional(x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x if mask is None else x * mask


def pops(x: Tensor, **options: Any) -> Tensor:
    scale = options.pop("scale", None)
    options["seen"] = True
    return x if scale is None else x * 2


def many(*parts: Tensor) -> Tensor:
    return torch.cat(parts)


ones = torch.ones(4)


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (plain, [((ones,), {}), ((torch.zeros(2, 4) - 3,), {})]),
        (defaults, [((ones,), {}), ((ones, 2.0), {})]),
        (nested, [(({"a": ones, "b": ones * 2},), {})]),
        (of_globals, [((ones - 2,), {})]),
        (keywords, [((ones,), {}), ((ones,), {"mask": ones * 2})]),
        (pops, [((ones,), {}), ((ones,), {"scale": 1})]),
        (optional, [((ones,), {}), ((ones, ones * 2), {})]),
        (many, [((ones, ones * 2), {}), ((ones, ones, ones), {})]),
    ],
    ids=["plain", "defaults", "nested", "globals", "keywords", "pops", "optional", "many"],
)
def test_functions(reload: Any, function: Any, calls: Any) -> None:
    captured = frametap.compile(function)
    for args, kwargs in calls:
        captured(*args, **kwargs)
    program = reload(captured)
    for args, kwargs in calls:
        assert same(program(*args, **kwargs), function(*args, **kwargs))


def test_a_closure_and_a_method(reload: Any) -> None:
    weight = torch.randn(4, 4)

    def f(x: Tensor) -> Tensor:
        return x @ weight

    class Scaler:
        def __init__(self) -> None:
            self.factor = torch.tensor(3.0)

        def run(self, x: Tensor) -> Tensor:
            return x * self.factor

    method = Scaler().run
    for function in (f, method):
        captured = frametap.compile(function)
        captured(ones)
        program = reload(captured)
        assert torch.equal(program(ones), function(ones))


# -- modules --


@pytest.mark.parametrize("name", ["mlp", "resnet18", "encoder", "unet"])
def test_models(reload: Any, name: str) -> None:
    case = MODELS[name]
    model = case.build().eval()
    captured = frametap.compile(model)
    inputs = case.inputs(2)
    with torch.no_grad():
        captured(**inputs)
        program = reload(captured)
        assert same(program(**inputs), model(**inputs))
    assert set(program.program.weights) <= set(model.state_dict())


@pytest.mark.parametrize("is_on", [True, False])
def test_weights_that_require_gradients_choose_the_kernel_of_the_model(
    reload: Any, is_on: bool
) -> None:
    """A matmul of torch rounds in another way if its second operand requires gradients, in `torch.no_grad` too."""
    torch.manual_seed(0)
    model = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    captured = frametap.compile(model)
    query, key = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    with torch.set_grad_enabled(is_on):
        captured(query, key, key)
        program = reload(captured)
        got, want = program(query, key, key), model(query, key, key)
    assert same([one.detach() for one in got], [one.detach() for one in want])
    assert not any(one.requires_grad for one in (*got, *program.state_dict().values()))
    with torch.set_grad_enabled(is_on):
        query.requires_grad_()
        got, want = program(query, key, key), model(query, key, key)
    assert same([one.detach() for one in got], [one.detach() for one in want])
    assert [one.requires_grad for one in got] == [is_on, is_on]


def test_gradients_reach_the_arguments_alone(reload: Any) -> None:
    model = nn.Linear(4, 2)
    captured = frametap.compile(model)
    x = torch.randn(3, 4, requires_grad=True)
    captured(x)
    program = reload(captured)
    program(x).sum().backward()
    want = torch.autograd.grad(model(x).sum(), x)[0]
    assert torch.equal(x.grad, want)
    assert not any(one.requires_grad for one in program.state_dict().values())


def test_S2_weights_are_those_of_the_moment(reload: Any) -> None:
    model = nn.Linear(4, 4)
    captured = frametap.compile(model)
    with torch.no_grad():
        captured(ones)
        model.weight.zero_()
        program = reload(captured)
        assert torch.equal(program(ones), model.bias)
        model.bias.zero_()
        assert not torch.equal(program(ones), model.bias)
    assert sorted(program.state_dict()) == ["bias", "weight"]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if x.sum() > 0:
            return x + 1
        self.calls += 10
        return x - 1


def test_S2_a_counter_counts_on(reload: Any) -> None:
    model = Counting()
    captured = frametap.compile(model)
    for x in (ones, -ones, ones, -ones, ones):
        captured(x)
    program = reload(captured)
    assert program.state_dict()["self.calls"] == model.calls
    for x in (ones, ones, -ones, ones):
        assert torch.equal(program(x), model(x))
        assert program.state_dict()["self.calls"] == model.calls


def test_S4_the_mode_is_that_of_the_moment(reload: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    captured = frametap.compile(model)
    captured(ones)
    captured.eval()
    with pytest.raises(frametap.ArtifactError, match="training"):
        reload(captured)
    captured(ones)
    program = reload(captured)
    assert torch.equal(program(ones), model(ones))
    assert torch.equal(program(ones), program(ones))


def test_batch_norm_statistics_move_in_the_program(reload: Any) -> None:
    model = nn.BatchNorm1d(3)
    captured = frametap.compile(model)
    x = torch.randn(8, 3)
    captured(x)
    program = reload(captured)
    assert torch.equal(program(x), model(x))
    assert torch.equal(program.state_dict()["running_mean"], model.running_mean)


# -- branches on tensors --


def both(x: Tensor) -> Tensor:
    y = x * 2
    if y.sum() > 0:
        return y + 1
    return y - 1


def loop(x: Tensor) -> Tensor:
    while x.sum() < 100:
        x = x * 2
    return x


def word(x: Tensor) -> tuple[Tensor, str]:
    name = "down" if not x.sum() > 0 else "up"
    return x + 1, name


def connected(x: Tensor) -> Tensor:
    if x.sum() > 0 and x.max() < 5:
        return x + 1
    return x * 3


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (both, [ones, -ones]),
        (loop, [ones, ones * 200, ones * 3]),
        (word, [ones, -ones]),
        (connected, [ones, -ones, ones * 7]),
    ],
    ids=["if", "while", "not", "and"],
)
def test_S3_branches(reload: Any, function: Any, inputs: list[Tensor]) -> None:
    captured = frametap.compile(function)
    for _ in range(2):
        for x in inputs:
            captured(x)
    program = reload(captured)
    for x in inputs:
        assert same(program(x), function(x))


def test_S3_an_arm_that_was_never_taken(reload: Any) -> None:
    captured = frametap.compile(both)
    captured(ones)
    with pytest.raises(frametap.ArtifactError) as caught:
        reload(captured)
    text = str(caught.value)
    assert frametap.segments(captured)[0].name in text
    assert "both:" in text
    assert "when the branch is false was not captured" in text
    assert "call the function once so that the branch is false" in text


def test_digits_both_arms(reload: Any) -> None:
    model = MODELS["digits"].build().eval()
    captured = frametap.compile(model)
    images = torch.rand(4, 1, 8, 8)
    calls = [(images, {}), (images * 16, {}), (images, {"temperature": 2.0})]
    with torch.no_grad():
        for _ in range(2):
            for x, options in calls:
                captured(x, **options)
        captured(images * 16, temperature=2.0)
        program = reload(captured)
        for x, options in calls:
            assert same(program(x, **options), model(x, **options))
    with pytest.raises(frametap.ArtifactError, match="options|temperature"):
        program(images, temperature="warm")


# -- int8 --


def test_int8_models(reload: Any) -> None:
    model = MODELS["digits"].build().eval()
    images = torch.rand(4, 1, 8, 8)
    quantized = frametap.quantize(model, [images, images * 16])
    program = reload(quantized)
    for x in (images, images * 16):
        assert same(program(x), quantized(x))
    assert any(block.int8 for block in program.program.blocks)
    assert "frametap" in str(program.graphs())


def test_int8_files_hold_no_float_weights(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).eval()
    captured = frametap.compile(model)
    x = torch.randn(8, 256)
    with torch.no_grad():
        captured(x)
    quantized = frametap.quantize(model, [x])
    frametap.save(captured, tmp_path / "float")
    frametap.save(quantized, tmp_path / "int8")
    assert (tmp_path / "int8").stat().st_size < 0.4 * (tmp_path / "float").stat().st_size


@pytest.mark.parametrize(
    "convert",
    [
        lambda m, d: frametap.quantize(m, d),
        lambda m, d: frametap.quantize(m, d, scheme="dynamic"),
        lambda m, d: frametap.freeze(m, d),
        lambda m, d: frametap.freeze(m, d, dtype=torch.bfloat16),
    ],
    ids=["static", "dynamic", "float32", "bfloat16"],
)
def test_a_file_has_the_report(reload: Any, convert: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 4)).eval()
    converted = convert(model, [torch.randn(4, 8)])
    program = reload(converted)
    assert program.report == converted.report
    assert program.report
    assert program.report_text() == converted.report_text()
    if isinstance(program.report[0].get("sqnr"), float):
        assert program.output_sqnr == converted.output_sqnr


def test_a_program_in_float_has_no_report(reload: Any) -> None:
    captured = frametap.compile(nn.Linear(4, 4))
    captured(torch.randn(2, 4))
    program = reload(captured)
    assert (program.report, program.report_text(), program.output_sqnr) == ([], "", {})


def test_noise_that_nobody_asked_for_is_not_measured_by_saving(reload: Any) -> None:
    model = MODELS["digits"].build().eval()
    images = torch.rand(4, 1, 8, 8)
    quantized = frametap.quantize(model, [images, images * 16])
    assert reload(quantized).output_sqnr == {}
    assert quantized.output_sqnr
    assert reload(quantized).output_sqnr == quantized.output_sqnr


def test_a_fresh_process(tmp_path: Path) -> None:
    model = MODELS["digits"].build().eval()
    images = torch.rand(4, 1, 8, 8)
    quantized = frametap.quantize(model, [images, images * 16])
    frametap.save(quantized, tmp_path / "program")
    torch.save(images, tmp_path / "images")
    code = """
import sys, torch, frametap
torch.set_num_threads(1)
program, images = frametap.load(sys.argv[1]), torch.load(sys.argv[2])
assert not any("fixtures" in name for name in sys.modules)
torch.save([program(images), program(images * 16)], sys.argv[3])
"""
    files = [str(tmp_path / name) for name in ("program", "images", "outputs")]
    package = str(Path(frametap.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code, *files], check=True, env={"PYTHONPATH": package})
    got = torch.load(tmp_path / "outputs")
    assert same(got, [quantized(images), quantized(images * 16)])


# -- what is refused --


class Pair:
    __slots__ = ("one", "two")

    def __init__(self, one: Tensor, two: Tensor) -> None:
        self.one, self.two = one, two


def returns_object(x: Tensor) -> Pair:
    return Pair(x, x + 1)


def prints(x: Tensor) -> Tensor:
    y = x + 1
    print(end="")
    return y * 2


def appends(x: Tensor, log: list[int] = []) -> Tensor:  # noqa: B006
    log.append(1)
    return x + 1


def changes_its_keywords_and_prints(x: Tensor, **keywords: Any) -> Tensor:
    keywords["n"] = 2
    y = x + keywords["n"]
    print(end="")
    return y * 2


def marks_a_result(x: Tensor) -> Tensor:
    y = x + 1
    y.is_mine = True  # type: ignore[attr-defined]
    return y


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (changes_its_keywords_and_prints, "input_output.*only a branch on a tensor"),
        (marks_a_result, "it assigns the attribute is_mine of an object that it makes"),
        (returns_object, "type Pair.*cannot be saved"),
        (prints, "input_output.*only a branch on a tensor"),
        (appends, "it calls log.append, and a program keeps"),
    ],
)
def test_what_no_file_holds(reload: Any, tmp_path: Path, function: Any, words: str) -> None:
    captured = frametap.compile(function)
    captured(ones)
    with pytest.raises(frametap.ArtifactError, match=words) as caught:
        reload(captured)
    text = str(caught.value)
    assert frametap.segments(captured)[0].name in text
    assert f"{function.__name__}:" in text
    assert not list(tmp_path.iterdir())


class Classes(dict[str, Any]):
    """As transformers' table of activations."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key)()


CLASSES = Classes(relu=nn.ReLU)


def test_a_table_that_makes_objects_of_its_items(reload: Any) -> None:
    captured = frametap.compile(lambda x: CLASSES["relu"](x - 1))
    captured(ones)
    assert same(reload(captured)(ones * 3), ones * 2)


def test_an_attribute_that_holds_a_tensor(reload: Any) -> None:
    class Keeping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.last = x + 1
            return x * 2

    captured = frametap.compile(Keeping())
    for _ in range(2):
        captured(ones)
    program = reload(captured)
    for n in range(3):
        assert same(program(ones * n), ones * n * 2)
        assert same(program.state_dict()["self.last"], ones * n + 1)


def test_nothing_captured(reload: Any) -> None:
    with pytest.raises(frametap.ArtifactError, match="call it at least once"):
        reload(frametap.compile(plain))
    with pytest.raises(frametap.FrametapError, match=r"frametap.compile"):
        reload(plain)


def test_a_module_with_hooks(reload: Any) -> None:
    model = nn.Linear(4, 4)
    model.register_forward_hook(lambda module, args, out: out * 2)
    captured = frametap.compile(model)
    captured(ones)
    with pytest.raises(frametap.ArtifactError, match="hooks"):
        reload(captured)


def test_a_module_as_an_argument(reload: Any) -> None:
    def f(m: nn.Module, x: Tensor) -> Tensor:
        return m(x) + 1

    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    captured = frametap.compile(f)
    captured(model, ones)
    program = reload(captured)
    assert torch.equal(program(model, ones), f(model, ones))
    other = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    assert torch.equal(program(other, ones), f(other, ones))
    handle = other[0].register_forward_hook(lambda module, args, out: out * 2)
    with pytest.raises(frametap.ArtifactError, match="_forward_hooks"):
        program(other, ones)
    handle.remove()
    assert torch.equal(program(other, ones), f(other, ones))
    other[1].forward = lambda x: x * 3
    with pytest.raises(frametap.ArtifactError, match="forward"):
        program(other, ones)


def test_calls_that_were_not_captured(reload: Any) -> None:
    captured = frametap.compile(defaults)
    captured(ones)
    program = reload(captured)
    assert str(program).endswith("defaults(x, scale=2.0, *, name='a')>")
    for args in ((ones, 1), (ones.double(),), (3,)):
        with pytest.raises(frametap.ArtifactError):
            program(*args)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        program()


def test_relations_of_sizes_that_nothing_else_reads(reload: Callable[[Any], Any]) -> None:
    def f(x: Tensor, y: Tensor, n: int) -> Tensor:
        z = x + y
        if z.shape[0] ** 2 + (n << 1) > 12 and n & 1:
            return z.new_zeros(z.shape[0] ** 2, round(z.shape[0] / 2)) + z.sum()
        return z

    captured = frametap.compile(f)
    cases = [(3, 1, 5), (1, 6, 7), (5, 5, 9), (2, 1, 4), (4, 4, 2), (1, 1, 1)]
    for a, b, n in cases:
        captured(torch.ones(a), torch.ones(b), n)
    loaded = reload(captured)
    for a, b, n in cases:
        assert same(loaded(torch.ones(a), torch.ones(b), n), f(torch.ones(a), torch.ones(b), n))


@functools.cache
def halves(width: int, *, parts: int) -> int:
    return width // parts


@pytest.mark.parametrize("dynamic", [None, False])
def test_a_function_with_a_cache(reload: Any, dynamic: bool | None) -> None:
    def f(x: Tensor) -> Tensor:
        return x.reshape(halves(x.shape[0], parts=2), 2) + halves(6, parts=3)

    captured = frametap.compile(f, dynamic=dynamic)
    captured(torch.ones(4))  # fills the cache
    captured(torch.ones(4))
    program = reload(captured)
    before = halves.cache_info()
    assert same(program(torch.ones(4)), torch.full((2, 2), 3.0))
    assert halves.cache_info() == before  # a file has no cache
    if dynamic is None:
        assert same(program(torch.ones(8)), torch.full((4, 2), 3.0))
