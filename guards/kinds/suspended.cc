// Suspended: a generator of some code that waits at some place. The content of its frame is read by sources of its
// own.
#include "guards/cpython/suspended_frame.h"

#include "absl/strings/str_cat.h"
#include "guards/kinds/guard.h"

namespace frametap {

constinit ReadSuspendedFrame read_suspended_frame = nullptr;

namespace {

class SuspendedGuard : public Guard {
 public:
  explicit SuspendedGuard(PyObject* generator) : Guard(Kind::kSuspended) {
    SuspendedFrame frame;
    if (!ReadSuspended(generator, &frame)) return;
    code_ = Ref<>::New(reinterpret_cast<PyObject*>(frame.code));
    globals_ = Ref<>::New(frame.function->func_globals);
    offset_ = frame.offset;
    depth_ = frame.depth;
  }

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override {
    SuspendedFrame frame;
    return at.object != nullptr && ReadSuspended(at.object, &frame) && IsSameCode(frame) && frame.offset == offset_ &&
           frame.depth == depth_;
  }
  Predicate Want() const override { return {Predicate::Form::kSuspended, Place(code_.get(), offset_)}; }
  std::string Got(const Reached& at) const override {
    SuspendedFrame frame;
    if (at.object == nullptr || !ReadSuspended(at.object, &frame)) return Guard::Got(at);
    return "suspended at " + Place(reinterpret_cast<PyObject*>(frame.code), frame.offset);
  }
  std::string Why(const Reached& at) const override {
    SuspendedFrame frame;
    if (at.object == nullptr || !ReadSuspended(at.object, &frame)) return "it is not a suspended generator";
    return IsSameCode(frame) ? "it is suspended elsewhere" : "it runs another function";
  }
  int Traverse(visitproc visit, void* arg) const override {
    Py_VISIT(globals_.get());
    return 0;
  }

 private:
  bool IsSameCode(const SuspendedFrame& frame) const {
    return reinterpret_cast<PyObject*>(frame.code) == code_.get() && frame.function->func_globals == globals_.get();
  }
  static std::string Place(PyObject* code, int offset) {
    if (code == nullptr) return "?";
    auto* of = reinterpret_cast<PyCodeObject*>(code);
    return absl::StrCat(PyUnicode_AsUTF8(of->co_name), ":", PyCode_Addr2Line(of, offset - kUnit));
  }

  static constexpr int kUnit = 2;  // the line of the instruction before: of the `yield`
  Ref<> code_, globals_;
  int offset_ = -1, depth_ = 0;
};

}  // namespace

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kSuspended>(PyObject* generator) {
  return std::make_unique<SuspendedGuard>(generator);
}

}  // namespace frametap
