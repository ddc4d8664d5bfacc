#include "frame_eval/record/finish/describe_instances.h"

#include "frame_eval/record/finish/describe.h"
#include "frame_eval/record/finish/escapes.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/trace/array_nodes.h"
#include "frame_eval/segment/new_objects.h"
#include "guards/cpython/deque_view.h"
#include "guards/cpython/iterator_view.h"
#include "guards/kinds/keys.h"
#include "guards/objects/dict_items.h"
#include "guards/objects/held_object.h"
#include "guards/objects/namespaces.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "guards/objects/well_known_objects.h"
#include "guards/throw_if_null.h"

namespace frametap {
namespace {

// A class of Python code whose instances hold the content of `builtin`, a __dict__ and slots.
bool IsPythonClassOf(PyTypeObject* type, PyTypeObject* builtin) {
  for (; type != builtin; type = type->tp_base) {
    if (type == nullptr || !IsPythonClass(type)) return false;
  }
  return true;
}

// Whether it is a struct sequence with fields that are not among its items, as time.struct_time and os.stat_result have.
bool HasHiddenFields(PyTypeObject* type) {
  while (IsPythonClass(type)) type = type->tp_base;
  PyObject* const fields = ItemNamed(type->tp_dict, "n_fields");
  PyObject* const items = ItemNamed(type->tp_dict, "n_sequence_fields");
  return fields != nullptr && items != nullptr && !Must(PyObject_RichCompareBool(fields, items, Py_EQ));
}

}  // namespace

// The content of its __dict__.
void DescribeAttributes(Trace& trace, PyObject* object, Operand* operand) {
  PyObject** dict = _PyObject_GetDictPtr(object);
  if (dict == nullptr || *dict == nullptr) return;
  if (const ObjectRecord* handed_out = trace.objects.Find(*dict);
      handed_out != nullptr && trace.frames.ends_with_break && handed_out->mutated_epoch >= trace.frames.cut.epoch) {
    throw Break{Reason::changed_during_call, Py_TYPE(object)->tp_name};
  }
  for (const auto [name, value] : DictItems(*dict)) {
    const char* text = PyUnicode_CheckExact(name) ? PyUnicode_AsUTF8(name) : nullptr;
    PyErr_Clear();  // lone surrogates
    if (text == nullptr) throw Escapes(object);
    // An entry under the name of a field (DescribeFunctionFields) is not that field.
    if (PyFunction_Check(object) && _PyType_Lookup(&PyFunction_Type, name) != nullptr) throw Escapes(object);
    const Shadow* written = WrittenShadow(trace, object, name);
    operand->names.emplace_back(text);
    operand->items.push_back(Describe(trace, value, written != nullptr ? *written : Shadow()));
  }
}

// For a function that the trace has made: the parts that MAKE_FUNCTION alone does not set.
void DescribeFunctionFields(Trace& trace, PyObject* object, Operand* operand) {
  auto* function = reinterpret_cast<PyFunctionObject*>(object);
  auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  const auto differs = [](PyObject* field, PyObject* made) {
    if (field == nullptr) field = Py_None;
    if (made == nullptr) made = Py_None;
    return field != made && !(PyUnicode_CheckExact(field) && PyUnicode_CheckExact(made) && SameValue(field, made));
  };
  const auto add = [&](const char* name, PyObject* value) {
    const Ref<> key = Must(PyUnicode_InternFromString(name));
    const Shadow* written = WrittenShadow(trace, object, key.get());
    operand->names.emplace_back(name);
    operand->items.push_back(
        Describe(trace, value != nullptr ? value : Py_None, written != nullptr ? *written : Shadow()));
  };
  if (differs(function->func_name, code->co_name)) add("__name__", function->func_name);
  PyObject* const first = PyTuple_GET_SIZE(code->co_consts) > 0 ? PyTuple_GET_ITEM(code->co_consts, 0) : nullptr;
  const bool has_doc = first != nullptr && PyUnicode_Check(first);
  if (differs(function->func_doc, has_doc ? first : nullptr)) add("__doc__", function->func_doc);
  static PyObject* const module_name = InternedName("__name__");
  PyObject* const module = ItemQuietly(function->func_globals, module_name);
  if (differs(function->func_module, module)) add("__module__", function->func_module);
  PyObject* const annotations = function->func_annotations;
  if (annotations == nullptr || !PyTuple_CheckExact(annotations)) {
    if (annotations == nullptr || PyDict_GET_SIZE(annotations) == 0) return;
    if (trace.objects.Find(annotations) == nullptr) AdoptResult(trace, annotations);
    return add("__annotations__", annotations);
  }
  // As the instruction took them: names and values. The dict has not been read.
  Operand dict;
  dict.kind = Operand::Kind::kDict;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(annotations); ++i) {
    PyObject* const item = PyTuple_GET_ITEM(annotations, i);
    if (!IsTensor(item) && trace.objects.Find(item) == nullptr) AdoptResult(trace, item);
    dict.items.push_back(Describe(trace, item, ElementShadow(trace, annotations, i)));
  }
  operand->names.emplace_back("__annotations__");
  operand->items.push_back(std::move(dict));
}

// An instance of a Python class: its builtin base's content, its __dict__ and its slots.
Operand DescribeInstance(Trace& trace, PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  const ObjectRecord& known = *trace.objects.Find(object);
  Operand operand;
  operand.kind = Operand::Kind::kNew;
  operand.constant = AddConstant(trace, reinterpret_cast<PyObject*>(type));
  operand.text = TypeName(type);
  if (PyTuple_Check(object)) {
    if (HasHiddenFields(type)) throw Escapes(object);
    operand.index = static_cast<int64_t>(NewKind::kTuple);
    Operand content;
    content.kind = Operand::Kind::kTuple;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i) {
      Shadow shadow = static_cast<size_t>(i) < known.items.size() ? known.items[static_cast<size_t>(i)] : Shadow();
      content.items.push_back(Describe(trace, PyTuple_GET_ITEM(object, i), shadow));
    }
    operand.items.push_back(std::move(content));
    if (!IsPythonClass(type)) return operand;  // no __dict__, and members that only its own __new__ sets
  } else if (PyDict_Check(object) &&
             (IsPythonClassOf(type, &PyDict_Type) || IsPythonClassOf(type, Objects().ordered_dict) ||
              IsPythonClassOf(type, DefaultDict()))) {
    operand.index = static_cast<int64_t>(NewKind::kDict);
    Operand content = EmptyTable(trace, &PyDict_Type, object);
    if (PyODict_Check(object)) {
      if (content.kind != Operand::Kind::kDict)
        throw Escapes(object);  // its own order is kept by hashes that it asks for
      const Ref<> keys = KeysInOrder(object);
      if (PyTuple_GET_SIZE(keys.get()) != PyDict_GET_SIZE(object)) throw Escapes(object);
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys.get()); ++i) {
        PyObject* key = PyTuple_GET_ITEM(keys.get(), i);
        PyObject* const value = ItemQuietly(object, key);
        if (value == nullptr) throw Escapes(object);  // dict.__delitem__ of an OrderedDict
        content.items.push_back(Describe(trace, key, Shadow()));
        content.items.push_back(Describe(trace, value, Shadow()));
      }
    } else {
      for (const auto [key, value] : DictItems(object)) {
        content.items.push_back(Describe(trace, key, Shadow()));
        content.items.push_back(Describe(trace, value, Shadow()));
      }
    }
    operand.items.push_back(std::move(content));
    if (PyType_IsSubtype(type, DefaultDict())) {
      operand.items.push_back(ConstantOperand(trace, FactoryField()));
      operand.items.push_back(Describe(trace, FactoryOf(object).get(), Shadow()));
    }
  } else {
    operand.index = static_cast<int64_t>(NewKind::kObject);
    // Only classes without a C base: their instances are their attributes.
    if (!IsNamespace(object) && !IsPythonClassOf(type, &PyBaseObject_Type)) throw Escapes(object);
  }
  if (!HasPlainNames(type)) throw Escapes(object);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(type->tp_mro); ++i) {
    auto* base = reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(type->tp_mro, i));
    if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE) || base->tp_dict == nullptr) continue;
    for (const auto [name, descriptor] : DictItems(base->tp_dict)) {
      // Each slot once, by its own descriptor: a class may have it under a second name, and hide a slot of a base.
      if (Py_TYPE(descriptor) != &PyMemberDescr_Type || PyDescr_TYPE(descriptor) != base ||
          PyUnicode_Compare(PyDescr_NAME(descriptor), name) != 0) {
        continue;
      }
      const Ref<> value = Ref<>::Steal(Py_TYPE(descriptor)->tp_descr_get(descriptor, object, nullptr));
      if (!value) {
        PyErr_Clear();  // it is empty
        continue;
      }
      const Shadow* written = _PyType_Lookup(type, name) == descriptor ? WrittenShadow(trace, object, name) : nullptr;
      operand.items.push_back(ConstantOperand(trace, descriptor));
      operand.items.push_back(Describe(trace, value.get(), written != nullptr ? *written : Shadow()));
    }
  }
  DescribeAttributes(trace, object, &operand);
  return operand;
}

}  // namespace frametap
