#include "frame_eval/segment/registrations.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "guards/cpython/watch.h"
#include "guards/objects/well_known_objects.h"
#include "guards/ref.h"
#include "ir/ops/dispatcher_door.h"

namespace frametap {
namespace {

using Kernels = std::vector<c10::intrusive_ptr<c10::OperatorKernel>>;

// `kept`, unless it is null, gets the kernels that have an object.
uint64_t StampOfKernels(const c10::OperatorHandle& op, Kernels* kept) {
  uint64_t stamp = 0;
  const c10::OperatorKernel* last = nullptr;
  ForEachKernel(op, [&](const c10::intrusive_ptr<c10::OperatorKernel>& functor, const void* unboxed) {
    stamp = absl::HashOf(stamp, functor.get(), unboxed);
    if (kept != nullptr && functor.get() != last) kept->push_back(functor);
    last = functor.get();
  });
  return stamp;
}

// The CustomOpDef of an op of torch.library.custom_op, or null. Borrowed from the definition's own references.
PyObject* DefinitionOf(const c10::OperatorName& name) {
  const Ref<> key = Ref<>::Steal(PyUnicode_FromString(name.name.c_str()));
  PyObject* const found = key ? PyDict_GetItemWithError(Objects().op_definitions, key.get()) : nullptr;
  if (found == nullptr || !PyWeakref_Check(found)) return nullptr;
  PyObject* const definition = PyWeakref_GET_OBJECT(found);
  return definition == Py_None ? nullptr : definition;
}

uint64_t StampOfDefinition(const c10::OperatorName& name) {
  const ErrScope keep;
  PyObject* const definition = DefinitionOf(name);
  const Ref<> dict = definition != nullptr ? Ref<>::Steal(PyObject_GenericGetDict(definition, nullptr)) : Ref<>();
  PyErr_Clear();
  if (!dict || !PyDict_CheckExact(dict.get())) return 0;
  uint64_t stamp = DictVersion(dict.get());
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(dict.get(), &at, &key, &value);) {
    if (PyDict_CheckExact(value)) stamp = absl::HashOf(stamp, DictVersion(value));
    if (!PyAnySet_CheckExact(value)) continue;
    PyObject* item;  // kernels that are disabled: of types of devices
    Py_hash_t hash;
    for (Py_ssize_t place = 0; _PySet_NextEntry(value, &place, &item, &hash);) stamp = absl::HashOf(stamp, hash);
  }
  return stamp;
}

uint64_t StampOf(const c10::OperatorHandle& op, Kernels* kept) {
  return absl::HashOf(StampOfKernels(op, kept), StampOfDefinition(op.operator_name()));
}

}  // namespace

Registration::Registration(const c10::OperatorHandle& op) : name_(op.operator_name()), stamp_(StampOf(op, &kernels_)) {}

bool Registration::IsAsItWas() const {
  const std::optional<c10::OperatorHandle> op = c10::Dispatcher::singleton().findSchema(name_);
  return op && StampOf(*op, nullptr) == stamp_;
}

bool AreAsTheyWere(const std::vector<Registration>& registrations) {
  return std::all_of(registrations.begin(), registrations.end(),
                     [](const Registration& one) { return one.IsAsItWas(); });
}

}  // namespace frametap
