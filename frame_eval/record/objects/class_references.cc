#include "frame_eval/record/objects/class_references.h"

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/objects/knowledge.h"
#include "guards/objects/dict_items.h"

namespace frametap {
namespace {

// The first reference of an object is the one without a callback, if there is one.
bool HasSharedReference(PyObject* object) {
  PyWeakReference* const first = *reinterpret_cast<PyWeakReference**>(PyObject_GET_WEAKREFS_LISTPTR(object));
  return first != nullptr && first->wr_callback == nullptr && PyWeakref_CheckRefExact(first);
}

}  // namespace

bool IsPlainClass(PyObject* object) {
  return PyType_Check(object) && Py_TYPE(object)->tp_hash == PyType_Type.tp_hash &&
         Py_TYPE(object)->tp_richcompare == PyType_Type.tp_richcompare;
}

bool IsReferenceToClass(PyObject* object) {
  return PyWeakref_CheckRef(object) && IsPlainClass(PyWeakref_GET_OBJECT(object));
}

PyObject* KeyForClass(PyObject* dict, PyObject* reference) {
  for (const auto [key, value] : DictItems(dict)) {
    if (IsReferenceToClass(key) && PyWeakref_GET_OBJECT(key) == PyWeakref_GET_OBJECT(reference)) return key;
  }
  return nullptr;
}

void ReferToClass(Trace& trace, Call& call) {
  PyObject* const type = call.args.empty() ? nullptr : call.args[0];
  if (type == nullptr || !call.names.empty() || !IsPlainClass(type)) throw Refusal(call.callable);
  // A callback stands for an entry in a table that is filled.
  if (call.args.size() != 1) throw Break{Reason::done_once, CallableName(call.callable)};
  if (!HasSharedReference(type)) throw Refusal(call.callable);
  GuardTypeOrIdentity(trace, type);
  call.note.op.expect.kind = ResultSpec::Kind::kPinned;
}

}  // namespace frametap
