#include "ir/passes/repeats.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/literal.h"
#include "ir/ops/below_autograd.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/op_rows.h"
#include "ir/ops/plain_function.h"

namespace frametap {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// The relevant facts of an op.
struct Role {
  bool repeatable = false;  // a plain function, the same below autograd
  bool harmless = false;    // a plain function: may be given a tensor that is shared
  bool may_write = true;
};

Role RoleOf(const c10::OperatorHandle& op) {
  const OpVerdict verdict = Judge(op);
  Role role;
  role.harmless = verdict.plain_function;
  role.repeatable = verdict.plain_function && verdict.below != BelowAutograd::kDiffers;
  const OpFacts& facts = FactsOf(op);
  // Kernels of others run what they like, Python as well.
  role.may_write = facts.writes_inputs || facts.no_result || !IsOfTorch(op);
  return role;
}

uint64_t Mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ (hash >> 32);
}

bool ReadsTensor(const Node& node) {
  return !node.is_scalar() || node.builtin_op == BuiltinOp::kSize || IsAssumption(node.builtin_op);
}

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph) {}

  Repeats Find() {
    // Most graphs repeat nothing, which is seen without a look at what their ops are.
    if (!NumberValues()) return {};
    LookAtOps();
    if (!NumberValues()) return {};
    Choose();
    while (!Settled()) {
    }
    return Result();
  }

 private:
  // -- S1: first_ --------------------------------------------------------------------------------------------------------

  bool NumberValues() {
    const size_t nodes = graph_.nodes.size();
    number_.resize(graph_.values.size());
    for (size_t i = 0; i < number_.size(); ++i) number_[i] = static_cast<uint32_t>(i);
    first_.resize(nodes);
    const size_t mask = std::bit_ceil(2 * nodes + 1) - 1;
    table_.assign(mask + 1, Entry());
    bool some = false;
    for (uint32_t i = 0; i < nodes; ++i) {
      first_[i] = i;
      if (!MayRepeat(i)) continue;
      const uint64_t hash = HashOf(i);
      size_t at = hash & mask;
      while (table_[at].node != kNone &&
             !(table_[at].hash == static_cast<uint32_t>(hash >> 32) && Same(table_[at].node, i))) {
        at = (at + 1) & mask;
      }
      if (table_[at].node == kNone) {
        table_[at] = {static_cast<uint32_t>(hash >> 32), i};
        continue;
      }
      const Node &node = graph_.nodes[i], &first = graph_.nodes[table_[at].node];
      if (roles_.empty() && !node.is_scalar() && !IsPlainFunction(*node.op)) continue;
      first_[i] = table_[at].node;
      for (size_t k = 0; k < node.outputs.size(); ++k) number_[node.outputs[k].raw()] = first.outputs[k].raw();
      some = true;
    }
    return some;
  }

  bool MayRepeat(uint32_t i) const {
    const Node& node = graph_.nodes[i];
    if (node.is_scalar()) return node.builtin_op != BuiltinOp::kListItem;
    return IsBelow(node) && (roles_.empty() || roles_[i].repeatable);
  }

  bool IsBelow(const Node& node) const { return MayLeaveOutAutograd(graph_.states[node.state.raw()]); }

  uint32_t WritesBefore(uint32_t i) const { return writes_before_.empty() ? 0 : writes_before_[i]; }

  // A tensor is what it is a repeat of until something may have been written to one of the two.
  uint32_t NumberOf(ValueId id, uint32_t user) const {
    const uint32_t number = number_[id.raw()];
    if (number == id.raw()) return number;
    const uint32_t def = graph_.value(id).def.raw();
    if (graph_.nodes[def].is_scalar()) return number;
    // Numbers are the same in all runs, tensors only in runs that are not observed.
    if (graph_.nodes[user].is_scalar()) return id.raw();
    return WritesBefore(def) == WritesBefore(user) ? number : id.raw();
  }

  uint64_t HashOf(uint32_t i) const {
    const Node& node = graph_.nodes[i];
    uint64_t hash =
        node.is_scalar() ? static_cast<uint64_t>(node.builtin_op) + 1 : reinterpret_cast<uintptr_t>(&node.op->schema());
    for (const Arg& arg : node.args) hash = Mix(hash, HashOf(arg, i));
    return hash;
  }

  uint64_t HashOf(const Arg& arg, uint32_t user) const {
    switch (arg.kind) {
      case Arg::Kind::kValue:
        return uint64_t{1} << 32 | NumberOf(arg.value, user);
      case Arg::Kind::kConst:
        if (arg.constant.isInt()) return static_cast<uint64_t>(arg.constant.toInt());
        if (arg.constant.isDouble()) return std::bit_cast<uint64_t>(arg.constant.toDouble());
        if (arg.constant.isBool()) return arg.constant.toBool() ? 3 : 2;
        return 0;  // lists too: few nodes differ by these alone
      case Arg::Kind::kList:
        break;
    }
    uint64_t hash = arg.items.size();
    for (const Arg& item : arg.items) hash = Mix(hash, HashOf(item, user));
    return hash;
  }

  bool Same(uint32_t i, uint32_t j) const {
    const Node &a = graph_.nodes[i], &b = graph_.nodes[j];
    if (a.is_scalar() != b.is_scalar() || a.builtin_op != b.builtin_op) return false;
    if (!a.is_scalar() && &a.op->schema() != &b.op->schema()) return false;
    if (ReadsTensor(a) && WritesBefore(i) != WritesBefore(j)) return false;
    return Same(a.args, i, b.args, j);
  }

  bool Same(const std::vector<Arg>& a, uint32_t i, const std::vector<Arg>& b, uint32_t j) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Arg& x, const Arg& y) {
      if (x.kind != y.kind) return false;
      if (x.kind == Arg::Kind::kValue) return NumberOf(x.value, i) == NumberOf(y.value, j);
      return x.kind == Arg::Kind::kConst ? SameConst(x.constant, y.constant) : Same(x.items, i, y.items, j);
    });
  }

  void LookAtOps() {
    absl::flat_hash_map<const c10::FunctionSchema*, Role> known;
    uint32_t writes = 0;
    for (const Node& node : graph_.nodes) {
      writes_before_.push_back(writes);
      Role& role = roles_.emplace_back();
      if (node.is_scalar()) continue;
      const auto [it, added] = known.try_emplace(&node.op->schema());
      if (added) it->second = RoleOf(*node.op);
      role = it->second;
      writes += role.may_write;
    }
  }

  // -- S2: takes_part_, left_out_ -----------------------------------------------------------------------------------------

  void Choose() {
    std::vector<bool> exposed(graph_.values.size()), is_output(graph_.values.size());
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (node.is_scalar() || (roles_[i].harmless && IsBelow(node))) continue;
      ForEachUse(node.args, [&](ValueId id) { exposed[id.raw()] = true; });
    }
    for (const ValueId id : graph_.outputs) is_output[id.raw()] = true;
    const auto any = [](const std::vector<bool>& set, const Node& node) {
      return std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId id) { return set[id.raw()]; });
    };
    const size_t nodes = graph_.nodes.size();
    takes_part_.assign(nodes, false);
    left_out_.assign(nodes, false);
    kept_.assign(nodes, kNone);
    std::vector<bool> has_member(nodes), has_output(nodes);  // by the first of those that are the same
    for (uint32_t i = 0; i < nodes; ++i) {
      const Node& node = graph_.nodes[i];
      if (!MayRepeat(i)) continue;
      const uint32_t first = first_[i];
      if (!node.is_scalar()) {
        if (any(exposed, node) || (any(is_output, node) && has_output[first])) continue;
        if (any(is_output, node)) has_output[first] = true;
      }
      takes_part_[i] = true;
      left_out_[i] = has_member[first];
      has_member[first] = true;
    }
  }

  // -- S3: left_out_, kept_ -------------------------------------------------------------------------------------------------

  // Takes back repeats that would keep something alive. A node that is taken back uses its operands again, so that
  // another look is due.
  bool Settled() {
    std::vector<uint32_t> held(graph_.values.size());  // by value: how many ops have run when it's let go
    std::vector<uint32_t> ran(graph_.nodes.size());    // … before the node
    uint32_t ops = 0;
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      ran[i] = ops;
      if (left_out_[i]) continue;
      if (!node.is_scalar()) ++ops;
      const auto hold = [&](ValueId id) { held[id.raw()] = ops; };
      ForEachUse(node.args, hold);
      std::for_each(node.outputs.begin(), node.outputs.end(), hold);
    }
    for (const ValueId id : graph_.outputs) held[id.raw()] = UINT32_MAX;
    bool settled = true;
    std::vector<uint32_t> latest(graph_.nodes.size(), kNone);  // by the first of those that are the same
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!takes_part_[i]) continue;
      const Node& node = graph_.nodes[i];
      const uint32_t kept = latest[first_[i]];
      if (left_out_[i] && !node.is_scalar()) {
        for (size_t k = 0; k < node.outputs.size(); ++k) {
          const bool is_used = held[node.outputs[k].raw()] != 0;
          if (is_used && held[graph_.nodes[kept].outputs[k].raw()] < ran[i]) left_out_[i] = settled = false;
        }
      }
      if (!left_out_[i]) {
        latest[first_[i]] = i;
        continue;
      }
      kept_[i] = kept;
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        uint32_t& until = held[graph_.nodes[kept].outputs[k].raw()];
        until = std::max(until, held[node.outputs[k].raw()]);
      }
    }
    return settled;
  }

  Repeats Result() const {
    Repeats repeats;
    for (size_t i = 0; i < graph_.values.size(); ++i) repeats.stands_for.emplace_back(i);
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      if (!left_out_[i]) continue;
      const Node &node = graph_.nodes[i], &kept = graph_.nodes[kept_[i]];
      (node.is_scalar() ? repeats.numbers : repeats.tensors) = true;
      for (size_t k = 0; k < node.outputs.size(); ++k) repeats.stands_for[node.outputs[k].raw()] = kept.outputs[k];
    }
    if (!repeats.numbers && !repeats.tensors) repeats.stands_for.clear();
    return repeats;
  }

  struct Entry {
    uint32_t hash = 0;
    uint32_t node = kNone;
  };

  const Graph& graph_;
  std::vector<uint32_t> number_;  // by value: the first value that is the same
  std::vector<uint32_t> first_;   // by node: likewise
  std::vector<Entry> table_;
  std::vector<Role> roles_;              // by node, once LookAtOps
  std::vector<uint32_t> writes_before_;  // by node: how many may have written, once LookAtOps
  std::vector<bool> takes_part_;         // by node: its results may be shared
  std::vector<bool> left_out_;
  std::vector<uint32_t> kept_;  // by node that is left out: whose results are used instead
};

}  // namespace

Repeats FindRepeats(const Graph& graph) { return Finder(graph).Find(); }

}  // namespace frametap
