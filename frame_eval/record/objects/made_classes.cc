#include "frame_eval/record/objects/made_classes.h"

#include <vector>

namespace frametap {
namespace {

// Counts the references to a class that come from objects that only the class holds: its dict, its order of bases, its
// descriptors, and the cells of its methods.
class OwnReferences {
 public:
  explicit OwnReferences(PyTypeObject* type) : type_(reinterpret_cast<PyObject*>(type)) {
    own_dict_ = type->tp_dict;
    Go(type_);
    while (!waiting_.empty() && seen_.size() < kMost) {
      PyObject* const next = waiting_.back();
      waiting_.pop_back();
      Go(next);
    }
  }
  // More than there can be where the class holds too many objects to count.
  Py_ssize_t count() const { return waiting_.empty() ? count_ : 0; }

 private:
  static constexpr size_t kMost = 500;

  void Go(PyObject* holder) {
    if (Py_TYPE(holder)->tp_traverse != nullptr) Py_TYPE(holder)->tp_traverse(holder, &Visit, this);
  }

  // Parts that a class has for itself. Globals of a method and other classes lead to the whole program.
  bool IsPart(PyObject* object) const {
    if (PyDict_Check(object)) return object == own_dict_;
    return PyTuple_CheckExact(object) || PyFunction_Check(object) || PyCell_Check(object) ||
           Py_IS_TYPE(object, &PyGetSetDescr_Type) || Py_IS_TYPE(object, &PyMemberDescr_Type) ||
           Py_IS_TYPE(object, &PyWrapperDescr_Type) || Py_IS_TYPE(object, &PyClassMethod_Type) ||
           Py_IS_TYPE(object, &PyStaticMethod_Type) || Py_IS_TYPE(object, &PyProperty_Type);
  }

  static int Visit(PyObject* object, void* self) {
    auto* all = static_cast<OwnReferences*>(self);
    if (object == all->type_) {
      ++all->count_;
    } else if (object != nullptr && all->IsPart(object) && all->seen_.insert(object).second) {
      all->waiting_.push_back(object);
    }
    return 0;
  }

  PyObject* type_;
  PyObject* own_dict_;
  Py_ssize_t count_ = 0;
  absl::flat_hash_set<PyObject*> seen_;
  std::vector<PyObject*> waiting_;
};

}  // namespace

PyTypeObject* MadeClasses::UsedBy(const Event& event) const {
  int count = event.n;
  switch (event.op) {
    case Op::kBuildTuple:
    case Op::kBuildList:
    case Op::kBuildMap:
    case Op::kStoreDeref:
    case Op::kMakeCell:
      return nullptr;
    case Op::kCall:
      if (count > 0 && (PyFunction_Check(event.in[0]) || PyMethod_Check(event.in[0]))) count = 1;
      break;
    default:
      break;
  }
  for (int i = 0; i < count; ++i) {
    PyObject* const operand = event.in[i];
    if (operand == nullptr) continue;
    PyTypeObject* const type = PyType_Check(operand) ? reinterpret_cast<PyTypeObject*>(operand) : Py_TYPE(operand);
    if (classes_.contains(type)) return type;
  }
  return nullptr;
}

void MadeClasses::Meet(PyObject* pushed) {
  constexpr Py_ssize_t kMostReferences = 64;  // a new class has one for itself and one for each descriptor of its own
  PyTypeObject* const type = PyType_Check(pushed) ? reinterpret_cast<PyTypeObject*>(pushed) : Py_TYPE(pushed);
  const Py_ssize_t count = Py_REFCNT(type);
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0 || count > kMostReferences || classes_.contains(type)) return;
  if (count == OwnReferences(type).count() + 1) classes_.insert(type);
}

}  // namespace frametap
