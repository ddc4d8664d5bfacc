#include "ir/text/verify.h"

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/literal.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

absl::Status Bad(std::string message) { return absl::InvalidArgumentError(std::move(message)); }

bool Known(const Graph& graph, ValueId id) { return id.valid() && id.raw() < graph.values.size(); }

// The schema's type in the terms of a value's type. Types that values have no word for take anything.
bool Takes(const c10::Type& type, Type::Kind kind) {
  if (kind == Type::Kind::kNone || kind == Type::Kind::kOpaque) return true;
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return kind != Type::Kind::kTensorList;  // a number becomes a wrapped one
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return kind == Type::Kind::kInt || kind == Type::Kind::kBool;
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
    case c10::TypeKind::NumberType:
    case c10::TypeKind::ComplexType:
      return kind == Type::Kind::kInt || kind == Type::Kind::kFloat || kind == Type::Kind::kBool;
    case c10::TypeKind::ListType: {
      const bool tensors =
          StripOptional(type.castRaw<c10::ListType>()->getElementType().get())->kind() == c10::TypeKind::TensorType;
      return tensors ? kind == Type::Kind::kTensorList : false;
    }
    case c10::TypeKind::StringType:
    case c10::TypeKind::DeviceObjType:
    case c10::TypeKind::GeneratorType:
    case c10::TypeKind::StorageType:
      return false;
    default:
      return true;
  }
}

bool TakesConst(const c10::Type& type, const c10::IValue& value, bool optional) {
  if (value.isNone()) return optional || type.kind() == c10::TypeKind::TensorType;  // None is the undefined tensor
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return value.isScalar() || (value.isTensor() && !value.toTensor().defined());
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return value.isInt();
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return value.isBool();
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return value.isDouble();
    case c10::TypeKind::ComplexType:
      return value.isComplexDouble();
    case c10::TypeKind::NumberType:
      return value.isScalar();
    case c10::TypeKind::StringType:
      return value.isString();
    case c10::TypeKind::DeviceObjType:
      return value.isDevice();
    case c10::TypeKind::GeneratorType:
      return value.isGenerator();
    case c10::TypeKind::ListType: {
      if (!value.isList()) return false;
      const c10::Type* element = type.castRaw<c10::ListType>()->getElementType().get();
      const bool optional_element = element->kind() == c10::TypeKind::OptionalType;
      for (const c10::IValue& item : value.toListRef()) {
        if (!TakesConst(*StripOptional(element), item, optional_element)) return false;
      }
      return true;
    }
    default:
      return true;
  }
}

absl::Status CheckArg(const Graph& graph, const Arg& arg, const c10::Type* type, const c10::Type* real,
                      const std::string& what) {
  const bool optional = type->kind() == c10::TypeKind::OptionalType;
  type = StripOptional(type);
  real = StripOptional(real);
  switch (arg.kind) {
    case Arg::Kind::kValue:
      if (!Known(graph, arg.value)) return Bad(absl::StrCat(what, " is not a value of the graph"));
      if (!Takes(*type, graph.value(arg.value).type.kind)) {
        return Bad(absl::StrCat(what, " wants ", real->str(), ", not %", graph.value(arg.value).name, " : ",
                                ToString(graph.value(arg.value).type)));
      }
      return absl::OkStatus();
    case Arg::Kind::kConst:
      if (!TakesConst(*type, arg.constant, optional)) {
        return Bad(absl::StrCat(what, " wants ", real->str(), ", not ", ConstText(arg.constant, real)));
      }
      if (!HasText(arg.constant, real)) {
        return absl::UnimplementedError(absl::StrCat(what, " is a ", arg.constant.tagKind(), ", which has no text"));
      }
      return absl::OkStatus();
    case Arg::Kind::kList:
      break;
  }
  if (type->kind() != c10::TypeKind::ListType) return Bad(absl::StrCat(what, " is not a list"));
  const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
  const c10::TypePtr real_element = real->castRaw<c10::ListType>()->getElementType();
  for (const Arg& item : arg.items) {
    const absl::Status status = CheckArg(graph, item, element.get(), real_element.get(), what);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status VerifyScalar(const Graph& graph, const Node& node) {
  if (node.builtin_op == BuiltinOp::kNone) return Bad("neither an operator nor a scalar op");
  const ScalarRow& row = RowOf(node.builtin_op);
  if (node.args.size() != row.arity)
    return Bad(absl::StrCat("takes ", row.arity, " arguments, not ", node.args.size()));
  for (size_t i = 0; i < node.args.size(); ++i) {
    const Arg& arg = node.args[i];
    if (arg.kind == Arg::Kind::kList) return Bad("takes no list");
    if (arg.kind == Arg::Kind::kValue && !Known(graph, arg.value))
      return Bad("an argument is not a value of the graph");
    const bool constant = arg.kind == Arg::Kind::kConst;
    const Type::Kind kind = constant ? (arg.constant.isInt()      ? Type::Kind::kInt
                                        : arg.constant.isDouble() ? Type::Kind::kFloat
                                        : arg.constant.isBool()   ? Type::Kind::kBool
                                                                  : Type::Kind::kTensor)
                                     : graph.value(arg.value).type.kind;
    bool fits = kind == Type::Kind::kNone || kind == Type::Kind::kOpaque;
    if (row.operands == Type::Kind::kNone) {
      const Type::Kind of = node.builtin_op == BuiltinOp::kListItem ? Type::Kind::kTensorList : Type::Kind::kTensor;
      fits = i == 0 || node.builtin_op == BuiltinOp::kAnother
                 ? !constant && (fits || kind == of)
                 : constant && kind == Type::Kind::kInt && arg.constant.toInt() >= 0;
    } else {
      fits = fits || kind == Type::Kind::kInt || kind == Type::Kind::kBool ||
             (kind == Type::Kind::kFloat && row.operands == Type::Kind::kFloat);
    }
    if (!fits) return Bad(absl::StrCat("argument ", i, " is of the wrong kind"));
  }
  if (node.outputs.size() != 1) return Bad("has one result");
  return absl::OkStatus();
}

// -- segments
// -----------------------------------------------------------------------------------------------------------

class SegmentCheck {
 public:
  explicit SegmentCheck(const SegmentIr& segment) : s_(segment) {}

  absl::Status Run() {
    if (s_.name.empty() || HasBlank(s_.name)) return Bad("a segment has a name without blanks");
    if (s_.function.empty() || HasBlank(s_.function) || s_.function.find(':') != std::string::npos) {
      return Bad("a segment has a function, without blanks and colons");
    }
    if (s_.entry.empty() || s_.entry.find('\n') != std::string::npos) return Bad("a segment has an entry");
    for (size_t i = 0; i < s_.sources.size(); ++i) {
      const Source& source = s_.sources[SourceId(i)];
      if (source.parent.valid() && source.parent.raw() >= i) return Bad("S1: a source before its parent");
    }
    absl::flat_hash_set<uint32_t> inputs;
    for (const ValueId id : s_.graph.inputs) inputs.insert(id.raw());
    for (const GuardLine& line : s_.guards) {
      if (!KnownSource(line.source)) return Bad("a guard on a source that is not in the table");
      if (line.binds.valid() && !inputs.contains(line.binds.raw())) {
        return Bad(absl::StrCat("the guard on ", s_.sources.Name(line.source),
                                " binds a value that is not an input of the graph"));
      }
      if (!line.predicate) continue;
      if (!HasItsArgument(*line.predicate)) return Bad("predicate/P1: a predicate with an argument of another type");
      const auto* other = std::get_if<SourceId>(&line.predicate->argument);
      if (other != nullptr && !KnownSource(*other)) return Bad("a predicate names a source that is not in the table");
    }
    absl::Status status = Verify(s_.decisions.graph);
    if (!status.ok()) return status;
    if (s_.decisions.sources.size() != s_.decisions.graph.inputs.size() ||
        s_.decisions.outcomes.size() != s_.decisions.graph.outputs.size()) {
      return Bad("decisions have a source for each input and an outcome for each output");
    }
    for (const SourceId id : s_.decisions.sources) {
      if (!KnownSource(id)) return Bad("a decision reads a source that is not in the table");
    }
    for (const Effect& effect : s_.effects) {
      for (const Operand* o : {&effect.target, &effect.key, &effect.value}) {
        if (status = Check(*o); !status.ok()) return status;
      }
      if (effect.kind != Effect::Kind::kYield) continue;
      if (status = CheckFrame(effect.frame); !status.ok()) return status;
    }
    if (s_.exit.kind == Exit::Kind::kReturn) return Check(s_.exit.result);
    if (!RowOf(s_.exit.reason).is_break) return Bad("an exit that resumes has a reason that ends a segment");
    if (s_.exit.frames.empty()) return Bad("an exit that resumes has a frame");
    for (const SnapshotFrame& frame : s_.exit.frames) {
      if (status = CheckFrame(frame); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

 private:
  static bool HasBlank(const std::string& text) {
    for (const char c : text) {
      if (static_cast<unsigned char>(c) <= ' ') return true;
    }
    return false;
  }

  absl::Status CheckFrame(const SnapshotFrame& frame) {
    if (frame.function.empty() || HasBlank(frame.function)) return Bad("the frame of an exit has a function");
    for (const auto& [name, operand] : frame.locals) {
      if (name.empty() || HasBlank(name)) return Bad("a local of an exit's frame has no name");
      if (absl::Status status = Check(operand); !status.ok()) return status;
    }
    for (const Operand& operand : frame.stack) {
      if (absl::Status status = Check(operand); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  bool KnownSource(SourceId id) const { return id.valid() && id.raw() < s_.sources.size(); }

  // Labels are seen in the order in which the text shows them, which is the order in which replay builds.
  absl::Status Check(const Operand& o) {
    if (o.label >= 0 && o.kind != Operand::Kind::kShared && !labels_.insert(o.label).second) {
      return Bad(absl::StrCat("the label &", o.label, " is given twice"));
    }
    size_t want = o.items.size();
    switch (o.kind) {
      case Operand::Kind::kValue:
        if (!Known(s_.graph, o.value)) return Bad("an operand is not a value of the graph");
        break;
      case Operand::Kind::kSource:
        if (!KnownSource(o.source)) return Bad("an operand is a source that is not in the table");
        break;
      case Operand::Kind::kShared:
        if (!labels_.contains(o.index)) return Bad(absl::StrCat("nothing before it has the label &", o.index));
        break;
      case Operand::Kind::kSlice:
        want = 3;
        break;
      case Operand::Kind::kMethod:
        want = 2;
        break;
      case Operand::Kind::kCell:
        want = 1;
        break;
      case Operand::Kind::kIter:
        if (want < 2 || want > 3) return Bad("an iterator is made of a callable, arguments and perhaps a state");
        break;
      case Operand::Kind::kGenerator:
        want = 1;
        if (o.frame.size() > 1) return Bad("a generator has one frame");
        for (const SnapshotFrame& frame : o.frame) {
          if (absl::Status status = CheckFrame(frame); !status.ok()) return status;
        }
        break;
      case Operand::Kind::kDict:
        want += want % 2;
        break;
      case Operand::Kind::kNew:
        if (o.names.size() > o.items.size()) return Bad("an object with more names than items");
        break;
      default:
        break;
    }
    if (o.items.size() != want) return Bad(absl::StrCat("an operand has ", o.items.size(), " items, not ", want));
    for (const Operand& item : o.items) {
      const absl::Status status = Check(item);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const SegmentIr& s_;
  absl::flat_hash_set<int64_t> labels_;
};

}  // namespace

absl::Status VerifyNode(const Graph& graph, const Node& node) {
  if (node.is_scalar()) return VerifyScalar(graph, node);
  const c10::FunctionSchema& schema = node.op->schema();
  const std::vector<c10::Argument>& want = schema.arguments();
  if (node.args.size() != want.size()) {
    return Bad(absl::StrCat("G2: takes ", want.size(), " arguments, not ", node.args.size()));
  }
  for (size_t i = 0; i < want.size(); ++i) {
    const absl::Status status = CheckArg(graph, node.args[i], want[i].type().get(), want[i].real_type().get(),
                                         absl::StrCat("argument '", want[i].name(), "'"));
    if (!status.ok()) return status;
  }
  if (node.outputs.size() != schema.returns().size()) {
    return Bad(absl::StrCat("has ", schema.returns().size(), " results, not ", node.outputs.size()));
  }
  return absl::OkStatus();
}

absl::Status Verify(const Graph& graph) {
  if (graph.states.empty()) return Bad("a graph has at least one state");
  absl::flat_hash_set<std::string> names;
  for (const Value& value : graph.values) {
    if (!value.name.empty() && !names.insert(value.name).second)
      return Bad(absl::StrCat("%", value.name, " names two values"));
  }
  std::vector<bool> defined(graph.values.size());
  const auto define = [&](ValueId id) {
    if (!Known(graph, id) || defined[id.raw()]) return false;
    defined[id.raw()] = true;
    return true;
  };
  for (const ValueId id : graph.inputs) {
    if (!define(id)) return Bad("G1: an input is not a value, or is defined twice");
  }
  for (const auto& [id, tensor] : graph.constants) {
    if (!define(id)) return Bad("G1: a constant is not a value, or is defined twice");
  }
  absl::Status without_text;  // reported last: it hides no other error
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const std::string at = absl::StrCat("node ", i, ", ", node.op_name(), ": ");
    if (!node.state.valid() || node.state.raw() >= graph.states.size()) return Bad(at + "has no state");
    if (const absl::Status status = VerifyNode(graph, node); !status.ok()) {
      absl::Status named(status.code(), absl::StrCat(at, status.message()));
      if (!absl::IsUnimplemented(named)) return named;
      if (without_text.ok()) without_text = std::move(named);
    }
    bool before_use = true;
    ForEachUse(node.args, [&](ValueId use) { before_use = before_use && Known(graph, use) && defined[use.raw()]; });
    if (!before_use) return Bad(at + "G1: uses a value before it is defined");
    for (const ValueId output : node.outputs) {
      if (!define(output)) return Bad(at + "G1: a result is not a value, or is defined twice");
      if (graph.value(output).def != NodeId(i)) return Bad(at + "G1: a result does not name its node");
    }
  }
  for (const ValueId id : graph.outputs) {
    if (!Known(graph, id) || !defined[id.raw()]) return Bad("G1: the graph returns a value that is not defined");
  }
  return without_text;
}

absl::Status VerifyRunnable(const Graph& graph) {
  absl::Status status = Verify(graph);
  return absl::IsUnimplemented(status) ? absl::OkStatus() : status;
}

absl::Status Verify(const SegmentIr& segment) {
  absl::Status status = Verify(segment.graph);
  return status.ok() ? SegmentCheck(segment).Run() : status;
}

}  // namespace frametap
