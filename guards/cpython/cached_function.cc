#include "guards/cpython/cached_function.h"

#include "guards/ref.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// The fields after `mark` are left out.
struct CachedLayout {
  CacheLink root;
  void* wrapper;
  int is_typed;
  PyObject* cache;
  Py_ssize_t hits;
  PyObject* function;
  Py_ssize_t maxsize, misses;
  PyObject* mark;
};

// L1
bool IsLayoutKnown() {
  static const bool is_known = [] {
    const Ref<> functools = Must(PyImport_ImportModule("functools"));
    const Ref<> function = Must(PyObject_GetAttrString(functools.get(), "cmp_to_key"));
    const Ref<> decorate = Must(PyObject_CallMethod(functools.get(), "lru_cache", "iO", 3, Py_True));
    const Ref<> made = Must(PyObject_CallOneArg(decorate.get(), function.get()));
    const Ref<> type = Must(PyObject_GetAttrString(functools.get(), "_lru_cache_wrapper"));
    if (reinterpret_cast<PyObject*>(Py_TYPE(made.get())) != type.get()) return false;
    const auto* const fields = reinterpret_cast<const CachedLayout*>(made.get());
    return fields->function == function.get() && fields->maxsize == 3 && fields->is_typed == 1 && fields->hits == 0 &&
           fields->misses == 0 && fields->cache != nullptr && PyDict_CheckExact(fields->cache) &&
           fields->mark != nullptr && Py_TYPE(fields->mark) == &PyBaseObject_Type;
  }();
  return is_known;
}

}  // namespace

CacheParts PartsOfCached(PyObject* cached) {
  if (!IsLayoutKnown()) return {};
  const auto* const fields = reinterpret_cast<const CachedLayout*>(cached);
  return {fields->cache, fields->function, fields->mark, fields->is_typed != 0};
}

}  // namespace frametap
