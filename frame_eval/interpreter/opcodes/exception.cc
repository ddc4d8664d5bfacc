// Raising, handling, and the `with` statement. The handled exception is the thread's exc_info, as in CPython.
#include <unordered_set>

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/private_api.h"
#include "frame_eval/interpreter/interpreter.h"
#include "frame_eval/interpreter/opcodes/names.h"

namespace frametap::opcodes {
namespace {

void Restore(PyObject* exception) {
  PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(exception))), exception,
                PyException_GetTraceback(exception));
}

// Returns an exception instance for the operand of `raise` (owned; null if this raised).
PyObject* Instance(PyObject* given, const char* refusal) {
  if (PyExceptionClass_Check(given)) {
    PyObject* made = PyObject_CallNoArgs(given);
    return made;
  }
  if (PyExceptionInstance_Check(given)) return Py_NewRef(given);
  PyErr_SetString(PyExc_TypeError, refusal);
  return nullptr;
}

void RaiseFrom(PyObject* given, PyObject* given_cause) {
  PyObject* exception = Instance(given, "exceptions must derive from BaseException");
  if (exception == nullptr) return;
  if (!PyExceptionInstance_Check(exception)) {
    PyErr_Format(PyExc_TypeError, "calling %R should have returned an instance of BaseException, not %R", given,
                 Py_TYPE(exception));
    Py_DECREF(exception);
    return;
  }
  if (given_cause != nullptr) {
    PyObject* cause = nullptr;
    if (given_cause != Py_None) {
      cause = Instance(given_cause, "exception causes must derive from BaseException");
      if (cause == nullptr) {
        Py_DECREF(exception);
        return;
      }
    }
    PyException_SetCause(exception, cause);
  }
  PyObject* type = PyExceptionClass_Check(given) ? given : reinterpret_cast<PyObject*>(Py_TYPE(exception));
  PyErr_SetObject(type, exception);
  Py_DECREF(exception);
}

bool MayBeCaught(PyObject* type) {
  bool valid = true;
  if (PyTuple_Check(type)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type); ++i) valid &= PyExceptionClass_Check(PyTuple_GET_ITEM(type, i));
  } else {
    valid = PyExceptionClass_Check(type);
  }
  if (!valid) {
    PyErr_SetString(PyExc_TypeError, "catching classes that do not inherit from BaseException is not allowed");
  }
  return valid;
}

bool IsGroup(PyObject* exception) {
  return PyObject_TypeCheck(exception, reinterpret_cast<PyTypeObject*>(PyExc_BaseExceptionGroup));
}

bool MayBeCaughtInGroup(PyObject* type) {
  if (!MayBeCaught(type)) return false;
  int is_group = 0;
  if (PyTuple_Check(type)) {
    for (Py_ssize_t i = 0; is_group == 0 && i < PyTuple_GET_SIZE(type); ++i) {
      is_group = PyObject_IsSubclass(PyTuple_GET_ITEM(type, i), PyExc_BaseExceptionGroup);
    }
  } else {
    is_group = PyObject_IsSubclass(type, PyExc_BaseExceptionGroup);
  }
  if (is_group > 0) {
    PyErr_SetString(PyExc_TypeError, "catching ExceptionGroup with except* is not allowed. Use except instead.");
  }
  return is_group == 0;
}

// The group of these exceptions with an empty message: an ExceptionGroup if all are Exceptions.
PyObject* MakeGroup(PyObject* exceptions) {
  return PyObject_CallFunction(PyExc_BaseExceptionGroup, "sO", "", exceptions);
}

// Splits the raised exception into the part that `except* type` takes (None if nothing) and the rest. Returns false if
// this raised.
bool SplitGroup(PyObject* raised, PyObject* type, PyObject** match, PyObject** rest) {
  *match = *rest = nullptr;
  if (raised == Py_None) {
    *match = Py_NewRef(Py_None);
    *rest = Py_NewRef(Py_None);
    return true;
  }
  if (PyErr_GivenExceptionMatches(raised, type)) {
    if (IsGroup(raised)) {
      *match = Py_NewRef(raised);
    } else {
      PyObject* one = PyTuple_Pack(1, raised);
      if (one == nullptr) return false;
      *match = MakeGroup(one);
      Py_DECREF(one);
      if (*match == nullptr) return false;
    }
    *rest = Py_NewRef(Py_None);
    return true;
  }
  if (!IsGroup(raised)) {
    *match = Py_NewRef(Py_None);
    *rest = Py_NewRef(Py_None);
    return true;
  }
  PyObject* pair = PyObject_CallMethod(raised, "split", "(O)", type);
  if (pair == nullptr) return false;
  if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) {
    PyErr_Format(PyExc_TypeError, "%.200s.split must return a 2-tuple", Py_TYPE(raised)->tp_name);
    Py_DECREF(pair);
    return false;
  }
  *match = Py_NewRef(PyTuple_GET_ITEM(pair, 0));
  *rest = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
  Py_DECREF(pair);
  return true;
}

using Identities = std::unordered_set<PyObject*>;

int AddLeaves(PyObject* exception, Identities* leaves) {
  if (!IsGroup(exception)) {
    leaves->insert(exception);
    return 0;
  }
  PyObject* inner = reinterpret_cast<PyBaseExceptionGroupObject*>(exception)->excs;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inner); ++i) {
    if (Py_EnterRecursiveCall(" in collect_exception_group_leaf_ids")) return -1;
    int status = AddLeaves(PyTuple_GET_ITEM(inner, i), leaves);
    Py_LeaveRecursiveCall();
    if (status < 0) return -1;
  }
  return 0;
}

// The same group with other members: traceback, context, cause and notes are kept.
PyObject* Derive(PyObject* group, PyObject* members) {
  PyObject* made = PyObject_CallMethod(group, "derive", "(O)", members);
  if (made == nullptr) return nullptr;
  if (!IsGroup(made)) {
    PyErr_SetString(PyExc_TypeError, "derive must return an instance of BaseExceptionGroup");
    Py_DECREF(made);
    return nullptr;
  }
  PyObject* traceback = PyException_GetTraceback(group);
  int status = traceback == nullptr ? 0 : PyException_SetTraceback(made, traceback);
  Py_XDECREF(traceback);
  if (status == 0) {
    PyException_SetContext(made, PyException_GetContext(group));
    PyException_SetCause(made, PyException_GetCause(group));
    PyObject* notes;
    status = _PyObject_LookupAttr(group, interned.notes, &notes) < 0 ? -1 : 0;
    if (notes != nullptr && PySequence_Check(notes)) {
      PyObject* copy = PySequence_List(notes);
      status = copy == nullptr ? -1 : PyObject_SetAttr(made, interned.notes, copy);
      Py_XDECREF(copy);
    }
    Py_XDECREF(notes);
  }
  if (status < 0) Py_CLEAR(made);
  return made;
}

// The part of a group whose leaves are kept; None if there is none.
PyObject* Project(PyObject* group, const Identities& kept) {
  PyObject* members = PyList_New(0);
  if (members == nullptr) return nullptr;
  PyObject* inner = reinterpret_cast<PyBaseExceptionGroupObject*>(group)->excs;
  int status = 0;
  for (Py_ssize_t i = 0; status == 0 && i < PyTuple_GET_SIZE(inner); ++i) {
    PyObject* exception = PyTuple_GET_ITEM(inner, i);
    if (!IsGroup(exception)) {
      if (kept.count(exception) != 0) status = PyList_Append(members, exception);
      continue;
    }
    if (Py_EnterRecursiveCall(" in exceptiongroup_split_recursive")) {
      status = -1;
      break;
    }
    PyObject* part = Project(exception, kept);
    Py_LeaveRecursiveCall();
    status = part == nullptr ? -1 : part == Py_None ? 0 : PyList_Append(members, part);
    Py_XDECREF(part);
  }
  PyObject* result = nullptr;
  if (status == 0) result = PyList_GET_SIZE(members) == 0 ? Py_NewRef(Py_None) : Derive(group, members);
  Py_DECREF(members);
  return result;
}

// An except* clause that let a part of the group through gave it the group's own traceback, cause, context and notes.
bool IsPartOf(PyObject* exception, PyObject* group) {
  auto* a = reinterpret_cast<PyBaseExceptionObject*>(exception);
  auto* b = reinterpret_cast<PyBaseExceptionObject*>(group);
  return a->notes == b->notes && a->traceback == b->traceback && a->cause == b->cause && a->context == b->context;
}

// The exception that an except* statement raises at its end: the exceptions raised by its clauses and the unhandled
// ones.
PyObject* AfterClauses(PyObject* group, PyObject* exceptions) {
  Py_ssize_t n = PyList_GET_SIZE(exceptions);
  if (n == 0) return Py_NewRef(Py_None);
  if (!IsGroup(group)) return Py_NewRef(PyList_GET_ITEM(exceptions, 0));
  PyObject* raised = PyList_New(0);
  if (raised == nullptr) return nullptr;
  Identities leaves;
  int status = 0;
  for (Py_ssize_t i = 0; status == 0 && i < n; ++i) {
    PyObject* exception = PyList_GET_ITEM(exceptions, i);
    if (exception == Py_None) continue;
    status = IsPartOf(exception, group) ? AddLeaves(exception, &leaves) : PyList_Append(raised, exception);
  }
  PyObject* through = status < 0 ? nullptr : Project(group, leaves);
  PyObject* result = nullptr;
  if (through != nullptr) {
    if (PyList_GET_SIZE(raised) == 0) {
      result = Py_NewRef(through);
    } else if (through == Py_None || PyList_Append(raised, through) == 0) {
      bool alone = PyList_GET_SIZE(raised) == 1 && !GroupsOneException();
      result = alone ? Py_NewRef(PyList_GET_ITEM(raised, 0)) : MakeGroup(raised);
    }
    Py_DECREF(through);
  }
  Py_DECREF(raised);
  return result;
}

// Puts the `exit` method in the place of the manager on the stack, and the result of `enter` above it.
Step EnterBlock(Execution& m, Operation& op, PyObject* enter_name, PyObject* exit_name, const char* protocol) {
  PyObject* manager = m.Peek(1);
  PyObject* enter = LookupSpecial(manager, enter_name);
  if (enter == nullptr) {
    if (!PyErr_Occurred()) {
      PyErr_Format(PyExc_TypeError, "'%.200s' object does not support the %s protocol", Py_TYPE(manager)->tp_name,
                   protocol);
    }
    return op.Raised();
  }
  PyObject* exit = LookupSpecial(manager, exit_name);
  if (exit == nullptr) {
    if (!PyErr_Occurred()) {
      PyErr_Format(PyExc_TypeError, "'%.200s' object does not support the %s protocol (missed %U method)",
                   Py_TYPE(manager)->tp_name, protocol, exit_name);
    }
    Py_DECREF(enter);
    return op.Raised();
  }
  PyObject* entered = PyObject_CallNoArgs(enter);
  Py_DECREF(enter);
  if (entered == nullptr) {
    op.Raised();
    Py_DECREF(exit);
    return Step::kRaised;
  }
  Shadow shadow = op.Succeeded(entered);
  m.Peek(1) = exit;
  m.PeekShadow(1) = Shadow{};
  m.Push(entered, shadow);
  Py_DECREF(manager);
  return Step::kNext;
}

}  // namespace

OPCODE(PushExcInfo, "exception -- previous exception") {
  PyObject* exception = m.Peek(1);
  _PyErr_StackItem* handled = m.ts->exc_info;
  m.Peek(1) = handled->exc_value != nullptr ? handled->exc_value : Py_NewRef(Py_None);
  m.Push(Py_NewRef(exception), m.PeekShadow(1));
  m.PeekShadow(2) = Shadow{};
  handled->exc_value = exception;
  ++m.handlers;
  return Step::kNext;
}

OPCODE(PopExcept, "previous --") {
  _PyErr_StackItem* handled = m.ts->exc_info;
  PyObject* old = handled->exc_value;
  handled->exc_value = m.Pop();
  --m.handlers;
  Py_XDECREF(old);
  return Step::kNext;
}

OPCODE(CheckExcMatch, "exception type -- exception matches") {
  Operation op(m, Op::kExcMatch, 2);
  PyObject* type = m.Peek(1);
  if (!MayBeCaught(type)) return op.Raised();
  return op.Replace(1, NewBool(PyErr_GivenExceptionMatches(m.Peek(2), type) != 0));
}

OPCODE(CheckGroupMatch, "exception type -- rest match") {
  Operation op(m, Op::kExcMatch, 2);
  PyObject* raised = m.Peek(2);
  PyObject* type = m.Peek(1);
  if (!MayBeCaughtInGroup(type)) return op.Raised();
  PyObject *match, *rest;
  if (!SplitGroup(raised, type, &match, &rest)) return op.Raised();
  Shadow shadow = op.Succeeded(match);
  m.Pop();
  if (match == Py_None) {
    m.Push(match, shadow);
    Py_DECREF(rest);
  } else {
    m.Peek(1) = rest;
    m.PeekShadow(1) = Shadow{};
    m.Push(match, shadow);
    PyErr_SetExcInfo(nullptr, Py_NewRef(match), nullptr);
    Py_DECREF(raised);
  }
  Py_DECREF(type);
  return Step::kNext;
}

OPCODE(PrepareGroupReraise, "group exceptions -- exception|None") {
  Operation op(m, Op::kOther, 2);
  return op.Replace(2, AfterClauses(m.Peek(2), m.Peek(1)));
}

OPCODE(Raise, "[exception [cause]] -- raises") {
  Operation op(m, Op::kRaise, arg);
  if (arg > 0) {
    RaiseFrom(m.Peek(arg), arg == 2 ? m.Peek(1) : nullptr);
    return op.Raised();
  }
  PyObject* handled = _PyErr_GetTopmostException(m.ts)->exc_value;
  if (handled == nullptr || handled == Py_None) {
    PyErr_SetString(PyExc_RuntimeError, "No active exception to reraise");
    return op.Raised();
  }
  Restore(Py_NewRef(handled));
  op.Raised();
  return Step::kReraised;
}

// With an argument the place of the first raise lies that deep: the traceback keeps its line.
OPCODE(Reraise, "[… index …] exception -- raises") {
  if (arg != 0) {
    PyObject* index = m.Peek(arg + 1);
    if (!PyLong_Check(index)) {
      PyErr_SetString(PyExc_SystemError, "lasti is not an int");
      return Step::kRaised;
    }
    m.SetLastInstruction(static_cast<int>(PyLong_AsLong(index)));
  }
  Restore(m.Pop());
  return Step::kReraised;
}

OPCODE(LoadAssertionError, "-- AssertionError") {
  m.Push(Py_NewRef(PyExc_AssertionError));
  return Step::kNext;
}

OPCODE(BeforeWith, "manager -- exit entered") {
  Operation op(m, Op::kBeforeWith, 1);
  return EnterBlock(m, op, interned.enter, interned.exit, "context manager");
}

OPCODE(BeforeAsyncWith, "manager -- exit awaitable") {
  Operation op(m, Op::kAsync, 1);
  return EnterBlock(m, op, interned.aenter, interned.aexit, "asynchronous context manager");
}

OPCODE(WithExceptStart, "exit index previous exception -- exit index previous exception suppress") {
  PyObject* exception = m.Peek(1);
  PyObject* traceback = PyException_GetTraceback(exception);
  Py_XDECREF(traceback);  // the exception owns it
  PyObject* in[] = {m.Peek(4), reinterpret_cast<PyObject*>(Py_TYPE(exception)), exception, traceback};
  Shadow shadows[] = {m.PeekShadow(4), {}, m.PeekShadow(1), {}};
  Operation op(m, Op::kWithExit, in, shadows, 4);
  return op.Push(PyObject_Vectorcall(in[0], in + 1, 3, nullptr));
}

}  // namespace frametap::opcodes
