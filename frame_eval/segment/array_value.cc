#include "frame_eval/segment/array_value.h"

#include <string>
#include <vector>

#include "guards/objects/thread_end.h"

namespace frametap {
namespace {

class Held : public c10::ivalue::PyObjectHolder {
 public:
  explicit Held(PyObject* object) : object_(Py_NewRef(object)) {}
  ~Held() override {
    const PyGILState_STATE lock = StayingAtThreadEnd(PyGILState_Ensure);
    Py_DECREF(object_);
    PyGILState_Release(lock);
  }
  PyObject* getPyObject() override { return object_; }
  c10::InferredType tryToInferType() override { return c10::InferredType("an object of NumPy"); }
  c10::IValue toIValue(const c10::TypePtr&, std::optional<int32_t>) override { return {}; }
  std::string toStr() override { return "an object of NumPy"; }
  std::vector<at::Tensor> extractTensors() override { return {}; }

 private:
  PyObject* const object_;
};

}  // namespace

c10::IValue ArrayAsValue(PyObject* object) {
  return c10::IValue(c10::intrusive_ptr<c10::ivalue::PyObjectHolder>(c10::make_intrusive<Held>(object)));
}

}  // namespace frametap
