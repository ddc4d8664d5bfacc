#include "python/bindings/plain_layers.h"

#include <Python.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "backends/quant/op_table.h"
#include "frame_eval/session/library_code.h"
#include "frame_eval/session/session.h"
#include "guards/ref.h"

namespace frametap {
namespace {

thread_local constinit PlainLayers* current = nullptr;  // null in a call that is not watched, too
thread_local constinit int calls = 0;                   // of this thread
std::vector<PlainLayers*> running;                      // watched calls of all threads; under Python's lock

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

OwnWeights::OwnWeights(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) impls_.insert(parameter.unsafeGetTensorImpl());
}

bool OwnWeights::AreAmong(c10::ArrayRef<const c10::IValue> inputs) const {
  return std::any_of(inputs.begin(), inputs.end(), [this](const c10::IValue& input) {
    return input.isTensor() && impls_.contains(input.toTensor().unsafeGetTensorImpl());
  });
}

PlainLayers::PlainLayers(const quant::Tally& tally, const OwnWeights& weights, bool watches)
    : tally_(tally), weights_(weights), watches_(watches), previous_(std::exchange(current, watches ? this : nullptr)) {
  ++calls;
  if (!watches_) return;
  running.push_back(this);
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Note).scopes({at::RecordScope::FUNCTION}));
  handle_elsewhere_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&NoteElsewhere).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

PlainLayers::~PlainLayers() {
  current = previous_;
  --calls;
  if (!watches_) return;
  at::removeCallback(handle_elsewhere_);
  at::removeCallback(handle_);
  running.erase(std::find(running.begin(), running.end(), this));
}

void PlainLayers::Count(const c10::OperatorName& op) {
  if (count_++ != 0) return;
  const std::string place = PlaceOfUser();
  first_ = absl::StrCat("aten.", op.name.substr(6), place.empty() ? "" : " at ", place);
}

std::unique_ptr<at::ObserverContext> PlainLayers::Note(const at::RecordFunction& op) {
  PlainLayers* const self = current;
  if (self == nullptr || self->tally_.running > 0) return nullptr;
  const auto name = op.operator_name();
  if (!name || !quant::IsLayer(*name)) return nullptr;
  const PyGILState_STATE state = PyGILState_Ensure();  // torch's bindings may have released Python's lock
  if (!Session::IsRecording()) self->Count(*name);
  PyGILState_Release(state);
  return nullptr;
}

std::unique_ptr<at::ObserverContext> PlainLayers::NoteElsewhere(const at::RecordFunction& op) {
  const auto name = op.operator_name();
  if (calls > 0 || !name || !quant::IsLayer(*name)) return nullptr;
  const PyGILState_STATE state = PyGILState_Ensure();
  for (PlainLayers* const call : running) {
    if (call->weights_.AreAmong(op.inputs())) call->Count(*name);
  }
  PyGILState_Release(state);
  return nullptr;
}

}  // namespace frametap
