#include "frame_eval/record/semantics/named_tuples.h"

#include "frame_eval/record/frames.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/semantics/attributes.h"
#include "frame_eval/record/semantics/descriptors.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// Layout of CPython's _tuplegetterobject, which _collectionsmodule.c keeps to itself.
struct TupleGetter {
  PyObject_HEAD Py_ssize_t index;
  PyObject* doc;
};

// Returns whether the class overrides nothing that _replace uses: _make, iteration, length.
bool IsPlainNamedTuple(PyTypeObject* type) {
  static PyObject* const make_name = InternedName("_make");
  PyObject* const make = _PyType_Lookup(type, make_name);
  if (make == nullptr || Py_TYPE(make) != &PyClassMethod_Type || type->tp_dictoffset != 0) return false;
  const Ref<> function = WrappedFunction(make);
  return PyFunction_Check(function.get()) && PyFunction_GET_CODE(function.get()) == Objects().tuple_make &&
         type->tp_iter == PyTuple_Type.tp_iter &&
         type->tp_as_sequence->sq_length == PyTuple_Type.tp_as_sequence->sq_length && HasGenericGet(type);
}

}  // namespace

void NamedTupleField(Trace& trace, FrameNote& note, PyObject* owner, PyObject* field) {
  const Py_ssize_t index = reinterpret_cast<TupleGetter*>(field)->index;
  if (!PyTuple_Check(owner) || index < 0 || index >= PyTuple_GET_SIZE(owner)) {
    throw Break{Reason::unknown_attribute, "a field of a named tuple"};
  }
  AdoptElements(trace, owner);
  note.op.expect.answer = PyTuple_GET_ITEM(owner, index);
  const Shadow shadow = ElementShadow(trace, owner, index);
  if (shadow.kind == Shadow::Kind::kNone) return;
  note.op.expect.SetShadow(shadow);
}

// p._replace(field=value): its code makes an iterator that takes the values out of a dict, which would fix them.
// Returns false if it may do more than that, and is interpreted.
bool InvokeReplace(Trace& trace, Call& call) {
  static PyObject* const fields_name = InternedName("field_names");
  PyObject* const function = call.callable;
  PyObject* const self = call.positional() == 1 ? call.args[0] : nullptr;
  PyObject* const cells = PyFunction_GET_CLOSURE(function);
  if (self == nullptr || !PyTuple_Check(self) || trace.objects.Find(self) == nullptr ||
      !IsPlainNamedTuple(Py_TYPE(self)) || cells == nullptr) {
    return false;
  }
  const Ref<> names = Must(PyCode_GetFreevars(reinterpret_cast<PyCodeObject*>(PyFunction_GET_CODE(function))));
  PyObject* fields = nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names.get()); ++i) {
    PyObject* const content = PyCell_GET(PyTuple_GET_ITEM(cells, i));
    if (content == nullptr) return false;
    if (PyUnicode_Compare(PyTuple_GET_ITEM(names.get(), i), fields_name) == 0) fields = content;
  }
  const Py_ssize_t size = PyTuple_GET_SIZE(self);
  if (fields == nullptr || !PyTuple_CheckExact(fields) || PyTuple_GET_SIZE(fields) != size) return false;
  std::vector<std::optional<size_t>> given(static_cast<size_t>(size));
  for (size_t k = 0; k < call.names.size(); ++k) {
    Py_ssize_t i = 0;
    while (i < size && PyUnicode_Compare(PyTuple_GET_ITEM(fields, i), call.names[k]) != 0) ++i;
    if (i == size) return false;
    given[static_cast<size_t>(i)] = k;
  }
  FixCode(trace, function);
  GuardTypeOrIdentity(trace, function);
  const SourceId source = SourceOrPin(trace, function);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(cells); ++i) {
    PyObject* const content = PyCell_GET(PyTuple_GET_ITEM(cells, i));
    trace.guards.Identity(trace.guards.Child(source, Accessor::kClosure, i, nullptr, content), trace.frames.Here());
  }
  GuardTypeOrIdentity(trace, self);
  AdoptElements(trace, self);
  call.note.op.expect.kind = ResultSpec::Kind::kItems;
  for (Py_ssize_t i = 0; i < size; ++i) {
    const std::optional<size_t> k = given[static_cast<size_t>(i)];
    call.note.op.expect.items.push_back(k ? call.shadows[call.positional() + *k] : ElementShadow(trace, self, i));
  }
  call.note.op.opaque_operation = true;
  return true;
}

}  // namespace frametap
