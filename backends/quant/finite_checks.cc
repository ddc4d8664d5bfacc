#include "backends/quant/finite_checks.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <torch/library.h>

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "backends/quant/attention_ops.h"
#include "backends/quant/layer_norm.h"
#include "backends/quant/operators.h"
#include "backends/quant/reported_op.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {
namespace {

thread_local std::string noted;

void NoteIfNotFinite(const at::Tensor& x, std::string_view what) {
  if (noted.empty() && !at::isfinite(x).all().item<bool>()) noted = what;
}

bool ReadsBytes(const Node& node) {
  if (node.is_scalar()) return false;
  const std::string& name = node.op->operator_name().name;
  return absl::StartsWith(name, "frametap::") && name != "frametap::chunk_piece" && name != "frametap::planes" &&
         !IsBfloat16Attention(node) && !absl::StartsWith(name, "frametap::packed_");
}

// Returns the floats that a node reads as bytes. A layer norm gives finite bytes of its result if all that it reads is finite.
std::vector<ValueId> FloatsToCheck(const Node& node) {
  std::vector<ValueId> read;
  if (IsNormToBytes(node)) {
    ForEachUse(node.args, [&](ValueId v) { read.push_back(v); });
  } else if (ReadsBytes(node) && !node.args.empty() && node.args[0].kind == Arg::Kind::kValue) {
    read.push_back(node.args[0].value);
  }
  return read;
}

bool HoldsFloats(const Type& type) {
  return IsFloatTensor(type) || (type.kind == Type::Kind::kTensor && type.dtype == at::kBFloat16);
}

std::string Named(const Graph& graph, ValueId v) {
  const Value& value = graph.value(v);
  if (!value.def.valid()) return absl::StrCat("the input ", value.name);
  return absl::StrCat("the result of ", NameWithPlace(graph.node(value.def)));
}

}  // namespace

Graph WithFiniteChecks(const Graph& lowered) {
  Rewrite out(lowered, nullptr);
  std::vector<bool> done(lowered.values.size(), false);
  for (const auto& [v, tensor] : lowered.constants) done[v.raw()] = true;
  for (const Node& node : lowered.nodes) {
    for (const ValueId x : FloatsToCheck(node)) {
      if (done[x.raw()] || !HoldsFloats(lowered.value(x).type)) continue;
      done[x.raw()] = true;
      Node check;
      check.op = FindOperator("frametap::note_if_not_finite");
      check.args = {Arg::Of(out.at(x)), Arg::Const(Named(lowered, x))};
      check.state = node.state;
      check.where = node.where;
      out.graph.AddNode(std::move(check));
    }
    out.Copy(node);
  }
  out.CopyOutputs();
  return std::move(out.graph);
}

FiniteNotes::FiniteNotes() : before_(std::exchange(noted, "")) {}
FiniteNotes::~FiniteNotes() { noted = std::move(before_); }
const std::string& FiniteNotes::first() const { return noted; }

std::string TakeNotFinite() { return std::exchange(noted, ""); }

void RegisterFiniteChecks() {
  auto* defs = new torch::Library(torch::Library::FRAGMENT, "frametap", std::nullopt, __FILE__, __LINE__);
  defs->def("note_if_not_finite(Tensor x, str what) -> ()");
  auto* cpu = new torch::Library(torch::Library::IMPL, "frametap", c10::DispatchKey::CPU, __FILE__, __LINE__);
  cpu->impl("note_if_not_finite", TORCH_FN(NoteIfNotFinite));
}

}  // namespace frametap::quant
