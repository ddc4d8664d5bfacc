"""frametap.fx: graphs as fx modules. F1–F3 are the laws of the module."""

from __future__ import annotations

import copy
import operator

import pytest
import torch

from frametap import _C, fx

MLP = """
graph (%x : f32[4, 3], %w : f32[5, 3], %b : f32[5]) {
  %h : f32[4, 5] = aten.linear(%x, %w, %b)  @ Linear.forward:125:15
  %0 : f32[4, 5] = aten.relu(%h)            @ step:7:11
  %1 : f32[4, 5] = aten.add.Tensor(%0, %h, alpha=2)  @ step:8:11
  return %1, %h
}
"""


def tensors() -> list[torch.Tensor]:
    return [torch.randn(4, 3), torch.randn(5, 3), torch.randn(5)]


def reference(graph: _C.Graph, inputs: list) -> list:
    return _C.compile(_C.reference_backend(), graph).run(inputs)


def same(got, want) -> None:
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_graph_view():
    graph = _C.parse_graph(MLP)
    assert [v.name for v in graph.inputs] == ["x", "w", "b"]
    assert [n.op for n in graph.nodes] == ["aten.linear", "aten.relu", "aten.add.Tensor"]
    linear, _, add = graph.nodes
    assert linear.args == graph.inputs
    assert linear.schema_args == ["input", "weight", "bias"]
    assert add.args[2] == 2
    assert add.position == "step:8:11"
    assert linear.outputs == [graph.outputs[1]]
    assert graph.outputs[1].node.op == "aten.linear"
    assert graph.outputs[0].shape == (4, 5)
    assert graph.outputs[0].dtype is torch.float32
    assert graph.outputs[0].kind == "tensor"
    assert {graph.inputs[0]: 1}[graph.inputs[0]] == 1
    assert graph.inputs[0] != _C.parse_graph(MLP).inputs[0]
    assert str(_C.parse_graph(str(graph))) == str(graph)


def test_constants_of_schema_types():
    graph = _C.parse_graph("""
graph (%x : f32[4]) {
  %0 = aten.zeros([2, 3], dtype=f64, layout=strided)
  %1 = aten.to.dtype(%x, f16)
  return %0, %1
}
""")
    zeros, to = graph.nodes
    assert zeros.args == [[2, 3], torch.float64, torch.strided, None, None]
    assert to.args[1] is torch.float16
    got = fx.to_fx(graph)(torch.ones(4))
    assert got[0].dtype is torch.float64
    assert got[1].dtype is torch.float16


def test_F1_same_results():
    graph = _C.parse_graph(MLP)
    inputs = tensors()
    gm = fx.to_fx(graph)
    gm.graph.lint()
    want = reference(graph, inputs)
    same(gm(*inputs), want)
    same(torch.fx.Interpreter(gm).run(*inputs), want)
    same(torch.fx.Transformer(gm).transform()(*inputs), want)
    same(copy.deepcopy(gm)(*inputs), want)
    names = [n.name for n in gm.graph.nodes]
    assert names[:4] == ["x", "w", "b", "h"]


def test_F1_lists_and_several_results():
    graph = _C.parse_graph("""
graph (%x : f32[6, 2]) {
  %parts : tensors = aten.split.Tensor(%x, 2)
  %a = list.item(%parts, 0)
  %b = list.item(%parts, 2)
  %v, %i = aten.max.dim(%a, 1)
  %c = aten.cat([%b, %a])
  %d = aten.index.Tensor(%x, [None, %i])
  return %v, %i, %c, %d
}
""")
    x = torch.randn(6, 2)
    same(fx.to_fx(graph)(x), reference(graph, [x]))


def test_F1_writes_stay():
    graph = _C.parse_graph("""
graph (%x : f32[3], %m : f32[3]) {
  %0 = aten.mul_.Tensor(%m, 0.5)
  %1 = aten.add_.Tensor(%m, %x)
  %2 = aten.sum(%m)
  return %2
}
""")
    gm = fx.to_fx(graph)
    assert torch.ops.aten.mul_.Tensor in {n.target for n in gm.graph.nodes}
    m = torch.ones(3)
    assert gm(torch.ones(3), m)[0].item() == 4.5
    assert m.tolist() == [1.5, 1.5, 1.5]


def test_F1_grad_mode_and_autocast():
    graph = _C.parse_graph("""
graph (%x : f32[4, 4], %w : f32[4, 4]) {
  %a = aten.mm(%x, %w)
  %b = aten.mm(%x, %w)  {grad_mode(off)}
  %c = aten.mm(%x, %w)  {autocast(bf16)}
  %d = aten.mm(%x, %w)
  return %a, %b, %c, %d
}
""")
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    a, b, c, d = fx.to_fx(graph)(x, w)
    assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, False, True)
    assert (c.dtype, d.dtype) == (torch.bfloat16, torch.float32)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_F1_state_is_put_back_at_the_end():
    graph = _C.parse_graph("""
graph (%x : f32[2]) {
  %a = aten.neg(%x)  {grad_mode(off)}
  return %a
}
""")
    gm = fx.to_fx(graph)
    calls = [n.args for n in gm.graph.nodes if n.target is torch._C._set_grad_enabled]
    assert calls == [(False,), (True,)]


def test_F1_inference_mode():
    graph = _C.parse_graph("""
graph (%x : f32[2]) {
  %a = aten.neg(%x)  {grad_mode(off), inference_mode(on)}
  %b = aten.neg(%x)
  return %a, %b
}
""")
    a, b = fx.to_fx(graph)(torch.ones(2, requires_grad=True))
    assert a.is_inference()
    assert not b.is_inference()
    assert b.requires_grad
    assert not torch.is_inference_mode_enabled()


def test_numbers():
    graph = _C.parse_graph("""
graph (%x : f32[3], %n : int, %k : float) {
  %m : int = int.add(%n, 1)
  %f : float = float.mul(%k, 2.0)
  %0 = aten.mul.Tensor(%x, %f)
  %1 = aten.select.int(%0, 0, %m)
  return %1, %m
}
""")
    gm = fx.to_fx(graph)
    assert operator.add in {n.target for n in gm.graph.nodes}
    got = gm(torch.arange(3.0), 1, 1.5)
    assert got[0].item() == 6.0
    assert got[1] == 2


def test_constants_are_buffers():
    graph = _C.parse_graph(
        """
graph (%x : f32[2]) {
  constant %c : f32[2]
  %0 = aten.add.Tensor(%x, %c)
  return %0
}
""",
        [torch.tensor([10.0, 20.0])],
    )
    gm = fx.to_fx(graph)
    assert fx.to_fx(graph)(torch.ones(2))[0].tolist() == [11.0, 21.0]
    assert [t.tolist() for t in gm.buffers()] == [[10.0, 20.0]]
    with pytest.raises(_errors().GraphError, match="1 constants, 2 were given"):
        _C.parse_graph(str(graph), [torch.ones(2), torch.ones(2)])


def _errors():
    from frametap import _errors

    return _errors


def test_F2_meta():
    gm = fx.to_fx(_C.parse_graph(MLP))
    linear = next(n for n in gm.graph.nodes if n.target is torch.ops.aten.linear.default)
    assert 'File "<unknown>", line 125, in forward' in linear.meta["stack_trace"]
    assert tuple(linear.meta["val"].shape) == (4, 5)
    assert linear.meta["tensor_meta"].dtype is torch.float32


def test_F2_values_of_examples_have_their_strides():
    graph = _C.parse_graph("""
graph (%x : f32[2, 3]) {
  %0 = aten.relu(%x)
  return %0
}
""")
    x = torch.randn(3, 2).t()
    node = next(n for n in fx.to_fx(graph, examples=[x]).graph.nodes if n.op == "call_function")
    assert node.meta["val"].stride() == x.stride()


def test_F2_unknown_values_are_left_out():
    graph = _C.parse_graph("""
graph (%x : f32[4]) {
  %i = aten.nonzero(%x)
  %0 = aten.sum(%i)
  return %0
}
""")
    gm = fx.to_fx(graph)
    assert gm(torch.tensor([1.0, 0, 0, 1.0]))[0].item() == 3


def test_wrong_text_is_an_error_with_a_place():
    with pytest.raises(_errors().GraphError, match="line 3"):
        _C.parse_graph("\ngraph (%x : f32[2]) {\n  %0 = aten.no_such_op(%x)\n}\n")
    with pytest.raises(ValueError, match="level"):
        fx.to_fx(_C.parse_graph(MLP), level="module")


def test_F2_scopes_name_loaded_classes():
    class Recorded:
        stack_trace = '  File "m.py", line 3, in forward\n    return self.linear(x)\n'
        scope = (("", "no.such.Model"), ("linear", "torch.nn.modules.linear.Linear"))

    meta = fx._source_meta(Recorded())
    assert meta["stack_trace"] == Recorded.stack_trace
    assert list(meta["nn_module_stack"].items()) == [
        ("", ("", "no.such.Model")),
        ("linear", ("linear", torch.nn.Linear)),
    ]
