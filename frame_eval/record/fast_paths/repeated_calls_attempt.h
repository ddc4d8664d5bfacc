// RepeatedCalls::Attempt: one call that is repeated, or taken back. For repeated_calls.cc only.
#pragma once

#include <memory>
#include <vector>

#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {

inline bool HasOwnAttributes(PyObject* tensor) {
  PyObject* dict = DictAt(DictOf::kInstance, tensor);
  return dict != nullptr && PyDict_GET_SIZE(dict) > 0;
}

inline bool IsStrided(PyObject* tensor) {
  return TensorOf(tensor).layout() == c10::kStrided && !TensorOf(tensor).is_nested();
}

class RepeatedCalls::Attempt {
 public:
  Attempt(RepeatedCalls& repeats, const MemoEntry& memo, const CallSignature& signature, const Event& e);

  // Returns null if it does not fit, and must be taken back.
  Ref<> Result();
  void TakeBack();
  const TraceMark& began() const { return began_; }

 private:
  struct Misfit {};
  struct Made {
    ValueId id;
    at::Tensor tensor;
  };

  bool Guards();
  bool Nodes();
  Made& Slot(ValueId was) { return made_[was.raw() - memo_.from.aten.values]; }
  Arg Now(const Arg& was, c10::IValue* value, const c10::Type& type);
  bool HasFixedSize(ValueId number);
  ValueId NumberNow(ValueId was);
  ValueId ValueOf(const at::Tensor& tensor);
  ValueId TensorNow(ValueId was, c10::IValue* value);
  bool HasFixedNumber(const Arg& arg);
  bool Op(size_t i, PlaceId at);
  bool Bind(size_t was, size_t is);
  bool Scalar(size_t i, PlaceId at);
  bool Reads();
  Ref<> Give();

  RepeatedCalls& all_;
  Trace& trace_;
  const MemoEntry& memo_;
  const CallSignature& setting_;
  const Event& e_;
  const TraceMark began_;
  const std::unique_ptr<FaultObserver::Ops> observed_;
  std::vector<ValueId> ranks_;  // that follow from sizes, before
  GuardRecorder::Repetition repetition_;
  std::vector<Made> made_;               // values of the call, by their numbers behind its first one
  std::vector<c10::TensorImpl*> added_;  // known since this attempt began
  std::vector<at::Tensor> items_;
  torch::jit::Stack stack_;
  at::Tensor random_state_;  // before
};

}  // namespace frametap
