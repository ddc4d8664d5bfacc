"""Saved programs. Laws: _artifact/A1, _artifact/A2, _loaded_program/A3, _loaded_program/A4."""

from __future__ import annotations

import inspect
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
import torch

from frametap._artifact import load_program, save_program
from frametap._errors import ArtifactError
from frametap._loaded_program import LoadedProgram
from frametap._program import (
    Block,
    Branch,
    Check,
    Const,
    Dict,
    EqualTo,
    Jump,
    Keys,
    Length,
    List,
    Number,
    Parameter,
    Program,
    Ref,
    Relation,
    Return,
    TensorLike,
    Tuple,
)

F32 = torch.float32


def program() -> Program:
    """def step(x, *, scale=2.0, **kwargs), with a branch on a tensor, a counter and a dict result."""
    torch.manual_seed(0)
    start = Block(
        name="step#0",
        graph_text="""
graph (%x : f32[4, 3], %w : f32[2, 3], %n : int) {
  constant %c : f32[]
  %h = aten.linear(%x, %w)
  %s = aten.sum(%h)
  %t = aten.gt.Tensor(%s, %c)
  %m : int = int.add(%n, 1)
  return %h, %t, %m
}
""",
        constants=(torch.tensor(0.0),),
        inputs=(Ref("x"), Ref("linear.weight", weight=True), Ref("self.calls")),
        outputs=("h", "test", "calls"),
        checks=(
            Check(Ref("x"), TensorLike(F32, (None, 3))),
            Check(Ref("x", (("size", 0),)), Relation(">", 1)),
            Check(Ref("scale"), Number("float")),
            Check(Ref("kwargs"), Keys(())),
        ),
        exit=Branch(
            Ref("test"),
            Jump(("plus",), {"h": Ref("h"), "k": Ref("scale"), "calls": Ref("calls")}),
            Jump(("minus",), {"h": Ref("h"), "pair": Tuple((Ref("calls"), Const("no")))}),
        ),
    )
    plus = Block(
        name="plus",
        graph_text="""
graph (%h : f32[4, 2], %k : float) {
  %0 = aten.mul.Tensor(%h, %k)
  return %0
}
""",
        inputs=(Ref("h"), Ref("k")),
        outputs=("y",),
        exit=Return(
            Dict((Const("y"), Const("all")), (Ref("y"), List((Ref("h"), Const(None))))),
            {"self.calls": Ref("calls")},
        ),
    )
    minus = Block(
        name="minus",
        graph_text="graph (%h : f32[4, 2]) {\n  %0 = aten.neg(%h)\n  return %0\n}\n",
        inputs=(Ref("h"),),
        outputs=("y",),
        exit=Return(
            Tuple((Ref("y"), Ref("pair", (("item", 1),)), Const(1.5))),
            {"self.calls": Ref("pair", (("item", 0),))},
        ),
    )
    return Program(
        name="step",
        parameters=(
            Parameter("x"),
            Parameter("scale", "KEYWORD_ONLY", Const(2.0)),
            Parameter("kwargs", "VAR_KEYWORD"),
        ),
        entry=("step#0",),
        blocks=(start, plus, minus),
        weights={"linear.weight": torch.nn.Parameter(torch.randn(2, 3))},
        state={"self.calls": Const(0)},
    )


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "step.ft"
    save_program(path, program())
    return path


def expected(x: torch.Tensor, scale: float = 2.0):
    h = x @ program().weights["linear.weight"].detach().t()
    return (h, h * scale) if h.sum() > 0 else (h, -h)


def positive() -> torch.Tensor:
    for seed in range(20):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        if expected(x)[0].sum() > 0:
            return x
    raise AssertionError


def test_both_arms_and_the_counter(saved):
    step = load_program(saved)
    x = positive()
    out = step(x)
    h, y = expected(x)
    torch.testing.assert_close(out["y"], y)
    assert list(out) == ["y", "all"]
    assert out["all"][1] is None
    torch.testing.assert_close(out["all"][0], h)
    torch.testing.assert_close(step(x, scale=3.0)["y"], h * 3)
    minus, word, number = step(-x)
    torch.testing.assert_close(minus, h)
    assert (word, number) == ("no", 1.5)
    assert step.state_dict()["self.calls"] == 3
    assert str(inspect.signature(step)) == "(x, *, scale=2.0, **kwargs)"


def test_fresh_process(saved):
    x = positive()
    torch.save(x, saved.with_suffix(".pt"))
    code = (
        "import sys, torch; from frametap._artifact import load_program; "
        "x = torch.load(sys.argv[2]); print(load_program(sys.argv[1])(x)['y'].sum().item().hex())"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(saved), str(saved.with_suffix(".pt"))],
        check=True,
        capture_output=True,
        text=True,
    )
    assert float.fromhex(out.stdout) == load_program(saved)(x)["y"].sum().item()


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((torch.ones(4, 3, dtype=torch.float64),), {}, "argument x: a tensor of float32 .any, 3. on cpu expected, got a tensor of float64 .4, 3."),
        ((torch.ones(4, 2),), {}, "argument x: .* got a tensor of float32 .4, 2."),
        ((torch.ones(3),), {}, "argument x: .* got a tensor of float32 .3."),
        (("text",), {}, "argument x: .* got str"),
        ((torch.ones(1, 3),), {}, r"argument x.size\(0\): a number > 1 expected, got 1"),
        ((torch.ones(4, 3),), {"scale": 1}, "argument scale: a number of type float expected, got 1"),
        ((torch.ones(4, 3),), {"temperature": 1}, "argument kwargs: a dict with the keys .. expected"),
    ],
)  # fmt: skip
def test_A3_other_calls_are_refused(saved, args, kwargs, words):
    step = load_program(saved)
    with pytest.raises(ArtifactError, match=words):
        step(*args, **kwargs)
    assert step.state_dict()["self.calls"] == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "missing 1 required positional argument: 'x'"),
        ((1, 2), "takes 1 positional argument but 2"),
    ],
)
def test_A3_calls_that_do_not_bind_raise_what_python_raises(saved, args, words):
    with pytest.raises(TypeError, match=words):
        load_program(saved)(*args)


def test_A3_the_first_block_that_fits():
    text = "graph (%x : f32[2]) {\n  %0 = aten.add.Scalar(%x, NUMBER)\n  return %0\n}\n"

    def block(name: str, number: str, *checks: Check) -> Block:
        return Block(
            name,
            text.replace("NUMBER", number),
            Return(Ref("y")),
            inputs=(Ref("x", (("item", "a"), ("item", 0))),),
            outputs=("y",),
            checks=checks,
        )

    mode = Ref("mode")
    step = LoadedProgram(
        Program(
            "f",
            (Parameter("x"), Parameter("mode", default=Const(None))),
            ("one", "two"),
            (
                block("one", "1", Check(mode, EqualTo("one")), Check(Ref("x"), Length("dict", 1))),
                block("two", "2", Check(mode, EqualTo(None))),
            ),
        )
    )
    x = {"a": [torch.zeros(1)]}
    assert step(x, "one").item() == 1
    assert step(x).item() == 2
    with pytest.raises(
        ArtifactError,
        match="argument mode: 'one' expected, got 'three'\n.*None expected, got 'three'",
    ):
        step(x, "three")


def test_A4_a_loop():
    body = Block(
        "body",
        "graph (%x : f32[], %n : int) {\n  %0 = aten.mul.Tensor(%x, 2)\n  %1 = int.add(%n, -1)\n"
        "  return %0, %1\n}\n",
        Branch(
            Ref("m"),
            Jump(("body",), {"x": Ref("y"), "n": Ref("m")}),
            Jump(("end",), {"r": Ref("y")}),
        ),
        inputs=(Ref("x"), Ref("n")),
        outputs=("y", "m"),
    )  # fmt: skip
    end = Block("end", "graph () {\n}\n", Return(Ref("r")))
    loop = LoadedProgram(Program("loop", (Parameter("x"), Parameter("n")), ("body",), (body, end)))
    assert loop(torch.tensor(1.0), 10).item() == 1024


def edit(path, name: str, change) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {n: archive.read(n) for n in archive.namelist()}
    files[name] = change(files[name])
    with zipfile.ZipFile(path, "w") as archive:
        for n, content in files.items():
            if content is not None:
                archive.writestr(n, content)


def manifest(path, **changes) -> None:
    def change(content: bytes) -> bytes:
        return json.dumps(json.loads(content) | changes).encode()

    edit(path, "manifest.json", change)


def test_A2_other_versions(saved):
    manifest(saved, format_version=99, frametap_version="7.0")
    with pytest.raises(ArtifactError, match="format version is 99.* reads up to 2; .*7.0"):
        load_program(saved)
    manifest(saved, format_version=1, torch_version="2.12.1")
    with pytest.raises(ArtifactError, match="written with torch 2.12.1, this is torch 2.13"):
        load_program(saved)
    manifest(saved, torch_version=torch.__version__.split("+")[0] + ".dev1")
    load_program(saved)


@pytest.mark.parametrize("keep", [0, 10, 500, -200, -10])
def test_A2_a_truncated_file(saved, keep):
    content = saved.read_bytes()
    saved.write_bytes(content[:keep])
    with pytest.raises(ArtifactError, match="damaged"):
        load_program(saved)


def test_A2_every_byte_counts(saved):
    content = saved.read_bytes()
    for at in range(0, len(content), max(1, len(content) // 60)):
        broken = bytearray(content)
        broken[at] ^= 0x5A
        saved.write_bytes(broken)
        try:
            step = load_program(saved)
        except ArtifactError:
            continue
        torch.testing.assert_close(step(positive())["y"], expected(positive())[1])


def test_A2_foreign_files(tmp_path, saved):
    path = tmp_path / "other"
    path.write_text("hello")
    with pytest.raises(ArtifactError, match="not written by frametap.save"):
        load_program(path)
    torch.save({"a": torch.ones(2)}, path)
    with pytest.raises(ArtifactError, match="not written by frametap.save"):
        load_program(path)
    with pytest.raises(ArtifactError, match="there is no file"):
        load_program(tmp_path / "none")
    with pytest.raises(ArtifactError, match="cannot be read: Is a directory"):
        load_program(tmp_path)
    manifest(saved, blocks=[{"Nonsense": {}}])
    with pytest.raises(ArtifactError, match="content cannot be read"):
        load_program(saved)
    edit(saved, "manifest.json", lambda _: b"[1, 2]")
    with pytest.raises(ArtifactError, match="not written by frametap.save"):
        load_program(saved)


def test_A2_no_code_is_loaded(saved):
    class Evil:
        def __reduce__(self):
            return os._exit, (3,)

    content = io.BytesIO()
    torch.save({"weights": {}, "constants": [Evil()]}, content)
    edit(saved, "tensors.pt", lambda _: content.getvalue())
    import hashlib

    with zipfile.ZipFile(saved) as archive:
        sums = json.loads(archive.read("manifest.json"))["sha256"]
    sums["tensors.pt"] = hashlib.sha256(content.getvalue()).hexdigest()
    manifest(saved, sha256=sums)
    with pytest.raises(ArtifactError, match="content cannot be read"):
        load_program(saved)


def test_A1_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    before = saved.read_bytes()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(ArtifactError, match="cannot be written: No space"):
        save_program(saved, program())
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]
    with pytest.raises(ArtifactError, match="cannot be written"):
        save_program(saved.parent / "no" / "such", program())


def test_programs_that_cannot_be_loaded_are_not_saved(tmp_path):
    good = program()
    start, plus, minus = good.blocks
    for bad, words in [
        (replace(good, entry=("nowhere",)), "block 'nowhere', which does not exist"),
        (replace(good, blocks=(start, plus)), "block 'minus', which does not exist"),
        (replace(good, weights={}), "weight 'linear.weight', which does not exist"),
        (replace(good, blocks=(start, plus, replace(minus, inputs=()))), "names 0 inputs"),
        (replace(good, blocks=(start, plus, replace(minus, graph_text="graph"))), "is wrong"),
        (replace(good, state={"self.calls": Const(object())}), "type object cannot be written"),
        (replace(good, parameters=(Parameter("x", "SOMETHING"),)), "no signature"),
    ]:
        with pytest.raises(ArtifactError, match=words):
            save_program(tmp_path / "bad", bad)
        assert not (tmp_path / "bad").exists()


def test_values_survive_the_file(tmp_path):
    values = (None, True, 3, -0.0, float("inf"), 2j, "ü", b"\0", torch.float16, torch.device("cpu"))
    end = Block("end", "graph () {\n}\n", Return(Tuple(tuple(map(Const, values)))))
    save_program(tmp_path / "p", Program("f", (), ("end",), (end,)))
    got = load_program(tmp_path / "p")()
    assert list(map(repr, got)) == list(map(repr, values))
    assert list(map(type, got)) == list(map(type, values))
