// FrameLayout: the facts of frames, threads and the collector that a version's layout.h gives. A test compiles each of
// them against the headers of its version (tests/opcodes/test_versions.py).
//   F1  `Next` and `SetNext` are for a frame that is left or suspended; `SetActing` is for one whose instruction acts.
//   F2  The garbage collector does not visit the value stack of a frame whose stack is hidden.
// Not here: how opcodes differ (3.x/opcodes.def).
#pragma once

#include <Python.h>

#include <concepts>
#include <cstdint>

struct _PyInterpreterFrame;

namespace frametap {

template <class T>
concept FrameLayout = requires(_PyInterpreterFrame* frame, PyThreadState* ts, const uint16_t* unit, PyObject** top) {
  { T::Code(frame) } -> std::same_as<PyCodeObject*>;
  { T::Function(frame) } -> std::same_as<PyFunctionObject*>;
  { T::Globals(frame) } -> std::same_as<PyObject*>;
  { T::Builtins(frame) } -> std::same_as<PyObject*>;
  { T::Objects(frame) } -> std::same_as<PyObject**>;  // locals, cells and free variables, then the value stack
  { T::Previous(frame) } -> std::same_as<_PyInterpreterFrame*>;
  { T::FrameObject(frame) } -> std::same_as<PyFrameObject*>;  // null: none was made
  { T::IsOfGenerator(frame) } -> std::same_as<bool>;

  { T::Next(frame) } -> std::same_as<const uint16_t*>;
  { T::SetNext(frame, unit) } -> std::same_as<void>;
  { T::SetActing(frame, unit) } -> std::same_as<void>;
  { T::Top(frame) } -> std::same_as<PyObject**>;
  { T::SetTop(frame, top) } -> std::same_as<void>;
  { T::HideStack(frame) } -> std::same_as<void>;

  { T::Running(ts) } -> std::same_as<_PyInterpreterFrame*>;
  { T::IsInterrupted(ts) } -> std::same_as<bool>;               // signals, pending calls, a wish for the lock
  { T::ErrorIndicator(ts) } -> std::same_as<PyObject* const*>;  // null there: no exception is set

  { T::CollectorCount() } -> std::same_as<int&>;  // of the youngest generation
  { T::MainThread() } -> std::same_as<unsigned long&>;

  // How far the version of a dict goes with each change. 0: dicts have no version, and are watched.
  { T::kDictVersionStep } -> std::convertible_to<uint64_t>;
};

}  // namespace frametap
