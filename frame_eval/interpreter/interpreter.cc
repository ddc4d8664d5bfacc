// The loop: asks the tracer, decodes, calls the handler, unwinds. No opcode's meaning is here.
#include "frame_eval/interpreter/interpreter.h"

#include <utility>

#include "frame_eval/cpython/eval_function.h"
#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/cpython/raw_frame.h"
#include "guards/objects/thread_end.h"

namespace frametap {

PyObject* Execution::Locals() const { return raw->f_locals; }

void Execution::SetLastInstruction(int index) { raw->prev_instr = const_cast<uint16_t*>(first) + index; }

int Execution::LastInstruction() const { return static_cast<int>(raw->prev_instr - first); }

int Execution::NextStore() const { return StoreTarget(next); }

void Execution::Fault() noexcept {
  traced = observed = false;
  leave = true;
}

// No exception was set when the tracer was called. One that it has left (there was no memory) is not the program's.
void Execution::FaultOfTracer() noexcept {
  PyErr_Clear();
  Fault();
}

bool Execution::TellBefore(const Event& event) noexcept {
  try {
    return tracer->Before(*this, event);
  } catch (...) {
    FaultOfTracer();
    return true;
  }
}

Shadow Execution::TellAfter(const Event& event, PyObject* result) noexcept {
  try {
    return tracer->After(*this, event, result);
  } catch (...) {
    FaultOfTracer();
    return {};
  }
}

void Execution::TellRaised(const Event& event) noexcept {
  try {
    tracer->Raised(*this, event);
  } catch (...) {
    Fault();
  }
}

namespace {

// `format` has one %s for the name.
Step NameProblem(PyObject* type, const char* format, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return Step::kRaised;
  PyErr_Format(type, format, text);
  if (type != PyExc_NameError) return Step::kRaised;
  // The name goes into the exception: suggestions are made from it.
  PyObject *raised, *value, *traceback;
  PyErr_Fetch(&raised, &value, &traceback);
  PyErr_NormalizeException(&raised, &value, &traceback);
  if (PyErr_GivenExceptionMatches(value, PyExc_NameError) && PyObject_SetAttrString(value, "name", name) < 0) {
    PyErr_Clear();
  }
  PyErr_Restore(raised, value, traceback);
  return Step::kRaised;
}

}  // namespace

Step Execution::NotDefined(PyObject* name) {
  return NameProblem(PyExc_NameError, "name '%.200s' is not defined", name);
}

Step Execution::Unbound(int slot) {
  PyObject* name = SlotName(code, slot);
  if (KindOfSlot(code, slot) == SlotKind::kFree) {
    return NameProblem(PyExc_NameError,
                       "cannot access free variable '%s' where it is not associated with a value in enclosing scope",
                       name);
  }
  return NameProblem(PyExc_UnboundLocalError,
                     "cannot access local variable '%s' where it is not associated with a value", name);
}

namespace {

// Shadows of one frame: most frames fit into the small array.
class ShadowArray {
 public:
  explicit ShadowArray(int size) {
    if (size > kSmall) data_ = heap_ = static_cast<Shadow*>(PyMem_Malloc(sizeof(Shadow) * size));
  }
  ~ShadowArray() { PyMem_Free(heap_); }
  ShadowArray(const ShadowArray&) = delete;
  ShadowArray& operator=(const ShadowArray&) = delete;
  Shadow* data() const { return data_; }

 private:
  static constexpr int kSmall = 40;
  struct Raw {  // not cleared: most of it is never read
    alignas(Shadow) unsigned char bytes[sizeof(Shadow)];
  };
  Raw small_[kSmall];
  Shadow* heap_ = nullptr;
  Shadow* data_ = reinterpret_cast<Shadow*>(small_);
};

class Loop {
 public:
  Loop(PyThreadState* ts, _PyInterpreterFrame* raw, Tracer* tracer) : m_(ts, tracer), activation_(ts, raw) {}

  bool Enter() { return activation_.Enter(); }

  PyObject* Run(_PyInterpreterFrame* raw, Shadow* shadows) {
    bool resumed = m_.tracer != nullptr && FactsOf(raw).resumed;
    Load(raw, m_);
    m_.shadows = shadows;
    int known = static_cast<int>(m_.top - m_.objects);
    for (int i = 0; i < known; ++i) shadows[i] = Shadow{};
    m_.is_generator = IsGeneratorFrame(raw);
    if (m_.tracer != nullptr) {
      m_.resumed = resumed;
      Locate();
      try {
        m_.tracer->Enter(m_);
      } catch (...) {
        m_.FaultOfTracer();
      }
    }
    for (;;) {
      if (m_.observed || m_.leave || activation_.tracing()) [[unlikely]] {
        Locate();
        switch (Ask()) {
          case Tracer::Go::kOn:
            break;
          case Tracer::Go::kReload:
            m_.top = m_.base + m_.depth;
            m_.next = m_.first + m_.offset / 2;
            continue;
          case Tracer::Go::kReturn:
            m_.top = m_.base + m_.depth;
            m_.DropFrom(m_.base);
            return Return(FrameEnd::kReturned);
          case Tracer::Go::kYield:
            m_.top = m_.base + m_.depth;
            SetResumePoint(m_.raw, m_.first + m_.offset / 2);
            MarkSuspended(m_.raw);
            return Return(FrameEnd::kYielded);
          case Tracer::Go::kRaise:
            Decode();
            if (Unwind(true)) continue;
            return Failed();
          case Tracer::Go::kLeave:
            return HandOver();
        }
      } else if (m_.tracer != nullptr) {
        Locate();
      }
      const uint16_t* start = m_.next;
      const Decoded* decoded = &kDecode[*start & 0xff];
      int arg = *start >> 8;
      const uint16_t* unit = start;
      while (decoded->prefix != Prefix::kNone) [[unlikely]] {
          unit = Skip(unit, decoded, &arg);
          decoded = &kDecode[*unit & 0xff];
        }
      activation_.SetActing(unit);
      m_.acting = static_cast<int>(unit - m_.first);
      m_.next = unit + 1 + decoded->caches;
      switch (Do(decoded->handler, arg)) {
        case Step::kNext:
          break;
        case Step::kCheck:
          if (activation_.interrupted() && StayingAtThreadEnd([&] { return activation_.HandlePending(); }) < 0) {
            // The search for a handler begins where the program would have gone on.
            m_.acting = static_cast<int>(m_.next - m_.first) - 1;
            if (!Unwind(true)) return Failed();
          }
          break;
        case Step::kRaised:
          if (!Unwind(true)) return Failed();
          break;
        case Step::kReraised:
          if (!Unwind(false)) return Failed();
          break;
        case Step::kReturned:
          return Return(FrameEnd::kReturned);
        case Step::kYielded:
          MarkSuspended(m_.raw);
          return Return(FrameEnd::kYielded);
        case Step::kMakesGenerator: {
          PyObject* generator = InCPython(start);
          Tell(generator == nullptr ? FrameEnd::kRaised : FrameEnd::kGenerator, generator, {});
          return generator;
        }
        case Step::kYieldsInCPython:
          Tell(FrameEnd::kYielded, m_.Peek(1), m_.PeekShadow(1));
          return InCPython(start);
        case Step::kHandOver:
          m_.next = start;
          return HandOver();
      }
    }
  }

 private:
  // One prefix: its effect on the next instruction.
  const uint16_t* Skip(const uint16_t* unit, const Decoded* prefix, int* arg) {
    const uint16_t* behind = unit + 1 + prefix->caches;
    int low = *behind >> 8;
    switch (prefix->prefix) {
      case Prefix::kExtendedArg:
        *arg = *arg << 8 | low;
        return behind;
      case Prefix::kKwNames:
        m_.kwnames = PyTuple_GET_ITEM(m_.consts, *arg);
        break;
      case Prefix::kPrecall:
      case Prefix::kNone:
        break;
    }
    *arg = low;
    return behind;
  }

  Step Do(Handler handler, int arg) {
    try {
      return handler(m_, arg);
    } catch (const Refused&) {
      return Step::kRaised;
    } catch (const abi::__forced_unwind&) {
      WaitForProcessEnd();
    }
  }

  // Finds the acting instruction without running it.
  void Decode() {
    const uint16_t* unit = m_.next;
    int arg = *unit >> 8;
    for (const Decoded* decoded; (decoded = &kDecode[*unit & 0xff])->prefix != Prefix::kNone;) {
      unit = Skip(unit, decoded, &arg);
    }
    activation_.SetActing(unit);
    m_.acting = static_cast<int>(unit - m_.first);
  }

  void Locate() {
    m_.depth = static_cast<int>(m_.top - m_.base);
    m_.offset = static_cast<int>(m_.next - m_.first) * 2;
  }

  Tracer::Go Ask() {
    if (m_.leave || activation_.tracing()) return Tracer::Go::kLeave;
    try {
      return m_.tracer->AtInstruction(m_);
    } catch (...) {
      m_.FaultOfTracer();
      return Tracer::Go::kLeave;
    }
  }

  void Tell(FrameEnd end, PyObject* value, Shadow shadow) {
    if (m_.tracer == nullptr) return;
    try {
      m_.tracer->Leave(m_, end, value, shadow);
    } catch (...) {
      m_.Fault();
    }
  }

  PyObject* Return(FrameEnd end) {
    PyObject* result = std::exchange(m_.result, nullptr);
    Tell(end, result, m_.result_shadow);
    activation_.Leave(m_.top);
    return result;
  }

  PyObject* Failed() {
    Tell(FrameEnd::kRaised, nullptr, {});
    activation_.TraceUnwinding();
    activation_.Leave(m_.base);
    return nullptr;
  }

  // The frame goes to CPython with `start` as its next instruction.
  PyObject* InCPython(const uint16_t* start) {
    SetResumePoint(m_.raw, start);
    activation_.Leave(m_.top);
    return StayingAtThreadEnd([&] { return EvalInCPython(m_.ts, m_.raw); });
  }

  PyObject* HandOver() {
    Tell(FrameEnd::kHandedOver, nullptr, {});
    return InCPython(m_.next);
  }

  // Goes to the handler of the exception that is set. Returns false if the exception leaves the frame.
  bool Unwind(bool enter_in_traceback) {
    m_.kwnames = nullptr;
    if (enter_in_traceback) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "error return without exception set");
      activation_.AddTraceback();
      activation_.TraceException();
    }
    ExceptionHandler handler;
    for (;;) {
      if (!FindHandler(m_.code, m_.acting, &handler)) {
        while (m_.top > m_.base) m_.Drop();
        return false;
      }
      PyObject** level = m_.base + handler.depth;
      while (m_.top > level) m_.Drop();
      if (!handler.push_last) break;
      PyObject* last = PyLong_FromLong(m_.LastInstruction());
      if (last == nullptr) continue;  // now MemoryError looks for its handler
      m_.Push(last);
      break;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyException_SetTraceback(value, traceback != nullptr ? traceback : Py_None);
    Py_XDECREF(traceback);
    Py_XDECREF(type);
    m_.Push(value);
    m_.next = m_.first + handler.target;
    return true;
  }

  Execution m_;
  Activation activation_;
};

}  // namespace

PyObject* Interpret(PyThreadState* ts, _PyInterpreterFrame* raw, Tracer* tracer) {
  PyCodeObject* code = raw->f_code;
  ShadowArray shadows(code->co_nlocalsplus + code->co_stacksize);
  if (shadows.data() == nullptr) return EvalInCPython(ts, raw);
  Loop loop(ts, raw, tracer);
  if (!loop.Enter()) return nullptr;
  return loop.Run(raw, shadows.data());
}

}  // namespace frametap
