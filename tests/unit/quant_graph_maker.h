// GraphMaker: a graph by hand. Each call runs the op, so that every value has the type it would have been recorded
// with.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace frametap::quant {

class GraphMaker {
 public:
  GraphMaker() { graph.states[0].grad_mode = false; }

  ValueId Input(const at::Tensor& example) { return Add("x", example, at::Tensor()); }
  ValueId Weight(const at::Tensor& tensor) { return Add("w", tensor, tensor); }

  // `args`: a prefix of the schema's arguments; defaults fill the rest.
  ValueId Op(const char* name, const char* overload, std::vector<Arg> args) {
    const at::NoGradGuard no_grad;
    Node node;
    node.op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    const auto& arguments = node.op->schema().arguments();
    for (size_t i = args.size(); i < arguments.size(); ++i) {
      args.push_back(Arg::Const(arguments[i].default_value().value_or(c10::IValue())));
    }
    torch::jit::Stack stack;
    for (const Arg& a : args) {
      if (a.kind == Arg::Kind::kList) {
        c10::List<at::Tensor> list;
        for (const Arg& item : a.items) list.push_back(values_[item.value.raw()].toTensor());
        stack.push_back(list);
      } else {
        stack.push_back(a.kind == Arg::Kind::kValue ? values_[a.value.raw()] : a.constant);
      }
    }
    node.op->callBoxed(stack);
    node.args = std::move(args);
    node.state = StateId(0);
    auto where = std::make_shared<Where>();
    where->position = {"forward", static_cast<int>(graph.nodes.size()) + 10, 4, "model.py"};
    node.where = where;
    const ValueId out = graph.NewValue("v" + std::to_string(values_.size()), Type::Of(stack[0].toTensor()));
    values_.resize(graph.values.size());
    values_[out.raw()] = stack[0];
    node.outputs = {out};
    graph.AddNode(std::move(node));
    return out;
  }

  ValueId Conv(ValueId x, int64_t out, int64_t kernel, int64_t stride = 1, int64_t padding = 0, int64_t groups = 1,
               bool bias = true) {
    const int64_t in = graph.value(x).type.sizes[1];
    const double gain = 1.4 / std::sqrt(static_cast<double>(in / groups * kernel * kernel));
    const ValueId w = Weight(at::randn({out, in / groups, kernel, kernel}).mul(gain));
    const Arg b = bias ? Arg::Of(Weight(at::randn({out}).mul(0.1))) : Arg::Const(c10::IValue());
    return Op("aten::conv2d", "",
              {Arg::Of(x), Arg::Of(w), b, Ints({stride, stride}), Ints({padding, padding}), Ints({1, 1}),
               Arg::Const(groups)});
  }

  // Gammas spread over three octaves, means and variances away from 0 and 1.
  ValueId BatchNorm(ValueId x, bool training = false) {
    const int64_t c = graph.value(x).type.sizes[1];
    const ValueId gamma = Weight(at::randn({c}).mul(0.7).exp());
    const ValueId beta = Weight(at::randn({c}).mul(0.2));
    const ValueId mean = Weight(at::randn({c}).mul(0.3));
    const ValueId variance = Weight(at::randn({c}).mul(0.5).exp());
    return Op("aten::batch_norm", "",
              {Arg::Of(x), Arg::Of(gamma), Arg::Of(beta), Arg::Of(mean), Arg::Of(variance), Arg::Const(training),
               Arg::Const(0.1), Arg::Const(1e-5), Arg::Const(true)});
  }

  ValueId Linear(ValueId x, int64_t out) {
    const int64_t in = graph.value(x).type.sizes.back();
    const ValueId w = Weight(at::randn({out, in}).mul(1.4 / std::sqrt(static_cast<double>(in))));
    return Op("aten::linear", "", {Arg::Of(x), Arg::Of(w), Arg::Of(Weight(at::randn({out}).mul(0.1)))});
  }

  ValueId Relu(ValueId x) { return Op("aten::relu", "", {Arg::Of(x)}); }
  ValueId ReluInPlace(ValueId x) { return Op("aten::relu_", "", {Arg::Of(x)}); }
  ValueId Sum(ValueId a, ValueId b) {
    return Op("aten::add", "Tensor", {Arg::Of(a), Arg::Of(b), Arg::Const(int64_t{1})});
  }
  ValueId MaxPool(ValueId x, int64_t k, int64_t stride, int64_t padding) {
    return Op(
        "aten::max_pool2d", "",
        {Arg::Of(x), Ints({k, k}), Ints({stride, stride}), Ints({padding, padding}), Ints({1, 1}), Arg::Const(false)});
  }
  ValueId GlobalPool(ValueId x) { return Op("aten::adaptive_avg_pool2d", "", {Arg::Of(x), Ints({1, 1})}); }
  ValueId Flatten(ValueId x) {
    return Op("aten::flatten", "using_ints", {Arg::Of(x), Arg::Const(int64_t{1}), Arg::Const(int64_t{-1})});
  }

  static Arg Ints(std::vector<int64_t> v) { return Arg::Const(std::move(v)); }

  // Inputs of a run: weights as they are, the others as given.
  std::vector<c10::IValue> Inputs(std::vector<at::Tensor> xs) const {
    std::vector<c10::IValue> out;
    size_t next = 0;
    for (const at::Tensor& w : weights) out.push_back(w.defined() ? w : xs[next++]);
    return out;
  }

  Graph graph;
  std::vector<at::Tensor> weights;  // by input

 private:
  ValueId Add(const std::string& prefix, const at::Tensor& value, const at::Tensor& weight) {
    const ValueId v = graph.AddInput(prefix + std::to_string(weights.size()), Type::Of(value));
    weights.push_back(weight);
    values_.resize(graph.values.size());
    values_[v.raw()] = value;
    return v;
  }

  std::vector<c10::IValue> values_;  // by value
};

}  // namespace frametap::quant
