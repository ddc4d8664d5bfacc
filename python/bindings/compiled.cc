// CompiledFunction, Segment, Guard, log: what capture has made, for Python to read.
#include <pybind11/stl.h>

#include "backends/callable/values.h"
#include "backends/quant/quantize.h"
#include "frame_eval/checks/self_checking.h"
#include "frame_eval/checks/stress.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/truth_test.h"
#include "frame_eval/cpython/written_fields.h"
#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/fast_paths/module_calls.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/trace/aten_recorder.h"
#include "frame_eval/replay/run_graph.h"
#include "frame_eval/segment/error_classes.h"
#include "frame_eval/segment/event_log.h"
#include "frame_eval/session/compiled_function.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "ir/ops/dispatcher_door.h"
#include "ir/segment/rows.h"
#include "ir/segment/state.h"
#include "ir/text/text.h"
#include "python/bindings/bindings.h"
#include "python/bindings/segment_rows.h"

namespace frametap {

namespace py = pybind11;

namespace {

struct SegmentHandle {
  std::shared_ptr<Segment> segment;
};

// Stores alive, for reset() without an argument.
std::vector<std::weak_ptr<SegmentCache>>& Stores() {
  static auto* stores = new std::vector<std::weak_ptr<SegmentCache>>();
  return *stores;
}

SourceId SourceOfRow(Segment& segment, size_t number) {
  const SegmentIr& ir = segment.Shown();
  if (number < ir.guards.size()) return ir.guards[number].source;
  const size_t decision = number - ir.guards.size();
  if (decision >= ir.decisions.outcomes.size()) throw py::index_error("no guard has this number");
  return DecisionLine(segment, decision).source;
}

std::shared_ptr<SegmentCache> StoreOfObject(const py::object& object) {
  if (!IsCompiledFunction(object.ptr())) throw py::type_error("not a compiled function");
  return StoreOf(object.ptr());
}

}  // namespace

void BindCompiled(py::module_& m) {
  if (!TestWrittenFields() || !LoadKnownObjects() || !LoadModuleCalls() || !LoadCallables()) {
    throw py::error_already_set();
  }
  PyTypeObject* type = CompiledFunctionType();
  if (type == nullptr || CompiledObjectType() == nullptr) throw py::error_already_set();
  m.attr("CompiledFunction") = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(type));
  m.def("problem", [] {
    std::string problem = VersionProblem();
    if (problem.empty()) problem = DispatcherProblem();
    return problem.empty() ? std::string(InstallFallback()) : problem;
  });
  m.def(
      "set_own_executable",
      [](py::object code) {
        if (!PyCode_Check(code.ptr())) throw py::type_error("not a code object");
        OwnExecutable() = reinterpret_cast<PyCodeObject*>(code.release().ptr());
      },
      py::arg("code"), "The caller of a quantized model. No recording enters it, and nothing is recorded inside.");
  m.def("set_error_classes", [](py::object full_graph, py::object constraint, py::object backend, py::object warning,
                                py::object recording, py::object recording_forbidden) {
    Errors().full_graph = full_graph.release().ptr();
    Errors().constraint = constraint.release().ptr();
    Errors().backend = backend.release().ptr();
    Errors().warning = warning.release().ptr();
    Errors().recording = recording.release().ptr();
    Errors().recording_forbidden = recording_forbidden.release().ptr();
  });
  m.def("log_events", &AskForEvents, py::arg("kinds"));

  m.def(
      "compile_function",
      [](py::object function, py::object self, const std::string& callee, BackendHandle backend, bool fullgraph,
         std::optional<bool> dynamic, int segment_limit, bool by_identity, bool strict, bool answers_by_replay) {
        Options options;
        options.fullgraph = fullgraph;
        if (dynamic) options.dynamic = *dynamic ? Dynamic::kAlways : Dynamic::kNever;
        options.segment_limit = segment_limit;
        options.by_identity = by_identity;
        options.answers_by_replay = answers_by_replay;
        options.strict = strict;
        Callee kind = callee == "module"     ? Callee::kModule
                      : callee == "object"   ? Callee::kObject
                      : callee == "method"   ? Callee::kBoundMethod
                      : callee == "callable" ? Callee::kCallable
                                             : Callee::kFunction;
        auto store = std::make_shared<SegmentCache>(Ref<>::New(function.ptr()), std::move(backend), options);
        std::erase_if(Stores(), [](const std::weak_ptr<SegmentCache>& known) { return known.expired(); });
        Stores().push_back(store);
        PyObject* self_object = self.is_none() ? nullptr : self.ptr();
        PyObject* compiled = NewCompiledFunction(function.ptr(), self_object, kind, std::move(store));
        if (compiled == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(compiled);
      },
      py::arg("function"), py::arg("self"), py::arg("callee"), py::arg("backend"), py::arg("fullgraph"),
      py::arg("dynamic"), py::arg("segment_limit"), py::arg("by_identity"), py::arg("strict") = false,
      py::arg("answers_by_replay") = false);

  m.def("module_call", [](const py::type& type) {
    PyObject* call = NewCompiledModuleCall(reinterpret_cast<PyTypeObject*>(type.ptr()));
    if (call == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(call);
  });

  m.def("settings", [](const py::object& f) {
    std::shared_ptr<SegmentCache> store = StoreOfObject(f);
    py::dict d;
    d["backend"] = store->shared_backend();
    d["fullgraph"] = store->options().fullgraph;
    const Dynamic dynamic = store->options().dynamic;
    d["dynamic"] = dynamic == Dynamic::kAuto ? py::object(py::none()) : py::bool_(dynamic == Dynamic::kAlways);
    d["segment_limit"] = store->options().segment_limit;
    d["by_identity"] = store->options().by_identity;
    d["answers_by_replay"] = store->options().answers_by_replay;
    d["strict"] = store->options().strict;
    return d;
  });

  py::class_<SegmentHandle>(m, "Segment", "One recorded piece of a function: guards, graph, effects, exit.")
      .def_property_readonly("name", [](const SegmentHandle& s) { return s.segment->ir.name; })
      .def_property_readonly("function", [](const SegmentHandle& s) { return s.segment->ir.function; })
      .def_property_readonly("entry", [](const SegmentHandle& s) { return s.segment->ir.entry; })
      .def_property_readonly("entry_offset", [](const SegmentHandle& s) { return s.segment->entry_offset; })
      .def_property_readonly(
          "callers",
          [](const SegmentHandle& s) {
            py::list out;
            for (const Segment::Caller& caller : s.segment->callers) {
              out.append(py::make_tuple(py::reinterpret_borrow<py::object>(caller.code.get()), caller.offset));
            }
            return out;
          })
      .def_property_readonly(
          "code", [](const SegmentHandle& s) { return py::reinterpret_borrow<py::object>(s.segment->code.get()); })
      .def_property_readonly("hits", [](const SegmentHandle& s) { return s.segment->hits; })
      .def_property_readonly("faults", [](const SegmentHandle& s) { return s.segment->faults; })
      .def_property_readonly("given_up", [](const SegmentHandle& s) { return s.segment->given_up; })
      .def_property_readonly("recording_seconds", [](const SegmentHandle& s) { return s.segment->recording_seconds; })
      .def_property_readonly("restartable", [](const SegmentHandle& s) { return s.segment->restartable; })
      .def_property_readonly("state",
                             [](const SegmentHandle& s) {
                               py::dict d;
                               for (const StateFact& fact : s.segment->ir.state) {
                                 d[py::str(std::string(WordOf(fact.field)))] = ValueText(fact);
                               }
                               return d;
                             })
      .def(
          "text",
          [](const SegmentHandle& s, bool positions, bool types, bool guard_lines) {
            return Print(s.segment->Shown(), PrintOptions{positions, types, guard_lines});
          },
          py::arg("positions") = true, py::arg("types") = true, py::arg("guard_lines") = false)
      .def("__str__", [](const SegmentHandle& s) { return Print(s.segment->Shown(), PrintOptions{}); })
      .def("__repr__", [](const SegmentHandle& s) { return "<frametap.Segment " + s.segment->ir.name + ">"; })
      .def("__eq__", [](const SegmentHandle& a, const SegmentHandle& b) { return a.segment == b.segment; })
      .def("__hash__", [](const SegmentHandle& s) { return reinterpret_cast<size_t>(s.segment.get()); })
      .def_property_readonly("graph",
                             [](const SegmentHandle& s) {
                               std::shared_ptr<const Graph> graph(s.segment, &s.segment->Shown().graph);
                               GraphHandle handle{graph, {}, ""};
                               for (size_t i = 0; i < s.segment->weights.size(); ++i) {
                                 const WeakTensor& weight = s.segment->weights[i];
                                 handle.weights.push_back(weight.Get());
                                 if (weight.is_known() && !handle.weights.back().defined() && handle.gone.empty()) {
                                   handle.gone = graph->value(graph->inputs[i]).name;
                                 }
                               }
                               return handle;
                             })
      .def_property_readonly("inputs",
                             [](const SegmentHandle& s) {
                               py::list out;
                               const SegmentIr& ir = s.segment->Shown();
                               for (size_t i = 0; i < ir.graph.inputs.size(); ++i) {
                                 SourceId source = s.segment->input_sources[i];
                                 py::dict d;
                                 d["name"] = ir.graph.value(ir.graph.inputs[i]).name;
                                 d["source"] = ir.sources.Name(source);
                                 d["path"] = SourcePath(source, *s.segment);
                                 const Source& root = ir.sources[source];
                                 d["local"] = root.accessor == Accessor::kLocal ? py::object(py::str(root.text))
                                                                                : py::object(py::none());
                                 d["weight"] = py::none();
                                 if (const at::Tensor weight = s.segment->weights[i].Get(); weight.defined()) {
                                   d["weight"] = py::reinterpret_steal<py::object>(WrapTensor(weight));
                                 }
                                 out.append(d);
                               }
                               return out;
                             })
      .def_property_readonly("guard_rows",
                             [](const SegmentHandle& s) {
                               py::list out;
                               const SegmentIr& ir = s.segment->Shown();
                               std::vector<GuardLine> lines = ir.guards;
                               for (size_t i = 0; i < ir.decisions.outcomes.size(); ++i) {
                                 lines.push_back(DecisionLine(*s.segment, i));
                               }
                               for (size_t i = 0; i < lines.size(); ++i) {
                                 const GuardLine& line = lines[i];
                                 if (!line.source.valid()) continue;
                                 py::dict d;
                                 d["number"] = i;
                                 d["is_decision"] = i >= ir.guards.size();
                                 d["root"] = SourceStep(ir.sources.root(line.source), *s.segment);
                                 d["step"] = SourceStep(line.source, *s.segment);
                                 d["position"] = PositionDict(line.why);
                                 d["predicate"] = "";
                                 if (line.predicate) {
                                   AddPredicate(*line.predicate, EntryOf(*s.segment, i), *s.segment, &d);
                                 }
                                 out.append(d);
                               }
                               return out;
                             })
      .def_property_readonly("decisions",
                             [](const SegmentHandle& s) -> py::object {
                               const Decisions& decisions = s.segment->Shown().decisions;
                               if (decisions.outcomes.empty()) return py::none();
                               py::dict d;
                               d["graph"] = GraphHandle{{s.segment, &decisions.graph}, {}, ""};
                               py::list inputs;
                               for (size_t i = 0; i < decisions.sources.size(); ++i) {
                                 py::dict row;
                                 row["name"] = decisions.graph.value(decisions.graph.inputs[i]).name;
                                 row["source"] = s.segment->Shown().sources.Name(decisions.sources[i]);
                                 row["path"] = SourcePath(decisions.sources[i], *s.segment);
                                 row["local"] = py::none();
                                 row["weight"] = py::none();
                                 inputs.append(row);
                               }
                               d["inputs"] = inputs;
                               d["outcomes"] = decisions.outcomes;
                               return d;
                             })
      .def(
          "guard_source",
          [](const SegmentHandle& s, size_t number) {
            return s.segment->Shown().sources.Name(SourceOfRow(*s.segment, number));
          },
          py::arg("number"), "The name of the source of this row, such as L.x.")
      .def(
          "guard_path",
          [](const SegmentHandle& s, size_t number) { return SourcePath(SourceOfRow(*s.segment, number), *s.segment); },
          py::arg("number"), "The steps of the source of this row, from its root.")
      .def(
          "guard_holds",
          [](const SegmentHandle& s, size_t number, const py::object& object) {
            return GuardHolds(*s.segment, number, object);
          },
          py::arg("number"), py::arg("object"),
          "Whether the guard of this row holds for the object; None where it is not a guard on one object.")
      .def_property_readonly("exit",
                             [](const SegmentHandle& s) {
                               const Exit& exit = s.segment->ir.exit;
                               py::dict d;
                               d["kind"] = std::string(WordOf(exit.kind));
                               d["reason"] = exit.kind == Exit::Kind::kResume ? RowOf(exit.reason).name : "";
                               d["detail"] = exit.detail;
                               d["position"] = PositionDict(exit.at);
                               d["result"] = OperandObject(exit.result, *s.segment);
                               py::list frames;
                               for (const SnapshotFrame& frame : exit.frames) {
                                 frames.append(FrameObject(frame, *s.segment));
                               }
                               d["frames"] = frames;
                               d["up"] = s.segment->callers.size();
                               return Imported("frametap._records").attr("Exit")(d);
                             })
      .def_property_readonly("effects",
                             [](const SegmentHandle& s) {
                               py::list out;
                               for (const Effect& effect : s.segment->ir.effects) {
                                 py::dict d;
                                 d["kind"] = std::string(RowOf(effect.kind).word);
                                 const bool is_state = effect.kind == Effect::Kind::kState;
                                 d["name"] = is_state ? std::string(WordOf(effect.state)) : effect.name;
                                 d["target"] = OperandObject(effect.target, *s.segment);
                                 d["key"] = OperandObject(effect.key, *s.segment);
                                 d["value"] = OperandObject(effect.value, *s.segment);
                                 if (effect.kind == Effect::Kind::kYield)
                                   d["frame"] = FrameObject(effect.frame, *s.segment);
                                 d["position"] = PositionDict(effect.at);
                                 d["text"] = Print(effect, s.segment->Shown());
                                 out.append(d);
                               }
                               return out;
                             })
      .def_property_readonly("executable",
                             [](const SegmentHandle& s) {
                               std::shared_ptr<const Graph> graph(s.segment, &s.segment->ir.graph);
                               return ExecutableHandle{graph, s.segment->executable};
                             })
      .def(
          "set_executable",
          [](SegmentHandle& s, const ExecutableHandle& executable) {
            const Graph &own = s.segment->ir.graph, &other = *executable.graph;
            if (own.inputs.size() != other.inputs.size() || own.outputs.size() != other.outputs.size()) {
              throw py::value_error("the executable's graph has not the segment's inputs and outputs");
            }
            s.segment->executable = executable.executable;
          },
          py::arg("executable"), "Replays run this executable from now on.")
      .def(
          "run_first_inputs",
          [](SegmentHandle& s, const ExecutableHandle& executable) {
            std::optional<std::vector<c10::IValue>> inputs = quant::TakeFirstInputs(*s.segment->executable);
            if (!inputs) return false;
            const py::gil_scoped_release unlock;
            executable.executable->Run(*inputs);
            return true;
          },
          py::arg("executable"),
          "Runs the executable on the inputs that the recording had. False if they were not kept (or were taken).");

  m.def("segments", [](const py::object& f) {
    std::vector<SegmentHandle> out;
    for (auto& segment : StoreOfObject(f)->segments()) out.push_back({segment});
    return out;
  });
  m.def("reset", [](const py::object& f) { StoreOfObject(f)->Reset(); });
  m.def("reset_all", [] {
    for (const std::weak_ptr<SegmentCache>& known : std::vector<std::weak_ptr<SegmentCache>>(Stores())) {
      if (std::shared_ptr<SegmentCache> store = known.lock()) store->Reset();
    }
  });
  m.def("counts", [](const py::object& f) {
    std::shared_ptr<SegmentCache> store = StoreOfObject(f);
    py::dict d;
    d["recordings"] = store->recordings;
    d["hits"] = store->hits;
    d["misses"] = store->misses;
    d["faults"] = store->faults;
    d["recording_seconds"] = store->recording_seconds;
    return d;
  });
  m.def("log", [](const py::object& f) {
    py::list out;
    for (const LogEntry& entry : StoreOfObject(f)->log()) {
      py::dict d;
      d["kind"] = std::string(WordOf(entry.kind));
      d["segment"] = entry.segment;
      const std::optional<Reason> reason = ReasonOf(entry.reason);
      d["reason"] = entry.reason;
      d["once"] = reason && RowOf(*reason).once;
      d["text"] = entry.text;
      d["advice"] = entry.advice;
      d["inside"] = entry.inside;
      d["position"] = PositionDict(entry.at);
      if (entry.kind == LogEntry::Kind::kMiss) {
        d["source"] = entry.miss.source;
        d["want"] = entry.miss.want;
        d["got"] = entry.miss.got;
        d["why"] = entry.miss.why;
      }
      out.append(d);
    }
    return out;
  });
  m.def(
      "truth_test",
      [](const py::object& code, int offset) -> py::object {
        if (!PyCode_Check(code.ptr())) throw py::type_error("not a code object");
        const auto test = TruthTestAt(reinterpret_cast<PyCodeObject*>(code.ptr()), offset);
        if (!test) return py::none();
        py::dict d;
        d["if_true"] = test->if_true;
        d["if_false"] = test->if_false;
        d["keeps_true"] = test->keeps_true;
        d["keeps_false"] = test->keeps_false;
        d["negates"] = test->negates;
        return d;
      },
      py::arg("code"), py::arg("offset"),
      "Describes the instruction there, if it tests the truth of the value on top of the stack; None otherwise.");
  // For tests.
  ArmFromEnvironment();
  m.def(
      "stress",
      [](const std::string& fault, uint64_t passed) {
        const uint64_t before = PlacesPassed();
        if (!Arm(fault)) throw py::value_error("not a fault: " + fault);
        SetPlacesPassed(passed);
        return before;
      },
      py::arg("fault"), py::arg("passed") = 0, "Arms a forced fault; gives how many of its places were passed before.");
  m.def("self_check", &SetSelfChecking);
  m.def("leave_fields_alone", &LeaveFieldsAlone, py::arg("signals"), py::arg("collector"));
  m.def(
      "fallbacks",
      [] {
        std::vector<std::string> words;
        if (!KnowsModuleCalls())
          words.emplace_back(
              "calls of modules are interpreted: the code of nn.Module.__call__ differs from torch 2.13");
        if (!CanHoldSignals())
          words.emplace_back(
              "nothing is recorded on the main thread: signals cannot be held back in this build of Python");
        if (!CanPauseCollector())
          words.emplace_back(
              "garbage is collected during recordings: the collector cannot be paused in this build of Python");
        return words;
      },
      "Returns a sentence for each thing that this build of torch or Python does not allow.");
  m.def("cross_module_calls", &CrossModuleCalls);
  m.def("repeat_module_calls", &RepeatModuleCalls);
  m.def("repeated_module_calls", &RepeatedModuleCalls);
  m.def("roundtrip", [](const std::string& text) {
    absl::StatusOr<SegmentIr> segment = ParseSegment(text);
    if (!segment.ok()) throw py::value_error(std::string(segment.status().message()));
    absl::Status valid = Verify(*segment);
    if (!valid.ok()) throw py::value_error(std::string(valid.message()));
    return Print(*segment, PrintOptions{});
  });
}

}  // namespace frametap
