#include "guards/objects/dict_write.h"

#include "guards/objects/dict_read.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/ref.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// Returns the hash of a key. The hash of a tensor is the hash of its id.
Py_hash_t HashWithoutCode(PyObject* key) {
  if (!IsExactTensor(key)) return PyObject_Hash(key);
  const Ref<> id = Ref<>::Steal(PyLong_FromVoidPtr(key));
  return id ? PyObject_Hash(id.get()) : -1;
}

}  // namespace

bool IsPlainMember(PyObject* object) {
  static PyObject* const name = InternedName("__hash__");
  static const PyObject* const hash = Py_XNewRef(_PyType_Lookup(Objects().enumeration, name));
  PyTypeObject* const type = Py_TYPE(object);
  return PyType_IsSubtype(type, Objects().enumeration) != 0 &&
         type->tp_richcompare == PyBaseObject_Type.tp_richcompare && _PyType_Lookup(type, name) == hash;
}

bool StoresByIdentity(PyObject* dict, PyObject* key) {
  PyObject* value = nullptr;
  return IsPlainMember(key) && DictGet(dict, Key::Of(key, dict), &value) == Found::kYes;
}

bool StoreByIdentity(PyObject* dict, PyObject* key, PyObject* value) {
  return _PyDict_SetItem_KnownHash(dict, key, value, Key::Of(key, dict).hash) == 0;
}

bool PutQuietly(PyObject* dict, PyObject* key, PyObject* value, PyObject* hash) {
  const Py_hash_t known = hash == Py_None ? HashWithoutCode(key) : PyLong_AsSsize_t(hash);
  return known != -1 && _PyDict_SetItem_KnownHash(dict, key, value, known) == 0;
}

}  // namespace frametap
