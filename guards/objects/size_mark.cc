#include "guards/objects/size_mark.h"

#include "absl/strings/str_cat.h"
#include "guards/objects/torch_tensor.h"
#include "guards/throw_if_null.h"

namespace frametap {

namespace {

// torch._dynamo.decorators writes them, and frametap/_marks.py.
PyObject* Attribute(PyObject* tensor, const char* name) {
  PyObject* const dict = InstanceDict(tensor);
  return dict != nullptr ? ItemNamed(dict, name) : nullptr;
}

// `def`: for None and for a value that is not an int.
int64_t IntOf(PyObject* object, int64_t def) {
  if (object == nullptr || !PyLong_Check(object)) return def;
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(object, &overflow);
  return overflow != 0 ? def : number;
}

bool Holds(PyObject* indices, int64_t dim, int64_t rank) {
  if (indices == nullptr || !PySet_Check(indices)) return false;
  for (const int64_t index : {dim, dim - rank}) {
    const Ref<> key = Must(PyLong_FromLongLong(index));
    if (Must(PySet_Contains(indices, key.get()))) return true;
  }
  return false;
}

}  // namespace

bool HasSizeMarks(PyObject* tensor) {
  return Attribute(tensor, "_dynamo_dynamic_indices") != nullptr ||
         Attribute(tensor, "_dynamo_static_indices") != nullptr;
}

std::optional<SizeMark> SizeMarkOf(PyObject* tensor, int64_t dim) {
  if (!HasSizeMarks(tensor)) return std::nullopt;
  const ErrScope keep;
  const int64_t rank = TensorOf(tensor).dim();
  SizeMark mark;
  if (!Holds(Attribute(tensor, "_dynamo_dynamic_indices"), dim, rank)) {
    mark.is_static = Holds(Attribute(tensor, "_dynamo_static_indices"), dim, rank);
    return mark.is_static ? std::optional(mark) : std::nullopt;
  }
  PyObject* const ranges = Attribute(tensor, "_dynamo_dynamic_range");
  const Ref<> iterator = Ref<>::Steal(ranges != nullptr ? PyObject_GetIter(ranges) : nullptr);
  while (iterator) {
    const Ref<> range = Ref<>::Steal(PyIter_Next(iterator.get()));
    if (!range) break;
    const Ref<> of = Ref<>::Steal(PyObject_GetAttrString(range.get(), "dim"));
    const Ref<> least = Ref<>::Steal(PyObject_GetAttrString(range.get(), "min"));
    const Ref<> most = Ref<>::Steal(PyObject_GetAttrString(range.get(), "max"));
    const int64_t index = of ? IntOf(of.get(), dim + rank + 1) : dim + rank + 1;
    if (!least || !most || (index != dim && index != dim - rank)) continue;
    mark.least = IntOf(least.get(), mark.least);
    mark.most = IntOf(most.get(), mark.most);
    mark.has_range = PyLong_Check(least.get()) || PyLong_Check(most.get());
  }
  PyErr_Clear();
  return mark;
}

std::string SizeMark::Text() const {
  if (!has_range) return "for any size";
  if (most == std::numeric_limits<int64_t>::max()) return absl::StrCat("from ", least);
  return absl::StrCat("from ", least, " to ", most);
}

}  // namespace frametap
