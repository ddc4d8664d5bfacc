// Graph, Node, Value as Python sees them: read-only views that keep their graph alive.
//   W1  A Value equals another if both name the same value of the same graph; it is a dict key.
//   W2  Node.args is in schema order and complete (graph/G2): Values, lists of them, and constants as torch.ops takes them.
// Not here: torch.fx (frametap/fx.py), running (backends.cc).
#include "ir/graph/graph.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "backends/callable/values.h"
#include "guards/objects/torch_tensor.h"
#include "ir/graph/builtin_op.h"
#include "ir/graph/element_numbers.h"
#include "ir/ops/op_facts.h"
#include "ir/ops/op_rows.h"
#include "ir/text/symbolic_sizes.h"
#include "ir/text/text.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"

namespace frametap {

namespace py = pybind11;

namespace {

using GraphPtr = std::shared_ptr<const Graph>;

struct ValueView {
  GraphPtr graph;
  ValueId id;

  const Value& value() const { return graph->value(id); }
  const Type& type() const { return value().type; }
  bool is_tensor() const { return type().kind == Type::Kind::kTensor; }
};

struct NodeView {
  GraphPtr graph;
  NodeId id;

  const Node& node() const { return graph->node(id); }
  const c10::FunctionSchema* schema() const { return node().is_scalar() ? nullptr : &node().op->schema(); }
};

py::object TensorObject(const at::Tensor& tensor) {
  if (!tensor.defined()) return py::none();
  PyObject* object = WrapTensor(tensor);
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

py::list Views(const GraphPtr& graph, const std::vector<ValueId>& ids) {
  py::list out;
  for (ValueId id : ids) out.append(ValueView{graph, id});
  return out;
}

py::object ArgObject(const GraphPtr& graph, const Arg& arg, const c10::Type* type) {
  switch (arg.kind) {
    case Arg::Kind::kValue:
      return py::cast(ValueView{graph, arg.value});
    case Arg::Kind::kConst:
      return ToPython(arg.constant, type);
    case Arg::Kind::kList:
      break;
  }
  py::list out;
  for (const Arg& item : arg.items) out.append(ArgObject(graph, item, nullptr));
  return out;
}

py::list NodeArgs(const NodeView& self) {
  const c10::FunctionSchema* schema = self.schema();
  py::list out;
  for (size_t i = 0; i < self.node().args.size(); ++i) {
    const bool known = schema != nullptr && i < schema->arguments().size();
    out.append(ArgObject(self.graph, self.node().args[i], known ? schema->arguments()[i].real_type().get() : nullptr));
  }
  return out;
}

std::vector<std::string> SchemaArgs(const NodeView& self) {
  std::vector<std::string> names;
  if (const c10::FunctionSchema* schema = self.schema()) {
    for (const c10::Argument& argument : schema->arguments()) names.push_back(argument.name());
  }
  return names;
}

OpRow Row(const NodeView& self) { return self.node().op ? OpRowOf(*self.node().op) : OpRow(); }

bool Writes(const NodeView& self) {
  const c10::FunctionSchema* schema = self.schema();
  return schema != nullptr && schema->is_mutable();
}

// "Linear.forward" -> "forward": what a traceback shows.
std::string CodeName(const std::string& qualname) {
  const size_t dot = qualname.rfind('.');
  return dot == std::string::npos ? qualname : qualname.substr(dot + 1);
}

void AppendFrame(const Position& at, const py::object& getline, std::string* out) {
  const std::string file = at.file.empty() ? "<unknown>" : at.file.str();
  const std::string code =
      at.file.empty() ? "" : py::cast<std::string>(getline(at.file.str(), at.line).attr("strip")());
  absl::StrAppend(out, "  File \"", file, "\", line ", at.line, ", in ", CodeName(at.function), "\n    ", code, "\n");
}

// The form of traceback.format_list, innermost last, which torch.fx reads back.
py::object StackTrace(const NodeView& self) {
  const WherePtr& where = self.node().where;
  if (where == nullptr || !where->position.known()) return py::none();
  py::object getline = Imported("linecache").attr("getline");
  std::string out;
  for (auto caller = where->callers.rbegin(); caller != where->callers.rend(); ++caller) {
    AppendFrame(*caller, getline, &out);
  }
  AppendFrame(where->position, getline, &out);
  return py::str(out);
}

py::object PositionObject(const NodeView& self) {
  const WherePtr& where = self.node().where;
  if (where == nullptr || !where->position.known()) return py::none();
  return py::str(ToString(where->position));
}

py::list Scope(const NodeView& self) {
  py::list out;
  if (self.node().where == nullptr) return out;
  for (const ModuleScope& scope : self.node().where->scope)
    out.append(py::make_tuple(scope.path.str(), scope.klass.str()));
  return out;
}

py::dict StateDict(const EagerState& state) {
  py::dict out;
  out["grad_mode"] = state.grad_mode;
  out["inference_mode"] = state.inference_mode;
  out["autocast_cpu"] = state.autocast_cpu;
  out["autocast_cache"] = state.autocast_cache;
  out["autocast_cpu_dtype"] = py::reinterpret_borrow<py::object>(DtypeObject(state.autocast_cpu_dtype));
  return out;
}

py::object Shape(const ValueView& self) {
  if (!self.is_tensor()) return py::none();
  py::tuple out(self.type().sizes.size());
  for (size_t i = 0; i < self.type().sizes.size(); ++i) {
    const int64_t size = self.type().sizes[i];
    out[i] = size < 0 ? py::object(py::none()) : py::object(py::int_(size));
  }
  return out;
}

at::Tensor TensorArgument(py::handle object, const char* where, const std::string& name) {
  if (!IsTensor(object.ptr())) {
    throw py::type_error(
        absl::StrCat(where, ": a tensor expected for '", name, "', got ", Py_TYPE(object.ptr())->tp_name));
  }
  return TensorOf(object.ptr());
}

GraphHandle Parse(const std::string& text, const py::sequence& constants, const py::dict& weights, bool gradients) {
  Graph graph = ValueOrThrow(ParseGraph(text), "GraphError");
  for (EagerState& state : graph.states) state.grad_mode = state.grad_mode && gradients;
  if (py::len(constants) != 0) {
    if (py::len(constants) != graph.constants.size()) {
      Throw(absl::InvalidArgumentError(absl::StrCat("parse_graph: the graph has ", graph.constants.size(),
                                                    " constants, ", py::len(constants), " were given")),
            "GraphError");
    }
    for (size_t i = 0; i < graph.constants.size(); ++i) {
      auto& [id, tensor] = graph.constants[i];
      tensor = TensorArgument(py::object(constants[i]), "parse_graph", graph.value(id).name);
    }
  }
  GraphHandle handle;
  handle.weights.resize(graph.inputs.size());
  for (auto [name, tensor] : weights) {
    const std::string key = py::cast<std::string>(name);
    const auto input =
        std::find_if(graph.inputs.begin(), graph.inputs.end(), [&](ValueId id) { return graph.value(id).name == key; });
    if (input == graph.inputs.end()) {
      Throw(absl::InvalidArgumentError(absl::StrCat("parse_graph: no input is called '", key, "'")), "GraphError");
    }
    handle.weights[input - graph.inputs.begin()] = TensorArgument(tensor, "parse_graph", key);
  }
  handle.graph = std::make_shared<const Graph>(std::move(graph));
  return handle;
}

template <class F>
py::list ForEachId(size_t count, F&& f) {
  py::list out;
  for (size_t i = 0; i < count; ++i) out.append(f(i));
  return out;
}

void BindValue(py::module_& m) {
  py::class_<ValueView>(m, "Value", "A value of a graph: an input, a constant, or what a node gave.")
      .def_property_readonly("name", [](const ValueView& self) { return self.value().name; })
      .def_property_readonly("kind", [](const ValueView& self) { return KindName(self.type().kind); })
      .def_property_readonly("type", [](const ValueView& self) { return ToString(self.type()); })
      .def_property_readonly("dtype",
                             [](const ValueView& self) -> py::object {
                               if (!self.is_tensor()) return py::none();
                               return py::reinterpret_borrow<py::object>(DtypeObject(self.type().dtype));
                             })
      .def_property_readonly("shape", Shape, "Sizes seen while recording; None where not known.")
      .def_property_readonly("device",
                             [](const ValueView& self) -> py::object {
                               return self.is_tensor() ? ToPython(c10::IValue(self.type().device)) : py::none();
                             })
      .def_property_readonly("requires_grad", [](const ValueView& self) { return self.type().requires_grad; })
      .def_property_readonly(
          "node",
          [](const ValueView& self) -> py::object {
            const NodeId def = self.value().def;
            return def.valid() ? py::cast(NodeView{self.graph, def}) : py::none();
          },
          "The node that defines it; None for inputs and constants.")
      .def("__eq__",
           [](const ValueView& self, py::object other) {
             if (!py::isinstance<ValueView>(other)) return false;
             const auto& o = other.cast<const ValueView&>();
             return self.graph == o.graph && self.id == o.id;
           })
      .def("__hash__",
           [](const ValueView& self) {
             return static_cast<Py_hash_t>(std::hash<const void*>()(self.graph.get()) ^ (self.id.raw() * 0x9e3779b9u));
           })
      .def("__repr__", [](const ValueView& self) { return absl::StrCat("%", self.value().name); });
}

// Whether the node is an op on numbers from elements of tensors that has no result for some of them.
bool FailsOnElements(const NodeView& view) {
  const Graph& graph = *view.graph;
  const Node& node = view.node();
  if (!node.is_scalar() || IsTotal(node.builtin_op)) return false;
  ElementNumbers numbers;
  for (const Node& one : graph.nodes) numbers.Add(graph, one);
  return numbers.MayFail(node);
}

void BindNode(py::module_& m) {
  py::class_<NodeView>(m, "Node", "One op applied to values and constants.")
      .def_property_readonly("op", [](const NodeView& self) { return self.node().op_name(); })
      .def_property_readonly(
          "is_scalar", [](const NodeView& self) { return self.node().is_scalar(); },
          "Arithmetic on Python numbers, not an op of torch.")
      .def_property_readonly(
          "may_raise", [](const NodeView& self) { return MayRaise(self.node().builtin_op) || FailsOnElements(self); },
          "Arithmetic on Python numbers that raises for some of them: `int(inf)`.")
      .def_property_readonly(
          "takes_float_tensor", [](const NodeView& self) { return Row(self).Has(ops::kTakesFloatTensor); },
          "Whether a float among the first two arguments may be a tensor of float64 without dimensions instead.")
      .def_property_readonly(
          "drops_out", [](const NodeView& self) { return Row(self).Has(ops::kDropsOut) && !Row(self).in_place; },
          "Returns its argument where `train` is false or `p` is 0.")
      .def_property_readonly("args", NodeArgs)
      .def_property_readonly("schema_args", SchemaArgs)
      .def_property_readonly("outputs", [](const NodeView& self) { return Views(self.graph, self.node().outputs); })
      .def_property_readonly(
          "is_factory",
          [](const NodeView& self) { return !self.node().is_scalar() && FactsOf(*self.node().op).factory; },
          "Whether the op makes tensors without reading any, as `torch.zeros` does.")
      .def_property_readonly(
          "is_pure", [](const NodeView& self) { return self.node().is_scalar() || FactsOf(*self.node().op).pure(); },
          "Whether only its results, or an exception, show that the op ran.")
      .def_property_readonly("writes", Writes, "Whether the op's schema writes to an argument.")
      .def_property_readonly("position", PositionObject)
      .def_property_readonly("stack_trace", StackTrace)
      .def_property_readonly("scope", Scope, "The running modules, outermost first: (path, class).")
      .def_property_readonly("state_index", [](const NodeView& self) { return self.node().state.raw(); })
      .def_property_readonly("state",
                             [](const NodeView& self) {
                               const StateId id = self.node().state;
                               return StateDict(self.graph->states[id.valid() ? id.raw() : 0]);
                             })
      .def("__repr__", [](const NodeView& self) { return absl::StrCat("<node ", self.node().op_name(), ">"); });
}

}  // namespace

const std::vector<at::Tensor>& GraphHandle::WeightsOrThrow() const {
  if (!gone.empty()) {
    Throw(absl::FailedPreconditionError(absl::StrCat("graph: the weight '", gone,
                                                     "' was freed or replaced since the capture, which does not keep "
                                                     "it; call the captured function again, then ask for its graph")),
          "GraphError");
  }
  return weights;
}

void BindGraph(py::module_& m) {
  BindValue(m);
  BindNode(m);
  py::class_<GraphHandle>(m, "Graph", "Operators in program order over named values.")
      .def_property_readonly("inputs", [](const GraphHandle& self) { return Views(self.graph, self.graph->inputs); })
      .def_property_readonly("outputs", [](const GraphHandle& self) { return Views(self.graph, self.graph->outputs); })
      .def_property_readonly(
          "nodes",
          [](const GraphHandle& self) {
            return ForEachId(self.graph->nodes.size(), [&](size_t i) { return NodeView{self.graph, NodeId(i)}; });
          })
      .def_property_readonly(
          "values",
          [](const GraphHandle& self) {
            return ForEachId(self.graph->values.size(), [&](size_t i) { return ValueView{self.graph, ValueId(i)}; });
          })
      .def_property_readonly(
          "constants",
          [](const GraphHandle& self) {
            py::list out;
            for (const auto& [id, tensor] : self.graph->constants) {
              out.append(py::make_tuple(ValueView{self.graph, id}, TensorObject(tensor)));
            }
            return out;
          },
          "(value, tensor) for each tensor made from Python data while recording.")
      .def_property_readonly(
          "weights",
          [](const GraphHandle& self) {
            const std::vector<at::Tensor>& weights = self.WeightsOrThrow();
            return ForEachId(self.graph->inputs.size(),
                             [&](size_t i) { return i < weights.size() ? TensorObject(weights[i]) : py::none(); });
          },
          "Beside `inputs`: what the parameter or buffer that the input reads holds, in its memory; or None.")
      .def_property_readonly(
          "nodes_with_fresh_sizes",
          [](const GraphHandle& self) {
            py::list out;
            for (const NodeId id : SizesInSymbols(*self.graph).fresh) out.append(NodeView{self.graph, id});
            return out;
          },
          "Nodes with results whose size no rule gives. The size is known only after the op has run.")
      .def_property_readonly("entry_state", [](const GraphHandle& self) { return StateDict(self.graph->states[0]); })
      .def(
          "text",
          [](const GraphHandle& self, bool positions, bool types, bool symbols) {
            if (!symbols) return PrintWithRecordedSizes(*self.graph);
            PrintOptions options;
            options.positions = positions;
            options.types = types;
            return Print(*self.graph, options);
          },
          py::kw_only(), py::arg("positions") = true, py::arg("types") = true, py::arg("symbols") = true,
          "`symbols`: False gives the sizes of the recording as numbers.")
      .def("__str__", [](const GraphHandle& self) { return Print(*self.graph); })
      .def("__repr__", [](const GraphHandle& self) {
        return absl::StrCat("<frametap.Graph of ", self.graph->nodes.size(), " nodes, ", self.graph->inputs.size(),
                            " inputs, ", self.graph->outputs.size(), " outputs>");
      });
  m.def("parse_graph", Parse, py::arg("text"), py::arg("constants") = py::tuple(), py::kw_only(),
        py::arg("weights") = py::dict(), py::arg("gradients") = true,
        "Returns the graph with this text. `constants` are tensors in the text's order, `weights` map inputs to "
        "tensors. Without `gradients`, no op of the graph computes them.");
  m.def(
      "builtin_ops",
      [] {
        py::list out;
        for (size_t op = 1; op <= static_cast<size_t>(BuiltinOp::kAnother); ++op) {
          const ScalarRow& row = RowOf(static_cast<BuiltinOp>(op));
          out.append(py::make_tuple(row.name, row.arity, row.notation));
        }
        return out;
      },
      "(name, arity, notation) for each op that is not an op of torch: \"int.floordiv\", 2, \" // \". The notation is "
      "an operator of Python or the name of a function; None if formulas do not have the op.");
  m.def(
      "verify", [](const GraphHandle& handle) { ThrowIfError(Verify(*handle.graph), "GraphError"); }, py::arg("graph"),
      "Raises GraphError if the graph breaks a rule.");
}

}  // namespace frametap
