// _frametap_interpreter: the interpreter without a recorder, for the tests in this folder.
//   run(function, *args, **kwargs)                     every Python frame of the call in our interpreter, no tracer
//   run_observed(options, function, *args, **kwargs)   the same under a tracer that checks the laws of tracer.h and
//                                                      does what `options` says; it writes what it saw into `options`
//   run_everything(None or options)                    from now on all frames of all threads in our interpreter, under
//                                                      that tracer if there are options
//   seen_of_everything()                               what it saw until now
//   facts of frame_view.h: position_at, live_locals, instruction_at, start_offset, version_problem
#include <Python.h>

#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/interpreter/hook.h"
#include "frame_eval/interpreter/opcodes/names.h"
#include "frame_eval/interpreter/tracer.h"

namespace frametap {
namespace {

class AllFrames : public FrameFilter {
 public:
  explicit AllFrames(Tracer* tracer) : tracer_(tracer) {}
  bool Wants(const FrameFacts&) override {
    ++frames;
    return true;
  }
  Tracer* tracer() override { return tracer_; }
  long frames = 0;

 private:
  Tracer* tracer_;
};

uint32_t MarkOf(PyObject* object) { return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(object) >> 4); }

// Gives every result a shadow that names the object, so that a shadow that lost its object is seen.
class CheckingTracer : public Tracer {
 public:
  long leave_at = -1;  // hand over at the n-th instruction of the whole run
  long leave_every = -1;
  long reload_every = -1;
  long return_at = -1;
  long raise_at = -1;
  long refuse_at = -1;        // at the n-th operation
  long throw_at = -1;         // a C++ exception at the n-th callback
  PyObject* value = nullptr;  // what kReturn returns or kRaise raises
  PyObject* jumps = nullptr;  // from (name of code, offset) to an offset, for a kReload that continues elsewhere
  bool log = false;

  long instructions = 0, frames = 0, befores = 0, afters = 0, raised = 0, resumed = 0;
  long ends[5] = {};
  std::vector<std::string> violations;
  std::vector<std::string> events;

  void Enter(FrameState& f) override {
    MaybeThrow();
    ++frames;
    resumed += f.resumed;
    if (f.tracer_data != nullptr) Violation(f, "tracer_data is not null at Enter");
    f.tracer_data = new Frame;
    f.traced = f.observed = true;
    CheckPlaces(f, "Enter");
  }

  void Leave(FrameState& f, FrameEnd end, PyObject* result, Shadow shadow) override {
    ++ends[static_cast<int>(end)];
    if (shadow.kind == Shadow::Kind::kValue && shadow.id != MarkOf(result)) Violation(f, "shadow of the result");
    if ((end == FrameEnd::kReturned || end == FrameEnd::kYielded) && result == nullptr) Violation(f, "no result");
    if (end == FrameEnd::kRaised && !PyErr_Occurred()) Violation(f, "raised without an error");
    delete static_cast<Frame*>(f.tracer_data);
    f.tracer_data = nullptr;
    MaybeThrow();
  }

  Go AtInstruction(FrameState& f) override {
    MaybeThrow();
    if (PyErr_Occurred()) Violation(f, "error set at an instruction");
    Frame& frame = FrameOf(f);
    if (frame.pending) Violation(f, "I1: instruction begins before After or Raised");
    InstructionInfo info = InstructionAt(f.code, f.offset);
    if (jumps != nullptr) {
      PyObject* key = Py_BuildValue("Oi", f.code->co_name, f.offset);
      PyObject* to = PyDict_GetItemWithError(jumps, key);
      Py_DECREF(key);
      if (to != nullptr) {
        f.offset = static_cast<int>(PyLong_AsLong(to));
        return Go::kReload;
      }
    }
    if (reload_every > 0 && !frame.reloaded && instructions % reload_every == 0) {
      frame.reloaded = true;
      return Go::kReload;
    }
    frame.reloaded = false;
    ++instructions;
    if (log) events.push_back(info.name);
    frame.depth = f.depth;
    CheckPlaces(f, info.name);
    if (instructions == leave_at || (leave_every > 0 && instructions % leave_every == 0)) return Go::kLeave;
    if (instructions == return_at) {
      for (int i = 0; i < f.depth; ++i) Py_XDECREF(f.objects[f.nlocalsplus + i]);
      f.depth = 0;
      f.result = Py_NewRef(value);
      return Go::kReturn;
    }
    if (instructions == raise_at) {
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
      return Go::kRaise;
    }
    return Go::kOn;
  }

  bool Before(FrameState& f, const Event& event) override {
    MaybeThrow();
    ++befores;
    Frame& frame = FrameOf(f);
    if (frame.pending) Violation(f, "Before without an end of the operation before");
    frame.pending = true;
    frame.op = event.op;
    frame.in.assign(event.in, event.in + event.n);
    if (f.depth != frame.depth) Violation(f, "I1: depth changed before Before");
    for (int i = 0; i < event.n; ++i) CheckShadow(f, event.in[i], event.shadows[i], "Before");
    if (befores != refuse_at) return true;
    frame.pending = false;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
    return false;
  }

  Shadow After(FrameState& f, const Event& event, PyObject* result) override {
    MaybeThrow();
    ++afters;
    Frame& frame = FrameOf(f);
    if (frame.pending) CheckOperands(f, frame, event);
    frame.pending = false;  // an unpacking has more than one After
    if (PyErr_Occurred()) Violation(f, "error set at After");
    if (result == nullptr) return {};
    return {Shadow::Kind::kValue, MarkOf(result)};
  }

  void Raised(FrameState& f, const Event& event) override {
    MaybeThrow();
    ++raised;
    Frame& frame = FrameOf(f);
    if (!frame.pending && !ReadsVariable(event.op)) Violation(f, "Raised without Before");
    if (frame.pending) CheckOperands(f, frame, event);
    frame.pending = false;
    if (!PyErr_Occurred()) Violation(f, "I2: Raised without an error");
  }

 private:
  struct Frame {
    int depth = 0;
    bool pending = false;
    bool reloaded = false;
    Op op = Op::kOther;
    std::vector<PyObject*> in;
  };

  Frame& FrameOf(FrameState& f) { return *static_cast<Frame*>(f.tracer_data); }

  void MaybeThrow() {
    if (++callbacks_ == throw_at) throw std::runtime_error("thrown by the test");
  }

  void Violation(FrameState& f, const char* what) {
    if (violations.size() >= 20) return;
    const char* name = PyUnicode_AsUTF8(f.code->co_qualname);
    violations.push_back(std::string(name) + " at " + std::to_string(f.offset) + ": " + what);
  }

  void CheckOperands(FrameState& f, const Frame& frame, const Event& event) {
    if (event.op != frame.op) Violation(f, "the operation changed between Before and its end");
    if (f.depth != frame.depth) Violation(f, "I1: depth changed during the operation");
    if (static_cast<size_t>(event.n) != frame.in.size()) {
      Violation(f, "the number of operands changed");
      return;
    }
    for (int i = 0; i < event.n; ++i) {
      if (event.in[i] != frame.in[i]) Violation(f, "I1: an operand changed during the operation");
    }
  }

  void CheckShadow(FrameState& f, PyObject* object, Shadow shadow, const char* where) {
    if (shadow.kind == Shadow::Kind::kValue && shadow.id != MarkOf(object)) {
      Violation(f, (std::string("I3: shadow of another object at ") + where).c_str());
    }
  }

  void CheckPlaces(FrameState& f, const char* where) {
    if (f.depth < 0 || f.depth > StackSize(f.code)) Violation(f, "depth out of range");
    for (int i = 0; i < f.nlocalsplus + f.depth; ++i) CheckShadow(f, f.objects[i], f.shadows[i], where);
  }

  long callbacks_ = 0;
};

PyObject* CallRest(PyObject* const* args, Py_ssize_t n, PyObject* kwnames, FrameFilter* filter) {
  HookScope scope(filter);
  return PyObject_Vectorcall(args[0], args + 1, n - 1, kwnames);
}

PyObject* Run(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject* kwnames) {
  if (n < 1) {
    PyErr_SetString(PyExc_TypeError, "run() needs a function");
    return nullptr;
  }
  AllFrames filter(nullptr);
  return CallRest(args, n, kwnames, &filter);
}

bool ReadLong(PyObject* options, const char* name, long* value) {
  PyObject* given = PyDict_GetItemString(options, name);
  if (given == nullptr) return true;
  *value = PyLong_AsLong(given);
  return !PyErr_Occurred();
}

int WriteLong(PyObject* options, const char* name, long value) {
  PyObject* object = PyLong_FromLong(value);
  int status = object == nullptr ? -1 : PyDict_SetItemString(options, name, object);
  Py_XDECREF(object);
  return status;
}

int WriteList(PyObject* options, const char* name, const std::vector<std::string>& items) {
  PyObject* list = PyList_New(0);
  int status = list == nullptr ? -1 : 0;
  for (size_t i = 0; status == 0 && i < items.size(); ++i) {
    PyObject* text = PyUnicode_FromString(items[i].c_str());
    status = text == nullptr ? -1 : PyList_Append(list, text);
    Py_XDECREF(text);
  }
  if (status == 0) status = PyDict_SetItemString(options, name, list);
  Py_XDECREF(list);
  return status;
}

bool ReadOptions(PyObject* options, CheckingTracer* tracer) {
  long log = 0;
  if (!ReadLong(options, "leave_at", &tracer->leave_at) || !ReadLong(options, "leave_every", &tracer->leave_every) ||
      !ReadLong(options, "reload_every", &tracer->reload_every) ||
      !ReadLong(options, "return_at", &tracer->return_at) || !ReadLong(options, "raise_at", &tracer->raise_at) ||
      !ReadLong(options, "throw_at", &tracer->throw_at) || !ReadLong(options, "log", &log)) {
    return false;
  }
  tracer->log = log != 0;
  tracer->value = PyDict_GetItemString(options, "value");
  tracer->jumps = PyDict_GetItemString(options, "jumps");
  return true;
}

int WriteSeen(PyObject* seen, const CheckingTracer& tracer) {
  static const char* const kEnds[] = {"returned", "yielded", "generators", "handed_over", "left_by_exception"};
  int status = 0;
  for (int i = 0; i < 5; ++i) status |= WriteLong(seen, kEnds[i], tracer.ends[i]);
  status |= WriteLong(seen, "instructions", tracer.instructions);
  status |= WriteLong(seen, "frames", tracer.frames);
  status |= WriteLong(seen, "resumed", tracer.resumed);
  status |= WriteLong(seen, "befores", tracer.befores);
  status |= WriteLong(seen, "afters", tracer.afters);
  status |= WriteLong(seen, "raised", tracer.raised);
  status |= WriteList(seen, "violations", tracer.violations);
  status |= WriteList(seen, "events", tracer.events);
  return status;
}

PyObject* RunObserved(PyObject*, PyObject* const* args, Py_ssize_t n, PyObject* kwnames) {
  if (n < 2 || !PyDict_Check(args[0])) {
    PyErr_SetString(PyExc_TypeError, "run_observed() needs a dict and a function");
    return nullptr;
  }
  PyObject* options = args[0];
  CheckingTracer tracer;
  if (!ReadOptions(options, &tracer)) return nullptr;
  AllFrames filter(&tracer);
  PyObject* result = CallRest(args + 1, n - 1, kwnames, &filter);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  if (WriteSeen(options, tracer) < 0) PyErr_Clear();
  PyErr_Restore(type, value, traceback);
  return result;
}

// The objects of run_everything. They live as long as the process.
AllFrames* everything = nullptr;
CheckingTracer* observer = nullptr;

PyObject* RunEverything(PyObject*, PyObject* options) {
  if (everything != nullptr || (options != Py_None && !PyDict_Check(options))) {
    PyErr_SetString(PyExc_TypeError, "run_everything() needs None or a dict, and is called once");
    return nullptr;
  }
  if (options != Py_None) {
    observer = new CheckingTracer;
    if (!ReadOptions(Py_NewRef(options), observer)) return nullptr;
  }
  everything = new AllFrames(observer);
  HookAllThreads(everything);
  Py_RETURN_NONE;
}

PyObject* SeenOfEverything(PyObject*, PyObject*) {
  PyObject* seen = PyDict_New();
  if (seen == nullptr) return nullptr;
  int status = observer != nullptr ? WriteSeen(seen, *observer) : 0;
  status |= WriteLong(seen, "frames", everything == nullptr ? 0 : everything->frames);
  if (status < 0) Py_CLEAR(seen);
  return seen;
}

bool ReadPlace(PyObject* const* args, Py_ssize_t n, PyCodeObject** code, int* offset) {
  if (n != 2 || !PyCode_Check(args[0])) {
    PyErr_SetString(PyExc_TypeError, "a code object and an offset are needed");
    return false;
  }
  *code = reinterpret_cast<PyCodeObject*>(args[0]);
  *offset = static_cast<int>(PyLong_AsLong(args[1]));
  return !PyErr_Occurred();
}

PyObject* PositionOf(PyObject*, PyObject* const* args, Py_ssize_t n) {
  PyCodeObject* code;
  int offset;
  if (!ReadPlace(args, n, &code, &offset)) return nullptr;
  Position at = PositionAt(code, offset);
  return Py_BuildValue("(siis)", at.function.str().c_str(), at.line, at.col, at.file.str().c_str());
}

PyObject* LiveLocalsOf(PyObject*, PyObject* const* args, Py_ssize_t n) {
  PyCodeObject* code;
  int offset;
  if (!ReadPlace(args, n, &code, &offset)) return nullptr;
  std::vector<bool> live = LiveLocals(code, offset);
  PyObject* names = PyList_New(0);
  for (int slot = 0; names != nullptr && slot < static_cast<int>(live.size()); ++slot) {
    if (live[slot] && PyList_Append(names, SlotName(code, slot)) < 0) Py_CLEAR(names);
  }
  return names;
}

PyObject* InstructionOf(PyObject*, PyObject* const* args, Py_ssize_t n) {
  PyCodeObject* code;
  int offset;
  if (!ReadPlace(args, n, &code, &offset)) return nullptr;
  InstructionInfo info = InstructionAt(code, offset);
  return Py_BuildValue("(siiii)", info.name, info.next, info.is_branch, info.is_backward, info.is_return);
}

PyObject* StartOf(PyObject*, PyObject* code) {
  return PyLong_FromLong(StartOffset(reinterpret_cast<PyCodeObject*>(code)));
}

PyObject* Problem(PyObject*, PyObject*) { return PyUnicode_FromString(VersionProblem()); }

PyObject* Installed(PyObject*, PyObject*) { return PyBool_FromLong(HookInstalled()); }

template <class F>
PyCFunction Cast(F function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef kMethods[] = {
    {"run", Cast(Run), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"run_observed", Cast(RunObserved), METH_FASTCALL | METH_KEYWORDS, nullptr},
    {"run_everything", RunEverything, METH_O, nullptr},
    {"seen_of_everything", SeenOfEverything, METH_NOARGS, nullptr},
    {"position_at", Cast(PositionOf), METH_FASTCALL, nullptr},
    {"live_locals", Cast(LiveLocalsOf), METH_FASTCALL, nullptr},
    {"instruction_at", Cast(InstructionOf), METH_FASTCALL, nullptr},
    {"start_offset", StartOf, METH_O, nullptr},
    {"version_problem", Problem, METH_NOARGS, nullptr},
    {"hook_installed", Installed, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "_frametap_interpreter", nullptr, -1, kMethods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace
}  // namespace frametap

PyMODINIT_FUNC PyInit__frametap_interpreter() {
  return frametap::InternNames() ? PyModule_Create(&frametap::kModule) : nullptr;
}
