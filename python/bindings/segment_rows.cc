#include "python/bindings/segment_rows.h"

#include <pybind11/stl.h>

#include "backends/callable/values.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/segment/new_objects.h"
#include "guards/objects/torch_tensor.h"
#include "ir/segment/predicate.h"
#include "ir/segment/rows.h"
#include "ir/segment/state.h"

namespace frametap {

py::dict PositionDict(const Position& at) {
  py::dict d;
  d["text"] = ToString(at);
  d["function"] = at.function.str();
  d["line"] = at.line;
  d["col"] = at.col;
  d["file"] = at.file.str();
  return d;
}

py::tuple SourceStep(SourceId id, Segment& segment) {
  const Source& source = segment.Shown().sources[id];
  py::object key = source.text.empty() ? py::object(py::int_(source.index)) : py::object(py::str(source.text));
  if (source.accessor == Accessor::kPinned) {
    key = py::reinterpret_borrow<py::object>(segment.guards->frozen().steps[id.raw()].key.object.get());
  }
  return py::make_tuple(std::string(WordOf(source.accessor)), key);
}

py::list SourcePath(SourceId id, Segment& segment) {
  const SourceTable& sources = segment.Shown().sources;
  std::vector<SourceId> steps;
  for (; id.valid(); id = sources[id].parent) steps.push_back(id);
  py::list out;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) out.append(SourceStep(*step, segment));
  return out;
}

const GuardEntry* EntryOf(const Segment& segment, size_t number) {
  const FrozenGuards& frozen = segment.guards->frozen();
  return number < frozen.predicates.size() ? &frozen.predicates[number] : nullptr;
}

py::object GuardHolds(const Segment& segment, size_t number, const py::object& object) {
  const GuardEntry* entry = EntryOf(segment, number);
  if (entry == nullptr || entry->guard == nullptr) return py::none();
  if (segment.guards->IsNumber(entry->source)) return py::none();
  return py::bool_(entry->guard->Holds(Reached::Object(object.ptr())));
}

namespace {

py::tuple SizesTuple(const Sizes& sizes) {
  py::tuple out(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    out[i] = sizes[i] < 0 ? py::object(py::none()) : py::object(py::int_(sizes[i]));
  }
  return out;
}

py::dict TensorFacts(const Predicate::Tensor& tensor) {
  py::dict d;
  d["text"] = ToString(tensor);
  d["dtype"] = py::reinterpret_borrow<py::object>(DtypeObject(tensor.dtype));
  d["shape"] = SizesTuple(tensor.sizes);
  d["strides"] = tensor.strides ? py::object(SizesTuple(*tensor.strides)) : py::object(py::none());
  d["has_offset"] = tensor.has_offset;
  d["device"] = tensor.device.str();
  d["requires_grad"] = tensor.requires_grad;
  return d;
}

// A comparison of expressions with the names n0, n1 ... for the numbers, and their paths.
py::dict FormulaObject(const RelatedNumbers& related, Segment& segment) {
  std::vector<std::string> names;
  py::list paths;
  for (const SourceId number : related.numbers) {
    names.push_back("n" + std::to_string(names.size()));
    paths.append(SourcePath(number, segment));
  }
  py::dict d;
  d["text"] = related.relation->Want(names);
  d["paths"] = paths;
  return d;
}

}  // namespace

void AddPredicate(const Predicate& predicate, const GuardEntry* entry, Segment& segment, py::dict* row) {
  struct ToPython {
    const SourceTable& sources;
    py::object operator()(std::monostate) const { return py::none(); }
    py::object operator()(const std::string& text) const { return py::str(text); }
    py::object operator()(int64_t number) const { return py::int_(number); }
    py::object operator()(SourceId source) const { return py::str(sources.Name(source)); }
    py::object operator()(const Predicate::Tensor& tensor) const { return TensorFacts(tensor); }
  };
  py::dict& d = *row;
  const SourceTable& sources = segment.Shown().sources;
  d["predicate"] = ToString(predicate, sources);
  d["kind"] = std::string(RowOf(predicate.form).word);
  d["argument"] = std::visit(ToPython{sources}, predicate.argument);
  const bool is_same = entry != nullptr && entry->other.valid();
  d["other"] = is_same ? py::object(SourcePath(entry->other, segment)) : py::none();
  const bool is_formula = entry != nullptr && entry->related != nullptr;
  d["formula"] = is_formula ? py::object(FormulaObject(*entry->related, segment)) : py::none();
}

py::dict FrameObject(const SnapshotFrame& frame, Segment& segment) {
  py::dict d;
  d["function"] = frame.function;
  d["resume_offset"] = frame.offset;
  py::dict locals;
  for (const auto& [name, operand] : frame.locals) locals[py::str(name)] = OperandObject(operand, segment);
  d["locals"] = locals;
  py::list stack;
  for (const Operand& operand : frame.stack) stack.append(OperandObject(operand, segment));
  d["stack"] = stack;
  return d;
}

py::object OperandObject(const Operand& operand, Segment& segment) {
  py::dict d;
  d["kind"] = std::string(WordOf(operand.kind));
  if (operand.kind == Operand::Kind::kValue) d["value"] = segment.Shown().graph.value(operand.value).name;
  if (operand.kind == Operand::Kind::kSource) {
    const SourceTable& sources = segment.Shown().sources;
    const Source& source = sources[operand.source];
    d["source"] = sources.Name(operand.source);
    d["path"] = SourcePath(operand.source, segment);
    d["local"] = source.accessor == Accessor::kLocal ? py::object(py::str(source.text)) : py::object(py::none());
  }
  if (operand.kind == Operand::Kind::kConst || operand.kind == Operand::Kind::kNew) {
    d["constant"] = py::reinterpret_borrow<py::object>(segment.constants[operand.constant.raw()].get());
  }
  if (operand.kind == Operand::Kind::kNew) {
    const auto made = static_cast<NewKind>(operand.index);
    d["new"] = operand.index;
    d["form"] = made == NewKind::kObject  ? "object"
                : made == NewKind::kDict  ? "dict"
                : made == NewKind::kTuple ? "tuple"
                                          : "";
  }
  d["label"] = operand.label;
  d["index"] = operand.index;
  d["names"] = operand.names;
  py::list items;
  for (const Operand& item : operand.items) items.append(OperandObject(item, segment));
  d["items"] = items;
  if (operand.kind == Operand::Kind::kGenerator) {
    py::list frames;
    for (const SnapshotFrame& frame : operand.frame) frames.append(FrameObject(frame, segment));
    d["frame"] = frames;
  }
  return d;
}

}  // namespace frametap
