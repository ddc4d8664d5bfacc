#include "backends/quant/structure.h"

#include <ATen/core/jit_type.h>

#include <bit>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "backends/quant/frozen.h"
#include "backends/quant/linears.h"
#include "backends/quant/op_table.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {
namespace {

std::string ContentOf(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::string text = absl::StrCat(static_cast<int>(tensor.scalar_type()), "[", tensor.dim(), "]");
  if (tensor.layout() != at::kStrided || !tensor.device().is_cpu()) return text;
  const at::Tensor dense = tensor.detach().contiguous();
  const absl::string_view bytes(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
  absl::StrAppend(&text, absl::HashOf(bytes), ":", bytes.substr(0, 64));
  return text;
}

std::string TextOf(const c10::IValue& value) {
  if (value.isTensor()) return ContentOf(value.toTensor());
  if (value.isDouble()) return absl::StrCat("f", absl::Hex(std::bit_cast<uint64_t>(value.toDouble())));
  if (value.isInt()) return absl::StrCat("i", value.toInt());
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isNone()) return "none";
  if (value.isString()) return absl::StrCat("'", value.toStringRef(), "'");
  if (value.isList()) {
    std::string text = "(";
    for (const c10::IValue& item : value.toListRef()) absl::StrAppend(&text, TextOf(item), ",");
    return text + ")";
  }
  std::ostringstream out;
  out << value;
  return out.str();
}

bool HoldsSizes(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::SymIntType) return true;
  if (const auto* list = type.castRaw<c10::ListType>()) return HoldsSizes(*list->getElementType());
  if (const auto* optional = type.castRaw<c10::OptionalType>()) return HoldsSizes(*optional->getElementType());
  return false;
}

bool HoldsNumbers(const c10::Type& type) {
  if (const auto* list = type.castRaw<c10::ListType>()) return HoldsNumbers(*list->getElementType());
  if (const auto* optional = type.castRaw<c10::OptionalType>()) return HoldsNumbers(*optional->getElementType());
  return type.kind() == c10::TypeKind::NumberType || type.kind() == c10::TypeKind::FloatType ||
         type.kind() == c10::TypeKind::IntType || type.kind() == c10::TypeKind::SymIntType;
}

// Returns whether the argument is a size, or the beginning or end of a part. An argument that belongs to a layer, such
// as the stride of a convolution, is not. The kernel of a pool may be the size of an image.
bool IsSize(const Node& node, size_t argument) {
  if (const OpRow* row = RowOf(node)) {
    switch (row->family) {
      case Family::kConv:
        return false;
      case Family::kMaxPool:
      case Family::kAvgPool:
        return &node.args[argument] == FindArg(node, "kernel_size") ||
               (&node.args[argument] == FindArg(node, "stride") &&
                ConstInts(FindArg(node, "stride")) == ConstInts(FindArg(node, "kernel_size")));
      default:
        break;
    }
  }
  const auto& arguments = node.op->schema().arguments();
  if (argument >= arguments.size()) return false;
  const c10::Type& type = *arguments[argument].real_type();
  if (HoldsSizes(type)) return true;
  // A resize by a factor that follows from sizes; numbers from 0 to a size.
  const std::string& name = node.op->operator_name().name;
  const bool resizes = name.compare(0, 14, "aten::upsample") == 0 || name.compare(0, 15, "aten::_upsample") == 0;
  return (resizes || Is(node, "aten::arange") || Is(node, "aten::arange", "start") ||
          Is(node, "aten::arange", "start_step") || Is(node, "aten::linspace")) &&
         HoldsNumbers(type);
}

// Whether the op gives its argument, a part of it, or pads it with zeros. A program may leave it out for some sizes. Torch
// gives an alias where the part is the whole.
bool TakesPart(const Node& node) {
  if (node.is_scalar() || node.args.empty() || node.args[0].kind != Arg::Kind::kValue) return false;
  return Is(node, "aten::slice", "Tensor") || Is(node, "aten::narrow") || Is(node, "aten::alias") ||
         Is(node, "aten::detach") || Is(node, "aten::contiguous") ||
         ((Is(node, "aten::pad") || Is(node, "aten::constant_pad_nd")) && PadsWithZero(node));
}

class Namer {
 public:
  Namer(const Graph& graph, Names* names) : graph_(graph), names_(names) {
    result_.exact.assign(graph.values.size(), 0);
    result_.loose.assign(graph.values.size(), 0);
    result_.placed.assign(graph.values.size(), 0);
    result_.whole.assign(graph.values.size(), 0);
    result_.local.assign(graph.values.size(), 0);
    is_frozen_.assign(graph.values.size(), false);
  }

  Structure Run(const std::vector<at::Tensor>& weights) {
    absl::flat_hash_map<std::string, int> met;
    for (size_t i = 0; i < graph_.inputs.size(); ++i) {
      const Value& value = graph_.value(graph_.inputs[i]);
      if (i < weights.size() && weights[i].defined()) {
        const std::string text = absl::StrCat("weight ", IdentityOf(weights[i]));
        Set(graph_.inputs[i], text, text, text);
        is_frozen_[graph_.inputs[i].raw()] = true;
        continue;
      }
      const std::string type = absl::StrCat("input ", static_cast<int>(value.type.kind), " ",
                                            static_cast<int>(value.type.dtype), " ", value.type.sizes.size());
      const std::string named = absl::StrCat(type, " ", value.name);
      Set(graph_.inputs[i], named, named, absl::StrCat(type, " ", met[type]++));
      if (value.type.kind == Type::Kind::kTensor) result_.inputs[type].insert(value.name);
    }
    for (const auto& [v, tensor] : graph_.constants) {
      const std::string text = absl::StrCat("constant ", ContentOf(tensor));
      Set(v, text, text, text);
      is_frozen_[v.raw()] = true;
    }
    now_ = result_;
    for (const Node& node : graph_.nodes) Meet(node);
    return std::move(result_);
  }

 private:
  using Kind = std::vector<uint32_t> Structure::*;
  static constexpr size_t kCount = 4;
  static constexpr Kind kKinds[kCount] = {&Structure::exact, &Structure::loose, &Structure::placed, &Structure::whole};
  static constexpr const char* kMarks[kCount] = {"=", "~", "~", "~"};

  void Set(ValueId v, const std::string& exact, const std::string& loose, const std::string& placed) {
    const std::string* const texts[kCount] = {&exact, &loose, &placed, &loose};
    for (size_t k = 0; k < kCount; ++k) (result_.*kKinds[k])[v.raw()] = names_->Of(kMarks[k] + *texts[k]);
  }

  std::string Text(const Arg& arg, Kind kind, bool is_size) const {
    const bool is_blank = kind != &Structure::exact && is_size;
    if (arg.kind == Arg::Kind::kConst) return is_blank ? Blank(arg.constant) : TextOf(arg.constant);
    if (arg.kind == Arg::Kind::kValue) {
      if (is_blank && graph_.value(arg.value).type.kind != Type::Kind::kTensor) return "#";
      return absl::StrCat("%", (now_.*kind)[arg.value.raw()]);
    }
    std::string text = "(";
    for (const Arg& item : arg.items) absl::StrAppend(&text, Text(item, kind, is_size), ",");
    return text + ")";
  }

  // S3. `is_layer`: the argument is of a layer, whose other arguments do not count.
  std::string LocalText(const Arg& arg, bool is_layer, bool is_size) const {
    if (arg.kind == Arg::Kind::kValue) {
      const size_t v = arg.value.raw();
      if (is_layer && !is_frozen_[v]) return "_";
      if (now_.local[v] != 0) return absl::StrCat("@", now_.local[v]);
    }
    if (arg.kind != Arg::Kind::kList) return Text(arg, &Structure::placed, is_size);
    std::string text = "(", last;
    for (const Arg& item : arg.items) {
      const std::string one = LocalText(item, is_layer, is_size);
      if (one != last) absl::StrAppend(&text, one, ",");
      last = one;
    }
    return text + ")";
  }

  // Returns "" if no layer has a part in the results.
  std::string LocalTextOf(const Node& node, const std::string& op) const {
    bool reads_frozen = false, reads_local = false;
    ForEachUse(node.args, [&](ValueId v) {
      reads_frozen = reads_frozen || is_frozen_[v.raw()];
      reads_local = reads_local || now_.local[v.raw()] != 0;
    });
    const bool may_be_layer = IsLayer(node) || MayBeLinear(node) || FamilyOf(node) == Family::kRecurrent;
    const bool is_layer = may_be_layer && reads_frozen;
    if (!is_layer && !reads_local) return "";
    std::string text = op;
    for (size_t i = 0; i < node.args.size(); ++i) {
      absl::StrAppend(&text, " ", LocalText(node.args[i], is_layer, !node.is_scalar() && IsSize(node, i)));
    }
    return text;
  }

  bool IsFrozen(const Node& node) const {
    bool reads_any = false, reads_other = false;
    ForEachUse(node.args, [&](ValueId v) {
      reads_any = true;
      reads_other = reads_other || !is_frozen_[v.raw()];
    });
    return reads_any && !reads_other;
  }

  static std::string Blank(const c10::IValue& value) {
    if (value.isNone()) return "none";
    if (!value.isList()) return "#";
    std::string text = "(";
    for (size_t i = 0; i < value.toListRef().size(); ++i) text += "#,";
    return text + ")";
  }

  void Meet(const Node& node) {
    std::string op = node.is_scalar()
                         ? absl::StrCat("scalar ", static_cast<int>(node.builtin_op))
                         : absl::StrCat(node.op->operator_name().name, ".", node.op->operator_name().overload_name);
    if (IsUnderAutocast(graph_, node)) op += " autocast";
    std::string text[kCount];
    for (size_t k = 0; k < kCount; ++k) {
      text[k] = op;
      for (size_t i = 0; i < node.args.size(); ++i) {
        absl::StrAppend(&text[k], " ", Text(node.args[i], kKinds[k], !node.is_scalar() && IsSize(node, i)));
      }
    }
    const std::string local = LocalTextOf(node, op);
    const bool is_frozen = IsFrozen(node);
    for (ValueId v : WrittenBy(node)) {
      NameSharing(v, text, local);
      for (size_t k = 0; k < kCount; ++k) (now_.*kKinds[k])[v.raw()] = names_->Of(kMarks[k] + ("written " + text[k]));
      now_.local[v.raw()] = local.empty() ? 0 : names_->Of("@written " + local);
      is_frozen_[v.raw()] = is_frozen_[v.raw()] && is_frozen;
    }
    for (size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId v = node.outputs[o];
      for (size_t k = 0; k < kCount; ++k) {
        (result_.*kKinds[k])[v.raw()] = names_->Of(absl::StrCat(kMarks[k], o, " of ", text[k]));
      }
      if (TakesPart(node)) result_.whole[v.raw()] = now_.whole[node.args[0].value.raw()];
      for (const Kind kind : kKinds) (now_.*kind)[v.raw()] = (result_.*kind)[v.raw()];
      result_.local[v.raw()] = now_.local[v.raw()] =
          local.empty() ? 0 : names_->Of(absl::StrCat("@", o, " of ", local));
      is_frozen_[v.raw()] = is_frozen;
    }
  }

  // Gives other names to the values that share the memory of `written`.
  void NameSharing(ValueId written, const std::string (&text)[kCount], const std::string& local) {
    if (!aliases_) aliases_.emplace(graph_);
    for (size_t v = 0; v < graph_.values.size(); ++v) {
      if (ValueId(v) == written || !aliases_->same(ValueId(v), written)) continue;
      for (size_t k = 0; k < kCount; ++k) {
        uint32_t& name = (now_.*kKinds[k])[v];
        name = names_->Of(absl::StrCat(kMarks[k], "shared ", name, " ", text[k]));
      }
      if (!local.empty()) now_.local[v] = names_->Of(absl::StrCat("@shared ", now_.local[v], " ", local));
    }
  }

  const Graph& graph_;
  Names* const names_;
  std::optional<Aliases> aliases_;
  Structure result_;             // of values when they were new
  Structure now_;                // of values as later nodes meet them: some have been written to
  std::vector<bool> is_frozen_;  // by value: made of weights and constants alone
};

}  // namespace

uint32_t Names::Of(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return numbers_.try_emplace(text, static_cast<uint32_t>(numbers_.size() + 1)).first->second;
}

Structure StructureOf(const Graph& graph, const std::vector<at::Tensor>& weights, Names* names) {
  return Namer(graph, names).Run(weights);
}

}  // namespace frametap::quant
