// Leaving frames, generators, coroutines.
#include "frame_eval/cpython/private_api.h"
#include "frame_eval/interpreter/interpreter.h"

namespace frametap::opcodes {
namespace {

void Restore(PyObject* exception) {
  PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(exception))), exception,
                PyException_GetTraceback(exception));
}

bool IsGeneratorCoroutine(PyObject* object) {
  if (!PyGen_CheckExact(object)) return false;
  return reinterpret_cast<PyGenObject*>(object)->gi_code->co_flags & CO_ITERABLE_COROUTINE;
}

// Returns the iterator of `await object` (owned; null if this raised).
PyObject* AwaitableIterator(PyObject* object) {
  if (PyCoro_CheckExact(object) || IsGeneratorCoroutine(object)) return Py_NewRef(object);
  PyAsyncMethods* methods = Py_TYPE(object)->tp_as_async;
  if (methods == nullptr || methods->am_await == nullptr) {
    PyErr_Format(PyExc_TypeError, "object %.100s can't be used in 'await' expression", Py_TYPE(object)->tp_name);
    return nullptr;
  }
  PyObject* iterator = methods->am_await(object);
  if (iterator == nullptr) return nullptr;
  if (PyCoro_CheckExact(iterator) || IsGeneratorCoroutine(iterator)) {
    PyErr_SetString(PyExc_TypeError, "__await__() returned a coroutine");
  } else if (!PyIter_Check(iterator)) {
    PyErr_Format(PyExc_TypeError, "__await__() returned non-iterator of type '%.100s'", Py_TYPE(iterator)->tp_name);
  } else {
    return iterator;
  }
  Py_DECREF(iterator);
  return nullptr;
}

// -1 if this raised.
int IsBeingAwaited(PyObject* coroutine) {
  PyObject* awaited = PyObject_GetAttrString(coroutine, "cr_await");
  if (awaited == nullptr) return -1;
  int answer = awaited != Py_None;
  Py_DECREF(awaited);
  return answer;
}

void ExplainAsyncWith(PyTypeObject* type, int which) {
  if (type->tp_as_async != nullptr && type->tp_as_async->am_await != nullptr) return;
  if (which == 1 || which == 2) {
    PyErr_Format(PyExc_TypeError, "'async with' received an object from %s that does not implement __await__: %.100s",
                 which == 1 ? "__aenter__" : "__aexit__", type->tp_name);
  }
}

}  // namespace

OPCODE(ReturnValue, "value -- (leaves)") {
  m.result_shadow = m.PeekShadow(1);
  m.result = m.Pop();
  return Step::kReturned;
}

// The generator is made by CPython, which moves the frame into it.
OPCODE(ReturnGenerator, "-- (leaves)") { return Step::kMakesGenerator; }

OPCODE(YieldValue, "value -- (leaves)") {
  Operation op(m, Op::kYield, 1);
  m.result_shadow = m.PeekShadow(1);
  m.result = m.Pop();
  return Step::kYielded;
}

// The wrapper around what an asynchronous generator yields cannot be made from outside of CPython.
OPCODE(AsyncGeneratorWrap, "value -- (leaves)") {
  Operation op(m, Op::kYield, 1);
  return Step::kYieldsInCPython;
}

OPCODE(Send, "receiver value -- receiver yielded | returned") {
  Operation op(m, Op::kAsync, 2);
  PyObject* result = nullptr;
  switch (PyIter_Send(m.Peek(2), m.Peek(1), &result)) {
    case PYGEN_ERROR:
      return op.Raised();
    case PYGEN_RETURN:
      m.next += arg;
      return op.Replace(2, result);
    case PYGEN_NEXT:
      return op.Replace(1, result);
  }
  return op.Raised();
}

OPCODE(GetYieldFromIter, "iterable -- iterator") {
  Operation op(m, Op::kAsync, 1);
  PyObject* iterable = m.Peek(1);
  if (PyCoro_CheckExact(iterable)) {
    if (m.code->co_flags & (CO_COROUTINE | CO_ITERABLE_COROUTINE)) return op.Replace(1, Py_NewRef(iterable));
    PyErr_SetString(PyExc_TypeError, "cannot 'yield from' a coroutine object in a non-coroutine generator");
    return op.Raised();
  }
  return op.Replace(1, PyGen_CheckExact(iterable) ? Py_NewRef(iterable) : PyObject_GetIter(iterable));
}

OPCODE(GetAwaitable, "object -- iterator") {
  Operation op(m, Op::kAsync, 1);
  PyObject* object = m.Peek(1);
  PyObject* iterator = AwaitableIterator(object);
  if (iterator == nullptr) {
    ExplainAsyncWith(Py_TYPE(object), arg);
    return op.Raised();
  }
  if (PyCoro_CheckExact(iterator)) {
    int busy = IsBeingAwaited(iterator);
    if (busy > 0) PyErr_SetString(PyExc_RuntimeError, "coroutine is being awaited already");
    if (busy != 0) Py_CLEAR(iterator);
  }
  return op.Replace(1, iterator);
}

OPCODE(GetAsyncIter, "object -- iterator") {
  Operation op(m, Op::kAsync, 1);
  PyObject* object = m.Peek(1);
  PyTypeObject* type = Py_TYPE(object);
  if (type->tp_as_async == nullptr || type->tp_as_async->am_aiter == nullptr) {
    PyErr_Format(PyExc_TypeError, "'async for' requires an object with __aiter__ method, got %.100s", type->tp_name);
    return op.Raised();
  }
  PyObject* iterator = type->tp_as_async->am_aiter(object);
  if (iterator == nullptr) return op.Raised();
  PyTypeObject* made = Py_TYPE(iterator);
  if (made->tp_as_async == nullptr || made->tp_as_async->am_anext == nullptr) {
    PyErr_Format(PyExc_TypeError,
                 "'async for' received an object from __aiter__ that does not implement __anext__: %.100s",
                 made->tp_name);
    Py_CLEAR(iterator);
  }
  return op.Replace(1, iterator);
}

OPCODE(GetAsyncNext, "iterator -- iterator awaitable") {
  Operation op(m, Op::kAsync, 1);
  PyObject* iterator = m.Peek(1);
  PyTypeObject* type = Py_TYPE(iterator);
  if (PyAsyncGen_CheckExact(iterator)) return op.Push(type->tp_as_async->am_anext(iterator));
  if (type->tp_as_async == nullptr || type->tp_as_async->am_anext == nullptr) {
    PyErr_Format(PyExc_TypeError, "'async for' requires an iterator with __anext__ method, got %.100s", type->tp_name);
    return op.Raised();
  }
  PyObject* item = type->tp_as_async->am_anext(iterator);
  if (item == nullptr) return op.Raised();
  PyObject* awaitable = AwaitableIterator(item);
  if (awaitable == nullptr) {
    _PyErr_FormatFromCause(PyExc_TypeError, "'async for' received an invalid object from __anext__: %.100s",
                           Py_TYPE(item)->tp_name);
  }
  Py_DECREF(item);
  return op.Push(awaitable);
}

OPCODE(EndAsyncFor, "iterator exception -- (or raises)") {
  Operation op(m, Op::kAsync, 2);
  PyObject* exception = m.Peek(1);
  if (PyErr_GivenExceptionMatches(exception, PyExc_StopAsyncIteration)) {
    op.Succeeded(nullptr);
    m.Drop();
    m.Drop();
    return Step::kNext;
  }
  Restore(Py_NewRef(exception));
  op.Raised();
  return Step::kReraised;
}

}  // namespace frametap::opcodes
