#include "frame_eval/segment/graph_inputs.h"

#include <algorithm>
#include <new>
#include <utility>

#include "frame_eval/segment/array_value.h"
#include "frame_eval/segment/segment.h"
#include "guards/objects/array_view.h"
#include "guards/objects/torch_tensor.h"

namespace frametap {

bool GatherInput(const GuardTree& guards, SourceId source, c10::IValue* input) {
  const Reached at = guards.At(source);
  PyObject* object = at.object;
  if (object == nullptr) {
    *input = at.number;
  } else if (PyFloat_CheckExact(object)) {
    *input = PyFloat_AS_DOUBLE(object);
  } else if (PyLong_Check(object)) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
    if (overflow != 0) {
      PyErr_SetString(PyExc_OverflowError, "an int of more than 64 bits");
      return false;
    }
    *input = number;
  } else if (IsOfNumPy(object)) {
    *input = ArrayAsValue(object);
  } else {
    *input = TensorOf(object);
  }
  return true;
}

void InputBuffer::Forget() {
  for (const uint32_t i : lent_) std::move(values_[i]).toTensor().unsafeReleaseTensorImpl();
  standing_ = 0;
  values_.clear();
  own_.clear();
  lent_.clear();
  read_.clear();
}

void InputBuffer::Borrow(const Segment& segment) {
  Forget();
  executable_ = segment.executable;
  const std::vector<SourceId>& sources = segment.input_sources;
  const uint64_t standing = segment.guards->standing();
  values_.resize(sources.size());
  for (std::vector<uint32_t>* which : {&own_, &lent_}) which->reserve(sources.size());
  read_.reserve(sources.size());
  for (uint32_t i = 0; i < sources.size(); ++i) {
    if (standing == 0 || !segment.guards->Stands(sources[i])) {
      own_.push_back(i);
      continue;
    }
    c10::TensorImpl* const impl = TensorOf(segment.guards->Object(sources[i])).unsafeGetTensorImpl();
    values_[i] = at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim(impl));
    lent_.push_back(i);
    if (executable_->Reads(i)) read_.push_back(impl);
  }
  standing_ = standing;
}

GraphInputs::GraphInputs(Segment& segment) : segment_(segment) {
  if (segment.free_rows.empty()) {
    row_ = std::make_unique<InputBuffer>();
  } else {
    row_ = std::move(segment.free_rows.back());
    segment.free_rows.pop_back();
  }
}

bool GraphInputs::Gather() {
  const uint64_t standing = segment_.guards->standing();
  if (standing == 0 || row_->standing_ != standing || row_->executable_ != segment_.executable) row_->Borrow(segment_);
  for (const uint32_t i : row_->own_) {
    if (!GatherInput(*segment_.guards, segment_.input_sources[i], &row_->values_[i])) return false;
  }
  for (c10::TensorImpl* impl : row_->read_) c10::raw::intrusive_ptr::incref(impl);
  is_counted_ = true;
  return true;
}

bool GraphInputs::AreRight() const {
  return std::all_of(row_->lent_.begin(), row_->lent_.end(), [&](uint32_t i) {
    return row_->values_[i].toTensor().is_same(TensorOf(segment_.guards->Object(segment_.input_sources[i])));
  });
}

GraphInputs::~GraphInputs() {
  for (const uint32_t i : row_->own_) row_->values_[i] = c10::IValue();
  if (is_counted_) {
    for (c10::TensorImpl* impl : row_->read_) c10::raw::intrusive_ptr::decref(impl);
  }
  // The row has no user any more. The released objects may have run code, and that code may have run the segment.
  try {
    segment_.free_rows.push_back(std::move(row_));
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace frametap
