#include "frame_eval/record/callables/getters.h"

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/semantics/attributes.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/semantics/containers.h"
#include "frame_eval/record/semantics/foreign_operators.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

PyTypeObject* GetterType(const char* name) {
  const Ref<> module = Must(PyImport_ImportModule("_operator"));
  return reinterpret_cast<PyTypeObject*>(Must(PyObject_GetAttrString(module.get(), name)).Release());
}

PyTypeObject* ItemGetter() {
  static PyTypeObject* const type = GetterType("itemgetter");
  return type;
}

PyTypeObject* AttributeGetter() {
  static PyTypeObject* const type = GetterType("attrgetter");
  return type;
}

PyTypeObject* MethodCaller() {
  static PyTypeObject* const type = GetterType("methodcaller");
  return type;
}

// The arguments of the getter's constructor: positional ones, and keywords (null if there are none).
struct Parts {
  Ref<> args, keywords;
  Py_ssize_t size() const { return PyTuple_GET_SIZE(args.get()); }
  PyObject* operator[](Py_ssize_t i) const { return PyTuple_GET_ITEM(args.get(), i); }
};

// __reduce__ of these types is C code that calls nothing of the parts.
Parts PartsOf(PyObject* getter) {
  const Ref<> reduced = Must(PyObject_CallMethod(getter, "__reduce__", nullptr));
  PyObject* const maker = PyTuple_GET_ITEM(reduced.get(), 0);
  PyObject* const args = PyTuple_GET_ITEM(reduced.get(), 1);
  if (Py_TYPE(maker) != Objects().partial) return {Ref<>::New(args), Ref<>()};
  // methodcaller(name, …, key=value): a partial of the type with the name and the keywords.
  const Ref<> first = Must(PyObject_GetAttrString(maker, "args"));
  return {Must(PySequence_Concat(first.get(), args)), Must(PyObject_GetAttrString(maker, "keywords"))};
}

// G1
void FixGetter(Trace& trace, PyObject* getter) {
  if (trace.objects.Find(getter) == nullptr) AdoptPinned(trace, getter, Py_TYPE(getter)->tp_name);
  FixContent(trace, getter);
}

bool IsPlainIndex(PyObject* key) {
  if (!PySlice_Check(key)) return IsScalar(key);
  auto* const slice = reinterpret_cast<PySliceObject*>(key);
  return IsScalar(slice->start) && IsScalar(slice->stop) && IsScalar(slice->step);
}

bool IsPlainName(PyObject* name) {
  return PyUnicode_CheckExact(name) && PyUnicode_FindChar(name, '.', 0, PyUnicode_GET_LENGTH(name), 1) == -1;
}

bool IsBuiltinContainer(PyObject* object) {
  return PyTuple_CheckExact(object) || PyList_CheckExact(object) || PyDict_CheckExact(object) ||
         PyODict_CheckExact(object);
}

void ReadItem(Trace& trace, FrameNote& note, PyObject* object, Shadow shadow, PyObject* key) {
  if (PyType_Check(object) || IsForeign(trace, object)) {
    throw Break{Reason::unknown_operation, std::string("an item of ") + Py_TYPE(object)->tp_name};
  }
  RefuseForeignKey(key);
  Subscript(trace, note, object, key, Shadow(), shadow);
  note.op.is_index = false;  // the key's numbers are constants
}

// itemgetter(…)(object)
void GetItems(Trace& trace, Call& call, const Parts& parts) {
  PyObject* const object = call.args[0];
  for (Py_ssize_t i = 0; i < parts.size(); ++i) {
    if (!IsPlainIndex(parts[i])) throw Refusal(call.callable);
  }
  if (parts.size() == 1) return ReadItem(trace, call.note, object, call.shadows[0], parts[0]);
  if (!IsBuiltinContainer(object)) throw Refusal(call.callable);
  std::vector<Shadow> items;
  for (Py_ssize_t i = 0; i < parts.size(); ++i) {
    FrameNote read;
    ReadItem(trace, read, object, Shadow(), parts[i]);
    // The content of a container that the trace made is known. A missing key raises.
    items.push_back(read.op.expect.kind == ResultSpec::Kind::kAny ? Shadow()
                                                                  : ResultOf(trace, read).value_or(Shadow()));
  }
  call.note.op.expect.SetItems(std::move(items));
}

// Whether a read of the attribute runs code of a descriptor, or binds a method.
bool AsksDescriptor(PyObject* object, PyObject* name) {
  PyObject* const found = _PyType_Lookup(Py_TYPE(object), name);
  return found != nullptr && Py_TYPE(found)->tp_descr_get != nullptr && Py_TYPE(found) != &PyMemberDescr_Type;
}

// x.data, x.T: descriptors of C code, whose reads start no frames.
bool IsReadInC(PyObject* object, PyObject* name) {
  PyObject* const found = IsExactTensor(object) ? _PyType_Lookup(Py_TYPE(object), name) : nullptr;
  return found != nullptr && Py_TYPE(found) == &PyGetSetDescr_Type;
}

// The last read of a dotted name, as "c" of "a.b.c".
struct LastRead {
  Ref<> owner, name;
  Shadow shadow;           // of the owner
  bool is_opaque = false;  // a read before it starts frames that add nothing
};

// Reads all parts of a dotted name except the last, where this runs no code and the recorder has the object that each gives.
LastRead Walk(Trace& trace, const Call& call, PyObject* path) {
  if (!PyUnicode_CheckExact(path)) throw Refusal(call.callable);
  LastRead at{Ref<>::New(call.args[0]), Ref<>(), call.shadows[0]};
  const Ref<> dot = Must(PyUnicode_FromString("."));
  const Ref<> names = Must(PyUnicode_Split(path, dot.get(), -1));
  for (Py_ssize_t i = 0; i + 1 < PyList_GET_SIZE(names.get()); ++i) {
    const Ref<> name = Interned(PyList_GET_ITEM(names.get(), i));
    if (PyType_Check(at.owner.get()) || AsksDescriptor(at.owner.get(), name.get())) throw Refusal(call.callable);
    FrameNote read;
    LoadAttribute(trace, read, at.owner.get(), at.shadow, name.get());
    PyObject* const next = read.op.expect.kind == ResultSpec::Kind::kSource ? trace.guards.seen(read.op.expect.source)
                                                                            : read.op.expect.answer;
    const std::optional<Shadow> shadow = ResultOf(trace, read);
    if (next == nullptr || !shadow || read.op.expect.kind == ResultSpec::Kind::kShadow) throw Refusal(call.callable);
    at.owner = Ref<>::New(next);
    at.shadow = *shadow;
    at.is_opaque = at.is_opaque || read.op.opaque_operation;
  }
  at.name = Interned(PyList_GET_ITEM(names.get(), PyList_GET_SIZE(names.get()) - 1));
  return at;
}

// attrgetter(…)(object)
void GetAttributes(Trace& trace, Call& call, const Parts& parts) {
  if (parts.size() == 1) {
    const LastRead last = Walk(trace, call, parts[0]);
    PyObject* const owner = last.owner.get();
    const bool is_in_c = IsReadInC(owner, last.name.get());
    if (last.is_opaque && !is_in_c && AsksDescriptor(owner, last.name.get())) throw Refusal(call.callable);
    LoadAttribute(trace, call.note, owner, last.shadow, last.name.get());
    if (!last.is_opaque) return;
    if (!is_in_c && !ResultOf(trace, call.note)) throw Refusal(call.callable);  // code may run
    call.note.op.opaque_operation = true;
    return;
  }
  std::vector<Shadow> items;
  for (Py_ssize_t i = 0; i < parts.size(); ++i) {
    const LastRead last = Walk(trace, call, parts[i]);
    PyObject* const owner = last.owner.get();
    if (AsksDescriptor(owner, last.name.get())) throw Refusal(call.callable);
    FrameNote read;
    LoadAttribute(trace, read, owner, last.shadow, last.name.get());
    const std::optional<Shadow> shadow = ResultOf(trace, read);
    if (!shadow || read.op.opaque_operation || last.is_opaque) throw Refusal(call.callable);
    items.push_back(*shadow);
  }
  call.note.op.expect = ResultSpec();
  call.note.op.expect.SetItems(std::move(items));
}

// Returns the method of the object's class, in Python or C, that a call by this name calls, borrowed. Returns null if the
// call does something else.
PyObject* MethodOf(PyObject* object, PyObject* name) {
  RefuseOddNames(Py_TYPE(object));
  PyObject* const method = _PyType_Lookup(Py_TYPE(object), name);
  PyObject** const own = _PyObject_GetDictPtr(object);
  const bool is_hidden = own != nullptr && *own != nullptr && ItemQuietly(*own, name) != nullptr;
  const bool is_method =
      method != nullptr && (PyFunction_Check(method) || Py_TYPE(method) == &PyMethodDescr_Type) && !is_hidden;
  return is_method && !PyType_Check(object) && !PyModule_Check(object) ? method : nullptr;
}

// methodcaller(name, …)(object): the method of the class, called with the object.
void CallMethod(Trace& trace, Call& call, const Parts& parts) {
  PyObject* const object = call.args[0];
  const Ref<> name = Interned(parts[0]);
  PyObject* const method = MethodOf(object, name.get());
  if (method == nullptr) throw Refusal(call.callable);
  LoadAttribute(trace, call.note, object, call.shadows[0], name.get());
  call.note.op.expect.Reset();
  Call inner{call.f, call.note, method, {object}, {call.shadows[0]}, {}};
  for (Py_ssize_t i = 1; i < parts.size(); ++i) {
    inner.args.push_back(parts[i]);
    inner.shadows.emplace_back();
  }
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (parts.keywords && PyDict_Next(parts.keywords.get(), &at, &key, &value)) {
    inner.args.push_back(value);
    inner.shadows.emplace_back();
    inner.names.push_back(key);
  }
  for (size_t i = 1; i < inner.args.size(); ++i) {
    // The content of a getter from outside is known by the getter only.
    if (!IsScalar(inner.args[i]) && !IsTensor(inner.args[i]) && trace.objects.Find(inner.args[i]) == nullptr) {
      throw Refusal(call.callable);
    }
  }
  Invoke(trace, std::move(inner));
}

}  // namespace

std::optional<Shadow> ResultOf(Trace& trace, const FrameNote& read) {
  const auto is_known = [&](PyObject* value) {
    return value != nullptr && (IsScalar(value) || IsTensor(value) || trace.objects.Find(value) != nullptr);
  };
  switch (read.op.expect.kind) {
    case ResultSpec::Kind::kShadow:
      return read.op.expect.shadow;
    case ResultSpec::Kind::kSource: {
      PyObject* const seen = trace.guards.seen(read.op.expect.source);
      if (seen == nullptr) return std::nullopt;
      return FromSource(trace, read.op.expect.source, seen, read.op.expect.pinned);
    }
    case ResultSpec::Kind::kAny:
      return is_known(read.op.expect.answer) ? std::optional<Shadow>(Shadow()) : std::nullopt;
    default:
      return std::nullopt;
  }
}

bool IsGetter(PyObject* object) {
  const PyTypeObject* const type = Py_TYPE(object);
  return type == ItemGetter() || type == AttributeGetter() || type == MethodCaller();
}

void CallGetter(Trace& trace, Call& call) {
  const Parts parts = PartsOf(call.callable);
  if (call.args.size() != 1 || !call.names.empty() || parts.size() == 0) throw Refusal(call.callable);
  FixGetter(trace, call.callable);
  if (Py_TYPE(call.callable) == ItemGetter()) return GetItems(trace, call, parts);
  if (Py_TYPE(call.callable) == AttributeGetter()) return GetAttributes(trace, call, parts);
  CallMethod(trace, call, parts);
}

void GetItem(Trace& trace, Call& call) {
  const bool is_plain = call.args.size() == 2 && call.names.empty() && IsPlainIndex(call.args[1]) &&
                        (IsBuiltinContainer(call.args[0]) || IsExactTensor(call.args[0]));
  if (!is_plain) throw Refusal(call.callable);
  SpecializeDeep(trace, call.args[1], call.shadows[1], false);
  ReadItem(trace, call.note, call.args[0], call.shadows[0], call.args[1]);
}

bool ReadAttributeInC(Trace& trace, PyObject* object, PyObject* name) {
  FrameNote read;
  LoadAttribute(trace, read, object, Shadow(), name);
  trace.frames.ClearPending();  // C code takes what a property gives, so it is fixed
  if (read.op.opaque_operation) return false;
  if (const std::optional<Shadow> shadow = ResultOf(trace, read)) Specialize(trace, nullptr, *shadow);
  return true;
}

// C code calls the method of the object: Python code, or an op, with arguments that are plain values.
static bool ReadByMethodCaller(Trace& trace, const Parts& parts, PyObject* object) {
  const auto is_plain = [](PyObject* value) { return IsScalar(value); };
  for (Py_ssize_t i = 1; i < parts.size(); ++i) {
    if (!is_plain(parts[i])) return false;
  }
  Py_ssize_t at = 0;
  PyObject *key, *value;
  while (parts.keywords && PyDict_Next(parts.keywords.get(), &at, &key, &value)) {
    if (!is_plain(value)) return false;
  }
  const Ref<> name = Interned(parts[0]);
  PyObject* const method = MethodOf(object, name.get());
  if (method == nullptr) return false;
  if (IsExactTensor(object)) {
    const CallableRow* const row = PyFunction_Check(method) ? nullptr : FindCallable(method);
    if (row == nullptr || row->conduct != Conduct::kTorch) return false;
    ReadTensor(trace, object, true, true);
    return true;
  }
  if (!PyFunction_Check(method) || !IsOfPythonClass(object)) return false;
  FrameNote read;
  LoadAttribute(trace, read, object, Shadow(), name.get());
  trace.frames.ClearPending();
  return !read.op.opaque_operation;
}

bool ReadByGetter(Trace& trace, PyObject* getter, PyObject* object) {
  if (Py_TYPE(getter) == ItemGetter()) return true;  // who calls it has fixed all that is in its arguments
  const Parts parts = PartsOf(getter);
  if (Py_TYPE(getter) == MethodCaller()) return ReadByMethodCaller(trace, parts, object);
  if (Py_TYPE(getter) != AttributeGetter() || !IsOfPythonClass(object)) return false;
  for (Py_ssize_t i = 0; i < parts.size(); ++i) {
    if (!IsPlainName(parts[i]) || !ReadAttributeInC(trace, object, Interned(parts[i]).get())) return false;
  }
  return true;
}

}  // namespace frametap
