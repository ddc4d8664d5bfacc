// Calls. Python callees come back through the hook as frames of their own.
#include <utility>

#include "frame_eval/cpython/private_api.h"
#include "frame_eval/interpreter/interpreter.h"
#include "guards/ref.h"

namespace frametap::opcodes {

// The error of a failed `**mapping`, with the name of the called function.
void ExplainKeywords(PyObject* callable, PyObject* mapping) {
  if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
    PyErr_Clear();
    PyObject* name = _PyObject_FunctionStr(callable);
    if (name == nullptr) return;
    PyErr_Format(PyExc_TypeError, "%U argument after ** must be a mapping, not %.200s", name,
                 Py_TYPE(mapping)->tp_name);
    Py_DECREF(name);
  } else if (PyErr_ExceptionMatches(PyExc_KeyError)) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    // The merge reports a key that is there already with a bare tuple as the error's value.
    if (value == nullptr || !PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 1) {
      PyErr_Restore(type, value, traceback);
      return;
    }
    PyObject* name = _PyObject_FunctionStr(callable);
    if (name != nullptr) {
      PyErr_Format(PyExc_TypeError, "%U got multiple values for keyword argument '%S'", name,
                   PyTuple_GET_ITEM(value, 0));
      Py_DECREF(name);
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
  }
}

// A bound method stays whole on the stack: a segment that ends here must find it there as its source gives it.
OPCODE(Call, "method|null self|callable args… -- result") {
  PyObject** in = m.top - arg - 2;
  if (in[0] == nullptr) ++in;
  PyObject* kwnames = m.kwnames;
  m.kwnames = nullptr;
  Py_ssize_t n = m.top - in;
  Py_ssize_t positional = n - 1 - (kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames));
  Operation op(m, Op::kCall, in, m.ShadowOf(in), static_cast<int>(n), 0, nullptr, kwnames);
  // Without PY_VECTORCALL_ARGUMENTS_OFFSET: the callee must not use the callable's place, the frame may be read
  // meanwhile.
  PyObject* result = std::exchange(m.answer, nullptr);
  if (result == nullptr) result = SpecializedCall(m.ts, in[0], in + 1, positional, kwnames);
  return op.Replace(m.top - arg - 2, result) == Step::kNext ? Step::kCheck : Step::kRaised;
}

// Arguments that are not a tuple, and keywords that are not a dict, are converted first. The tracer gets the events of
// the instructions that do the same. A list stays on the stack meanwhile: a segment that ends in this instruction must
// find it there (tracer/I1). After an iterator is used up, only the tuple is left.
OPCODE(CallEx, "null callable args [kwargs] -- result") {
  int n = 2 + (arg & 1);
  if (arg & 1) {
    PyObject* mapping = m.Peek(1);
    if (!PyDict_CheckExact(mapping)) {
      Ref<> dict = Ref<>::Steal(PyDict_New());
      if (!dict) return Step::kRaised;
      PyObject* in[] = {dict.get(), mapping};
      Shadow shadows[] = {{}, m.PeekShadow(1)};
      Operation op(m, Op::kDictMerge, in, shadows, 2);
      if (_PyDict_MergeEx(dict.get(), mapping, 2) < 0) {
        ExplainKeywords(m.Peek(3), mapping);
        return op.Raised();
      }
      op.Succeeded(nullptr);
      m.Peek(1) = dict.Release();
      m.PeekShadow(1) = Shadow{};
      Py_DECREF(mapping);
    }
  }
  PyObject** in = m.top - n;
  PyObject* args = in[1];
  PyObject* operands[] = {in[0], args, n == 3 ? in[2] : nullptr};
  const Shadow* beside = m.ShadowOf(in);
  Shadow shadows[] = {beside[0], beside[1], n == 3 ? beside[2] : Shadow{}};
  Ref<> made;
  if (!PyTuple_CheckExact(args)) {
    Operation op(m, Op::kListToTuple, in + 1, m.ShadowOf(in + 1), 1);
    if (Py_TYPE(args)->tp_iter == nullptr && !PySequence_Check(args)) {
      PyObject* name = _PyObject_FunctionStr(in[0]);
      if (name != nullptr) {
        PyErr_Format(PyExc_TypeError, "%U argument after * must be an iterable, not %.200s", name,
                     Py_TYPE(args)->tp_name);
        Py_DECREF(name);
      }
      return op.Raised();
    }
    PyObject* tuple = PySequence_Tuple(args);
    if (tuple == nullptr) return op.Raised();
    shadows[1] = op.Succeeded(tuple);
    operands[1] = tuple;
    if (PyList_CheckExact(args)) {
      made = Ref<>::Steal(tuple);
    } else {
      in[1] = tuple;
      *m.ShadowOf(in + 1) = shadows[1];
      Py_DECREF(args);
    }
  }
  Operation op(m, Op::kCallEx, operands, shadows, n);
  PyObject* result = PyObject_Call(operands[0], operands[1], operands[2]);
  const Step step = op.Replace(n + 1, result);
  return step == Step::kNext ? Step::kCheck : Step::kRaised;
}

// An expression statement at the interactive prompt.
OPCODE(PrintExpr, "value --") {
  Operation op(m, Op::kOther, 1);
  PyObject* hook = PySys_GetObject("displayhook");
  if (hook == nullptr) {
    PyErr_SetString(PyExc_RuntimeError, "lost sys.displayhook");
    return op.Raised();
  }
  PyObject* result = PyObject_CallOneArg(hook, m.Peek(1));
  if (result == nullptr) return op.Raised();
  Py_DECREF(result);
  return op.Finish(1, 0);
}

}  // namespace frametap::opcodes
