// Measure: runs the float graph and the reference graph side by side, twice. One run has all earlier ops in 8 bits
// (cumulative). The other has each op on the float graph's own values (alone).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "backends/quant/op_table.h"
#include "backends/quant/operators.h"
#include "backends/quant/quantize.h"
#include "backends/quant/rewrite.h"
#include "backends/reference/graph_interpreter.h"

namespace frametap::quant {
namespace {

// Says in words how the sizes of a value differ. Those that a mask has chosen differ in the number of rows.
std::string Mismatch(at::IntArrayRef want, at::IntArrayRef got) {
  const bool only_rows = !want.empty() && want.size() == got.size() && want.slice(1).equals(got.slice(1));
  if (only_rows) return absl::StrCat("not comparable: ", want[0], " rows in float, ", got[0], " in int8");
  return absl::StrCat("not comparable: sizes [", absl::StrJoin(want, ", "), "] in float, [", absl::StrJoin(got, ", "),
                      "] in int8");
}

struct Energy {
  double signal = 0;
  double noise = 0;
  bool any = false;
  std::string mismatch;  // the sizes of the first two tensors that cannot be compared

  void Add(const at::Tensor& want, const at::Tensor& got) {
    if (!want.sizes().equals(got.sizes())) {  // a mask chose other rows
      if (mismatch.empty()) mismatch = Mismatch(want.sizes(), got.sizes());
      return;
    }
    const at::Tensor w = want.contiguous();
    const at::Tensor g = got.contiguous();
    const float* a = w.const_data_ptr<float>();
    const float* b = g.const_data_ptr<float>();
    for (int64_t i = 0; i < w.numel(); ++i) {
      signal += static_cast<double>(a[i]) * a[i];
      noise += static_cast<double>(a[i] - b[i]) * (a[i] - b[i]);
    }
    any = true;
  }
  double Decibel() const {
    if (noise == 0) return std::numeric_limits<double>::infinity();
    return 10 * std::log10(signal / noise);
  }
};

at::Tensor CallQuantize(const Node& node, const at::Tensor& x) {
  torch::jit::Stack stack{x};
  for (size_t i = 1; i < node.args.size(); ++i) stack.push_back(node.args[i].constant);
  node.op->callBoxed(stack);
  return stack[0].toTensor();
}

class Comparison {
 public:
  Comparison(const Graph& graph, QuantizedGraph* quantized)
      : graph_(graph),
        reference_(quantized->reference),
        origin_(quantized->reference_origin),
        quantized_(quantized),
        is_measured_(reference_.values.size()),
        alone_(reference_.values.size()),
        cumulative_(reference_.values.size()) {
    for (const ValueId v : quantized->measured) {
      if (v.valid()) is_measured_[v.raw()] = true;
    }
    float_hold_.assign(graph.values.size(), 0);
    for (size_t v = 0; v < reference_.values.size(); ++v) {
      if (Compared(ValueId(v))) ++float_hold_[origin_[v].raw()];
    }
    FindWritten();
  }

  void Run(const std::vector<c10::IValue>& inputs) {
    GraphInterpreter exact(graph_, Own(inputs), float_hold_);
    std::vector<int> hold(reference_.values.size());
    for (size_t v = 0; v < hold.size(); ++v) hold[v] = Compared(ValueId(v)) ? 1 : 0;
    GraphInterpreter alone(reference_, Own(inputs), hold);
    GraphInterpreter whole(reference_, Own(inputs), hold);
    for (ValueId v : graph_.inputs) Snapshot(&exact, v);
    while (!whole.done()) {
      const NodeId n = alone.Step();
      whole.Step();
      for (ValueId v : reference_.node(n).outputs) {
        if (Compared(v)) Compare(&exact, &alone, &whole, n, v);
      }
    }
  }

  void Report() {
    for (size_t i = 0; i < quantized_->measured.size(); ++i) {
      const ValueId v = quantized_->measured[i];
      if (!v.valid()) continue;
      OpReport& row = quantized_->report[i];
      const Energy &alone = alone_[v.raw()], &cumulative = cumulative_[v.raw()];
      if (!cumulative.mismatch.empty())
        row.not_comparable = cumulative.mismatch;
      else if (cumulative.any)
        row.cumulative_sqnr = cumulative.Decibel();
      const bool has_sqnr = alone.any && alone.mismatch.empty();
      if (has_sqnr && row.decision != Decision::kFloat) row.sqnr = alone.Decibel();
    }
  }

 private:
  // Each of the three runs writes to inputs of its own.
  std::vector<c10::IValue> Own(const std::vector<c10::IValue>& inputs) const {
    std::vector<c10::IValue> own = inputs;
    for (size_t i = 0; i < own.size(); ++i) {
      if (written_[graph_.inputs[i].raw()] && own[i].isTensor()) own[i] = own[i].toTensor().clone();
    }
    return own;
  }

  // Values of the reference that stand for a value of the float graph: bytes, and results of float ops and kernels.
  bool Compared(ValueId v) const {
    if (!origin_[v.raw()].valid() || !reference_.value(v).def.valid()) return false;
    const Node& def = reference_.node(reference_.value(v).def);
    if (Is(def, "frametap::dequantize_per_tensor")) return false;
    return is_measured_[v.raw()] || Is(def, "frametap::quantize_per_tensor");
  }

  void FindWritten() {
    const Aliases aliases(graph_);
    std::vector<bool> by_root(graph_.values.size(), false);
    for (const Node& node : graph_.nodes) {
      for (ValueId v : WrittenBy(node)) by_root[aliases.root(v)] = true;
    }
    written_.resize(graph_.values.size());
    for (size_t v = 0; v < written_.size(); ++v) written_[v] = by_root[aliases.root(ValueId(v))];
  }

  // A value that is overwritten later is copied as it was when it was new.
  void Snapshot(GraphInterpreter* exact, ValueId v) {
    const c10::IValue& value = exact->value(v);
    if (!written_[v.raw()] || float_hold_[v.raw()] == 0 || !value.isTensor()) return;
    if (snapshots_.size() < graph_.values.size()) snapshots_.resize(graph_.values.size());
    snapshots_[v.raw()] = value.toTensor().clone();
  }

  at::Tensor Exact(GraphInterpreter* exact, ValueId v) {
    const NodeId def = graph_.value(v).def;
    while (def.valid() && !exact->done() && !(def < exact->next())) {
      const NodeId n = exact->Step();
      for (ValueId o : graph_.node(n).outputs) Snapshot(exact, o);
    }
    if (written_[v.raw()]) return snapshots_[v.raw()];
    return exact->value(v).toTensor();
  }

  // The floats that a compared value of the reference stands for.
  at::Tensor AsFloat(const Node& def, const at::Tensor& value) const {
    if (!Is(def, "frametap::quantize_per_tensor")) return value;
    torch::jit::Stack stack{value, def.args[1].constant, def.args[2].constant};
    dequantize_.callBoxed(stack);
    return stack[0].toTensor();
  }

  void Compare(GraphInterpreter* exact, GraphInterpreter* alone, GraphInterpreter* whole, NodeId n, ValueId v) {
    const Node& def = reference_.node(n);
    const ValueId origin = origin_[v.raw()];
    const at::Tensor want = Exact(exact, origin);
    if (is_measured_[v.raw()]) {
      alone_[v.raw()].Add(want, AsFloat(def, alone->value(v).toTensor()));
      cumulative_[v.raw()].Add(want, AsFloat(def, whole->value(v).toTensor()));
    }
    // From here on the lone run reads what the float graph had.
    const bool bytes = Is(def, "frametap::quantize_per_tensor");
    alone->Replace(v, bytes ? CallQuantize(def, want) : want.clone());
    alone->Release(v);
    whole->Release(v);
    exact->Release(origin);
  }

  const Graph& graph_;
  const Graph& reference_;
  const std::vector<ValueId>& origin_;
  QuantizedGraph* quantized_;
  std::vector<bool> is_measured_;  // by value of the reference: some nodes of the float graph are reported by it
  std::vector<int> float_hold_;
  std::vector<bool> written_;
  std::vector<at::Tensor> snapshots_;
  std::vector<Energy> alone_;  // by value of the reference
  std::vector<Energy> cumulative_;
  const c10::OperatorHandle dequantize_ = FindOperator("frametap::dequantize_per_tensor");
};

}  // namespace

double Sqnr(const at::Tensor& want, const at::Tensor& got) {
  Energy energy;
  energy.Add(want, got);
  return energy.mismatch.empty() ? energy.Decibel() : std::numeric_limits<double>::quiet_NaN();
}

absl::Status Measure(const Graph& graph, const std::vector<std::vector<c10::IValue>>& runs, QuantizedGraph* quantized) {
  RegisterOperators();
  const at::NoGradGuard no_grad;
  try {
    Comparison comparison(graph, quantized);
    for (const auto& inputs : runs) comparison.Run(inputs);
    comparison.Report();
  } catch (const c10::Error& e) {
    return absl::InvalidArgumentError(absl::StrCat("an input does not fit the graph: ", e.what_without_backtrace()));
  }
  return absl::OkStatus();
}

}  // namespace frametap::quant
