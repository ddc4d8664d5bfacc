// The printer. Everything that is left out (defaults, file names, offsets) is listed in docs/text_form.md.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/literal.h"
#include "ir/segment/rows.h"
#include "ir/text/symbolic_sizes.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

// A position column further right than this helps no reader; longer lines stand out instead.
constexpr size_t kWidestAligned = 84;

std::string ValueName(const Graph& graph, ValueId id) {
  return id.valid() && id.raw() < graph.values.size() ? "%" + graph.value(id).name : "%?";
}

// A value with its type; without types if `sizes` is null.
std::string TypedName(const Graph& graph, ValueId id, const SymbolicSizes* sizes) {
  std::string out = ValueName(graph, id);
  if (sizes == nullptr || !id.valid() || id.raw() >= graph.values.size()) return out;
  const Type& type = graph.value(id).type;
  if (type.kind != Type::Kind::kNone) absl::StrAppend(&out, " : ", ToString(type, sizes->sizes[id.raw()]));
  return out;
}

// An input that is the size of another one says so: "%n : int = s0".
std::string InputName(const Graph& graph, ValueId id, const SymbolicSizes* sizes) {
  std::string out = TypedName(graph, id, sizes);
  for (size_t i = 0; sizes != nullptr && !sizes->symbols.empty() && i < graph.symbols.size(); ++i) {
    if (graph.symbols[i].number == id) absl::StrAppend(&out, " = ", sizes->symbols[i].first);
  }
  return out;
}

std::string ArgText(const Graph& graph, const Arg& arg, const c10::Type* real) {
  switch (arg.kind) {
    case Arg::Kind::kConst:
      return ConstText(arg.constant, real);
    case Arg::Kind::kValue:
      return ValueName(graph, arg.value);
    case Arg::Kind::kList:
      break;
  }
  real = StripOptional(real);
  const bool list = real != nullptr && real->kind() == c10::TypeKind::ListType;
  const c10::TypePtr element = list ? real->castRaw<c10::ListType>()->getElementType() : nullptr;
  return absl::StrCat(
      "[",
      absl::StrJoin(arg.items, ", ",
                    [&](std::string* out, const Arg& item) { *out += ArgText(graph, item, element.get()); }),
      "]");
}

bool IsDefault(const Arg& arg, const c10::Argument& schema) {
  return arg.kind == Arg::Kind::kConst && schema.default_value().has_value() &&
         SameConst(arg.constant, *schema.default_value());
}

std::string ArgsText(const Graph& graph, const Node& node) {
  std::vector<std::string> parts;
  if (node.is_scalar()) {
    for (const Arg& arg : node.args) parts.push_back(ArgText(graph, arg, nullptr));
    return absl::StrJoin(parts, ", ");
  }
  const std::vector<c10::Argument>& schema = node.op->schema().arguments();
  bool by_name = false;
  for (size_t i = 0; i < node.args.size(); ++i) {
    if (i >= schema.size()) {  // Verify refuses it
      parts.push_back(ArgText(graph, node.args[i], nullptr));
      continue;
    }
    by_name = by_name || schema[i].kwarg_only();
    if (IsDefault(node.args[i], schema[i])) {
      by_name = true;
      continue;
    }
    const std::string text = ArgText(graph, node.args[i], schema[i].real_type().get());
    parts.push_back(by_name ? absl::StrCat(schema[i].name(), "=", text) : text);
  }
  return absl::StrJoin(parts, ", ");
}

// Where `state` differs from `base`: "grad_mode(off), autocast(bf16)".
std::string StateText(const EagerState& state, const EagerState& base) {
  std::vector<std::string> parts;
  const auto flag = [&](const char* name, bool now, bool before) {
    if (now != before) parts.push_back(absl::StrCat(name, now ? "(on)" : "(off)"));
  };
  flag("grad_mode", state.grad_mode, base.grad_mode);
  flag("inference_mode", state.inference_mode, base.inference_mode);
  const std::string dtype = DtypeName(state.autocast_cpu_dtype);
  const bool same_dtype = state.autocast_cpu_dtype == base.autocast_cpu_dtype;
  if (state.autocast_cpu && !(base.autocast_cpu && same_dtype)) {
    parts.push_back(absl::StrCat("autocast(", dtype, ")"));
  } else if (!state.autocast_cpu && (base.autocast_cpu || !same_dtype)) {
    parts.push_back(same_dtype ? "autocast(off)" : absl::StrCat("autocast(off ", dtype, ")"));
  }
  flag("autocast_cache", state.autocast_cache, base.autocast_cache);
  return absl::StrJoin(parts, ", ");
}

std::string NodeText(const Graph& graph, const Node& node, const SymbolicSizes* sizes) {
  std::vector<std::string> outputs;
  for (const ValueId id : node.outputs) outputs.push_back(TypedName(graph, id, sizes));
  std::string out = absl::StrJoin(outputs, ", ");
  if (!out.empty()) out += " = ";
  absl::StrAppend(&out, node.op_name(), "(", ArgsText(graph, node), ")");
  if (node.state.valid() && node.state.raw() < graph.states.size()) {
    const std::string state = StateText(graph.states[node.state.raw()], graph.states[0]);
    if (!state.empty()) absl::StrAppend(&out, "  {", state, "}");
  }
  return out;
}

void AppendGraph(std::string* out, const Graph& graph, const std::string& indent, const PrintOptions& options,
                 const SymbolicSizes& found) {
  const SymbolicSizes* const sizes = options.types ? &found : nullptr;
  absl::StrAppend(
      out, indent, "graph (",
      absl::StrJoin(graph.inputs, ", ", [&](std::string* o, ValueId id) { *o += InputName(graph, id, sizes); }), ")");
  if (!found.symbols.empty()) {
    absl::StrAppend(out, " for ", absl::StrJoin(found.symbols, ", ", [](std::string* o, const auto& symbol) {
                      absl::StrAppend(o, symbol.first, " = ", symbol.second);
                    }));
  }
  const std::string base = StateText(graph.states[0], EagerState());
  if (!base.empty()) absl::StrAppend(out, " under {", base, "}");
  *out += " {\n";
  for (const auto& [id, tensor] : graph.constants) {
    absl::StrAppend(out, indent, "  constant ", TypedName(graph, id, sizes), "\n");
  }
  std::vector<std::string> lines;
  size_t width = 0;
  for (const Node& node : graph.nodes) {
    lines.push_back(NodeText(graph, node, sizes));
    if (lines.back().size() <= kWidestAligned) width = std::max(width, lines.back().size());
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    absl::StrAppend(out, indent, "  ", lines[i]);
    const WherePtr& where = graph.nodes[i].where;
    if (options.positions && where != nullptr && where->position.known()) {
      if (lines[i].size() < width) out->append(width - lines[i].size(), ' ');
      absl::StrAppend(out, "  @ ", ToString(where->position));
    }
    *out += "\n";
  }
  if (!graph.outputs.empty()) {
    absl::StrAppend(out, indent, "  return ",
                    absl::StrJoin(graph.outputs, ", ", [&](std::string* o, ValueId id) { *o += ValueName(graph, id); }),
                    "\n");
  }
  absl::StrAppend(out, indent, "}\n");
}

void AppendGraph(std::string* out, const Graph& graph, const std::string& indent, const PrintOptions& options) {
  AppendGraph(out, graph, indent, options, options.types ? SizesInSymbols(graph) : SymbolicSizes());
}

// -- segments
// -----------------------------------------------------------------------------------------------------------

std::string OperandText(const Operand& operand, const SegmentIr& segment);

std::string ItemsText(const std::vector<Operand>& items, const SegmentIr& segment) {
  return absl::StrJoin(items, ", ", [&](std::string* out, const Operand& item) { *out += OperandText(item, segment); });
}

// `line` is one that can be left out.
std::string FrameText(const SnapshotFrame& frame, int line, const SegmentIr& segment) {
  std::string out = frame.function;
  if (frame.line > 0 && frame.line != line) absl::StrAppend(&out, ":", frame.line);
  out += " : ";
  for (size_t i = 0; i < frame.locals.size(); ++i) {
    const auto& [name, operand] = frame.locals[i];
    absl::StrAppend(&out, i > 0 ? ", " : "", name, " = ", OperandText(operand, segment));
  }
  absl::StrAppend(&out, frame.locals.empty() ? "" : " ", "| stack = [", ItemsText(frame.stack, segment), "]");
  return out;
}

std::string ConstIdText(const Operand& operand) {
  std::string out = operand.constant.valid() ? absl::StrCat("const ", operand.constant.raw()) : "const ?";
  if (!operand.text.empty()) absl::StrAppend(&out, " ", Quoted(operand.text));
  return out;
}

std::string OperandText(const Operand& o, const SegmentIr& segment) {
  std::string out = o.label >= 0 ? absl::StrCat("&", o.label, "=") : "";
  const auto item = [&](size_t i) { return i < o.items.size() ? OperandText(o.items[i], segment) : "null"; };
  switch (o.kind) {
    case Operand::Kind::kNull:
      return out + "null";
    case Operand::Kind::kValue:
      return out + ValueName(segment.graph, o.value);
    case Operand::Kind::kSource:
      return out + segment.sources.Name(o.source);
    case Operand::Kind::kConst:
      return out + ConstIdText(o);
    case Operand::Kind::kTuple:
      return absl::StrCat(out, "(", ItemsText(o.items, segment), o.items.empty() ? ")" : ",)");
    case Operand::Kind::kList:
      return absl::StrCat(out, "[", ItemsText(o.items, segment), "]");
    case Operand::Kind::kSet:
      return absl::StrCat(out, "set{", ItemsText(o.items, segment), "}");
    case Operand::Kind::kDict: {
      out += "{";
      for (size_t i = 0; i + 1 < o.items.size(); i += 2) {
        absl::StrAppend(&out, i > 0 ? ", " : "", item(i), ": ", item(i + 1));
      }
      return out + "}";
    }
    case Operand::Kind::kSlice:
      return absl::StrCat(out, "slice(", item(0), ", ", item(1), ", ", item(2), ")");
    case Operand::Kind::kNew: {
      const size_t named = std::min(o.names.size(), o.items.size());
      const size_t plain = o.items.size() - named;
      absl::StrAppend(&out, "new ", ConstIdText(o));
      if (o.index != 0) absl::StrAppend(&out, " #", o.index);
      out += "(";
      for (size_t i = 0; i < plain; ++i) absl::StrAppend(&out, i > 0 ? ", " : "", item(i));
      out += ")";
      if (named == 0) return out;
      out += "{";
      for (size_t i = 0; i < named; ++i) {
        absl::StrAppend(&out, i > 0 ? ", " : "", Quoted(o.names[i]), ": ", item(plain + i));
      }
      return out + "}";
    }
    case Operand::Kind::kIter:
      return absl::StrCat(out, "iter(", ItemsText(o.items, segment), ")");
    case Operand::Kind::kMethod:
      return absl::StrCat(out, "method(", item(0), ", ", item(1), ")");
    case Operand::Kind::kCell:
      return absl::StrCat(out, "cell(", item(0), ")");
    case Operand::Kind::kGenerator:
      absl::StrAppend(&out, "generator(", item(0));
      if (!o.frame.empty()) absl::StrAppend(&out, ", ", FrameText(o.frame[0], 0, segment));
      return out + ")";
    case Operand::Kind::kShared:
      return absl::StrCat("&", o.index);
  }
  return out;
}

// A line of free words within the text: a line break would end it.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
  }
  const size_t from = text.find_first_not_of(' ');
  return from == std::string::npos ? "" : text.substr(from, text.find_last_not_of(' ') + 1 - from);
}

// `of` seen from its ancestor `from`: ".layers[0]"; empty if it is not below it.
std::string RelativeName(const SourceTable& sources, SourceId of, SourceId from) {
  std::string out;
  for (SourceId id = of; id.valid(); id = sources[id].parent) {
    if (id == from) return out;
    // It is written from the root, whatever line stands above.
    if (sources[id].accessor == Accessor::kGlobal && sources[id].parent.valid() &&
        sources[sources[id].parent].accessor == Accessor::kFunction) {
      return "";
    }
    out = StepText(sources[id]) + out;
  }
  return "";
}

void AppendGuards(std::string* out, const SegmentIr& segment, const PrintOptions& options) {
  std::vector<SourceId> open;  // sources of the lines that this one may be relative to, outermost first
  for (const GuardLine& line : segment.guards) {
    std::string path;
    while (!open.empty()) {
      path = RelativeName(segment.sources, line.source, open.back());
      if (!path.empty()) break;
      open.pop_back();
    }
    if (open.empty()) path = segment.sources.Name(line.source);
    out->append(4 + 2 * open.size(), ' ');
    *out += path;
    if (line.binds.valid()) absl::StrAppend(out, " = ", ValueName(segment.graph, line.binds));
    if (line.predicate) absl::StrAppend(out, " : ", OneLine(ToString(*line.predicate, segment.sources)));
    if (options.guard_lines && line.why.known()) absl::StrAppend(out, "  @ ", ToString(line.why));
    *out += "\n";
    open.push_back(line.source);
  }
  if (segment.state.empty()) return;
  const auto fact_text = [](std::string* o, const StateFact& fact) { *o += ToString(fact); };
  absl::StrAppend(out, "    state : ", absl::StrJoin(segment.state, " ", fact_text), "\n");
}

void AppendDecisions(std::string* out, const SegmentIr& segment, const PrintOptions& options) {
  const Decisions& decisions = segment.decisions;
  if (decisions.outcomes.empty()) return;
  absl::StrAppend(
      out, "  decide (",
      absl::StrJoin(decisions.sources, ", ", [&](std::string* o, SourceId id) { *o += segment.sources.Name(id); }),
      ") is (",
      absl::StrJoin(decisions.outcomes, ", ", [](std::string* o, bool outcome) { *o += outcome ? "True" : "False"; }),
      ")\n");
  AppendGraph(out, decisions.graph, "  ", options);
}

std::string EffectText(const Effect& effect, const SegmentIr& segment) {
  const EffectRow& row = RowOf(effect.kind);
  std::string out(row.word);
  for (const char part : row.parts) {
    absl::StrAppend(&out, " ",
                    part == 'T'   ? OperandText(effect.target, segment)
                    : part == 'N' ? Quoted(effect.name)
                    : part == 'S' ? Quoted(std::string(WordOf(effect.state)))
                    : part == 'K' ? OperandText(effect.key, segment)
                    : part == 'V' ? OperandText(effect.value, segment)
                                  : FrameText(effect.frame, 0, segment));
  }
  return out;
}

void AppendEffects(std::string* out, const SegmentIr& segment, const PrintOptions& options) {
  if (segment.effects.empty()) return;
  const bool one = segment.effects.size() == 1;
  *out += one ? "  effect { " : "  effect {\n";
  for (const Effect& effect : segment.effects) {
    if (!one) *out += "    ";
    *out += EffectText(effect, segment);
    if (options.positions && effect.at.known()) absl::StrAppend(out, "  @ ", ToString(effect.at));
    *out += one ? " }\n" : "\n";
  }
  if (!one) *out += "  }\n";
}

void AppendExit(std::string* out, const SegmentIr& segment) {
  const Exit& exit = segment.exit;
  absl::StrAppend(out, "  exit ", std::string(WordOf(exit.kind)), " ");
  if (exit.kind == Exit::Kind::kReturn) {
    *out += OperandText(exit.result, segment);
    if (exit.at.known()) absl::StrAppend(out, " at ", ToString(exit.at));
    *out += "\n";
    return;
  }
  absl::StrAppend(out, ToString(exit.at), " because ", RowOf(exit.reason).name);
  if (!exit.detail.empty()) absl::StrAppend(out, " ", Quoted(exit.detail));
  *out += " {\n";
  for (const SnapshotFrame& frame : exit.frames) {
    absl::StrAppend(out, "    ", FrameText(frame, exit.at.line, segment), "\n");
  }
  *out += "  }\n";
}

}  // namespace

std::string Print(const Graph& graph, const PrintOptions& options) {
  std::string out;
  AppendGraph(&out, graph, "", options);
  return out;
}

std::string PrintWithRecordedSizes(const Graph& graph) {
  std::string out;
  AppendGraph(&out, graph, "", {}, RecordedSizes(graph));
  return out;
}

std::string Print(const SegmentIr& segment, const PrintOptions& options) {
  std::string out =
      absl::StrCat("segment ", segment.name, " {\n  entry ", segment.function, ":", segment.entry, "\n  guard {\n");
  AppendGuards(&out, segment, options);
  out += "  }\n";
  AppendDecisions(&out, segment, options);
  AppendGraph(&out, segment.graph, "  ", options);
  AppendEffects(&out, segment, options);
  AppendExit(&out, segment);
  return out + "}\n";
}

std::string Print(const Operand& operand, const SegmentIr& segment) { return OperandText(operand, segment); }

std::string Print(const Effect& effect, const SegmentIr& segment) { return EffectText(effect, segment); }

}  // namespace frametap
