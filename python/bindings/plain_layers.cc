#include "python/bindings/plain_layers.h"

#include <Python.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/quant/op_table.h"
#include "frame_eval/library_code.h"
#include "frame_eval/session.h"
#include "guards/ref.h"

namespace frametap {
namespace {

thread_local constinit PlainLayers* current = nullptr;

// Returns the function and line of the innermost frame whose source is the user's. Needs Python's lock.
std::string PlaceOfUser() {
  const ErrScope keep;
  Ref<PyFrameObject> frame = Ref<PyFrameObject>::Steal(PyThreadState_GetFrame(PyThreadState_Get()));
  while (frame) {
    const Ref<PyCodeObject> code = Ref<PyCodeObject>::Steal(PyFrame_GetCode(frame.get()));
    const char* name = PyUnicode_AsUTF8(code.get()->co_qualname);
    if (!IsPackageCode(code.get()) && name != nullptr) {
      return absl::StrCat(name, ":", PyFrame_GetLineNumber(frame.get()));
    }
    frame = Ref<PyFrameObject>::Steal(PyFrame_GetBack(frame.get()));
  }
  return "";
}

}  // namespace

PlainLayers::PlainLayers(const quant::Tally& tally, bool watches)
    : tally_(tally), watches_(watches), previous_(std::exchange(current, watches ? this : nullptr)) {
  if (watches_) {
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Note).scopes({at::RecordScope::FUNCTION}));
  }
}

PlainLayers::~PlainLayers() {
  if (watches_) at::removeCallback(handle_);
  current = previous_;
}

std::unique_ptr<at::ObserverContext> PlainLayers::Note(const at::RecordFunction& op) {
  PlainLayers* const self = current;
  if (self == nullptr || self->tally_.running > 0) return nullptr;
  const auto name = op.operator_name();
  if (!name || !quant::IsLayer(*name)) return nullptr;
  const PyGILState_STATE state = PyGILState_Ensure();  // torch's bindings may have released Python's lock
  if (!Session::Recording() && self->count_++ == 0) {
    const std::string place = PlaceOfUser();
    self->first_ = absl::StrCat("aten.", name->name.substr(6), place.empty() ? "" : " at ", place);
  }
  PyGILState_Release(state);
  return nullptr;
}

}  // namespace frametap
