#include "guards/kinds/accessor.h"

#include <c10/core/TensorImpl.h>
#include <structmember.h>

#include "absl/strings/str_cat.h"
#include "guards/cpython/deque_view.h"
#include "guards/cpython/iterator_view.h"
#include "guards/cpython/suspended_frame.h"
#include "guards/kinds/needs_python.h"
#include "guards/kinds/own_dict.h"
#include "guards/kinds/roots.h"
#include "guards/objects/held_object.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/value.h"
#include "guards/throw_if_null.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

namespace {

PyObject* g_no_dict = nullptr;
PyObject* g_unreadable = Py_None;  // where there must be a dict: no read of it succeeds

PyObject* Checked(PyObject* cell) { return cell != nullptr && PyCell_Check(cell) ? PyCell_GET(cell) : nullptr; }

// Before its first instructions ran, a frame has arguments in the slots of cells, and its free variables are in the
// function's closure.
PyObject* CellContent(const Roots& roots, int64_t slot) {
  if (!roots.cells_are_plain) return slot < roots.nlocalsplus ? Checked(roots.localsplus[slot]) : nullptr;
  if (roots.function == nullptr || !PyFunction_Check(roots.function)) return nullptr;
  auto* function = reinterpret_cast<PyFunctionObject*>(roots.function);
  auto* code = reinterpret_cast<PyCodeObject*>(function->func_code);
  const int64_t first_free = code->co_nlocalsplus - code->co_nfreevars;
  if (slot < first_free) return slot < roots.nlocalsplus ? roots.localsplus[slot] : nullptr;
  PyObject* closure = function->func_closure;
  const int64_t i = slot - first_free;
  return closure != nullptr && i < PyTuple_GET_SIZE(closure) ? Checked(PyTuple_GET_ITEM(closure, i)) : nullptr;
}

PyObject* Item(PyObject* sequence, int64_t index) {
  if (PyTuple_Check(sequence)) {
    const Py_ssize_t n = PyTuple_GET_SIZE(sequence);
    if (index < 0) index += n;
    return index >= 0 && index < n ? PyTuple_GET_ITEM(sequence, index) : nullptr;
  }
  if (PyList_Check(sequence)) {
    const Py_ssize_t n = PyList_GET_SIZE(sequence);
    if (index < 0) index += n;
    return index >= 0 && index < n ? PyList_GET_ITEM(sequence, index) : nullptr;
  }
  return IsDeque(sequence) ? DequeItem(sequence, index) : nullptr;
}

PyObject* KeyAt(PyObject* dict, int64_t index) {
  if (!PyDict_Check(dict) || index < 0 || index >= PyDict_GET_SIZE(dict)) return nullptr;
  PyObject *key = nullptr, *value;
  if (PyODict_Check(dict) && PyDict_GET_SIZE(dict) > 1) {
    // Its order is kept in a list of its own; the iterator is C code and the keys stay alive in the dict.
    Ref<> it = Must(PyODict_Type.tp_iter(dict));
    for (int64_t i = 0; it && i <= index; ++i) {
      key = PyIter_Next(it.get());
      Py_XDECREF(key);
    }
    return key;
  }
  Py_ssize_t at = 0;
  for (int64_t i = 0; i <= index; ++i) {
    if (!PyDict_Next(dict, &at, &key, &value)) return nullptr;
  }
  return key;
}

bool LengthOf(PyObject* o, int64_t* length) {
  if (PyTuple_Check(o) || PyList_Check(o)) {
    *length = Py_SIZE(o);
  } else if (PyDict_Check(o)) {
    *length = PyDict_GET_SIZE(o);
  } else if (PyAnySet_Check(o)) {
    *length = PySet_GET_SIZE(o);
  } else if (PyUnicode_Check(o)) {
    *length = PyUnicode_GET_LENGTH(o);
  } else if (PyBytes_Check(o)) {
    *length = PyBytes_GET_SIZE(o);
  } else if (IsTensor(o)) {
    const c10::TensorImpl& impl = *TensorOf(o).unsafeGetTensorImpl();
    if (impl.has_symbolic_sizes_strides() || impl.dim() == 0) return false;
    *length = impl.size(0);
  } else {
    return false;
  }
  return true;
}

bool SizeOrStride(const Step& step, PyObject* o, int64_t* number) {
  if (!IsTensor(o)) return false;
  const c10::TensorImpl& impl = *TensorOf(o).unsafeGetTensorImpl();
  if (impl.has_symbolic_sizes_strides()) return false;
  const int64_t rank = impl.dim();
  const int64_t i = step.index < 0 ? step.index + rank : step.index;
  if (i < 0 || i >= rank) return false;
  if (step.accessor == Accessor::kSize) {
    *number = impl.size(i);
    return true;
  }
  if (impl.layout() != c10::Layout::Strided) return false;
  *number = impl.stride(i);
  return true;
}

bool NumberAt(const Step& step, PyObject* parent, int64_t* number) {
  switch (step.accessor) {
    case Accessor::kLength:
      return LengthOf(parent, number);
    case Accessor::kCount:
      return UpcomingNumber(parent, step.index, number);
    case Accessor::kLeft:
      *number = ItemsLeft(parent);
      return *number >= 0;
    case Accessor::kAddress:
      *number = static_cast<int64_t>(reinterpret_cast<intptr_t>(parent));
      return true;
    default:
      return SizeOrStride(step, parent, number);
  }
}

PyObject* Grad(PyObject* o) {
  if (!IsTensor(o)) return nullptr;
  // Not Tensor::grad(), which warns for tensors that are no leaves.
  const at::Tensor& grad = TensorOf(o).unsafeGetTensorImpl()->grad();
  if (!grad.defined()) return Py_None;
  // A tensor keeps the Python object it was given once for as long as it lives, and this one lives in `o`.
  return Ref<>::Steal(WrapTensor(grad)).get();
}

bool ReadKey(PyObject* dict, DictOf which, const Key& key, PyObject** value) {
  return dict != nullptr && IsReadable(which, dict) && DictGet(dict, key, value) == Found::kYes;
}

bool SurelyAbsent(PyObject* dict, DictOf which, const Key& key) {
  PyObject* unused;
  return dict == nullptr || (IsReadable(which, dict) && DictGet(dict, key, &unused) == Found::kNo);
}

// torch.nn.Module.__getattr__: not in the instance dict, then three dicts in this order.
PyObject* ModuleAttr(const Step& step, PyObject* module) {
  PyObject* own = DictAt(DictOf::kInstance, module);
  if (own == nullptr || !SurelyAbsent(own, DictOf::kInstance, step.key)) return nullptr;
  for (int home = 0; home <= step.home; ++home) {
    PyObject *dict, *value;
    if (!ReadKey(own, DictOf::kInstance, ModuleDictKey(home), &dict)) return nullptr;
    if (!PyDict_CheckExact(dict) && !PyODict_CheckExact(dict)) return nullptr;
    if (home == step.home) return ReadKey(dict, DictOf::kSelf, step.key, &value) ? value : nullptr;
    if (!SurelyAbsent(dict, DictOf::kSelf, step.key)) return nullptr;
  }
  return nullptr;
}

// The roots in the frame that a root step is about; null if there is no such frame.
const Roots* FrameRoots(const Step& step, const Roots& entry) {
  const Roots* roots = &entry;
  for (int up = FrameOf(step.index); up > 0 && roots != nullptr; --up) roots = roots->caller;
  return roots;
}

// For L, C, S and F.
PyObject* FrameObjectAt(const Step& step, const Roots& entry) {
  const Roots* roots = FrameRoots(step, entry);
  if (roots == nullptr) return nullptr;
  const int slot = SlotOf(step.index);
  switch (step.accessor) {
    case Accessor::kLocal:
      return slot < roots->nlocalsplus ? roots->localsplus[slot] : nullptr;
    case Accessor::kCell:
      return CellContent(*roots, slot);
    case Accessor::kStack:
      return slot < roots->depth ? roots->stack[slot] : nullptr;
    default:
      return roots->function;
  }
}

PyObject* ObjectAt(const Step& step, PyObject* parent, const Roots& roots) {
  PyObject* found = nullptr;
  SuspendedFrame suspended;
  switch (step.accessor) {
    case Accessor::kLocal:
    case Accessor::kCell:
    case Accessor::kStack:
    case Accessor::kFunction:
      return FrameObjectAt(step, roots);
    case Accessor::kPinned:
      return step.key.object.get();
    case Accessor::kAttr:
    case Accessor::kKey:
    case Accessor::kGlobal:
    case Accessor::kKwDefault:
      if (step.via == Step::Via::kDict) {
        return ReadKey(DictAt(step.dict, parent), step.dict, step.key, &found) ? found : nullptr;
      }
      if (!step.slot_type || !PyType_IsSubtype(Py_TYPE(parent), step.slot_type.get())) return nullptr;
      return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(parent) + step.slot_offset);
    case Accessor::kModuleAttr:
      return ModuleAttr(step, parent);
    case Accessor::kItem:
      return Item(parent, step.index);
    case Accessor::kDict: {
      PyObject** const slot = step.index == kDictOrNone ? _PyObject_GetDictPtr(parent) : nullptr;
      return slot != nullptr && *slot == nullptr ? Py_None : DictAt(DictOf::kInstance, parent);
    }
    case Accessor::kClosure:
    case Accessor::kDefault: {
      if (!PyFunction_Check(parent)) return nullptr;
      auto* f = reinterpret_cast<PyFunctionObject*>(parent);
      PyObject* items = step.accessor == Accessor::kClosure ? f->func_closure : f->func_defaults;
      found = items != nullptr ? Item(items, step.index) : nullptr;
      return step.accessor == Accessor::kClosure ? Checked(found) : found;
    }
    case Accessor::kSelf:
      if (PyMethod_Check(parent)) return PyMethod_GET_SELF(parent);
      return PyCFunction_Check(parent) ? PyCFunction_GET_SELF(parent) : nullptr;
    case Accessor::kFunc:
      if (PyMethod_Check(parent)) return PyMethod_GET_FUNCTION(parent);
      return ReadSuspended(parent, &suspended) ? reinterpret_cast<PyObject*>(suspended.function) : nullptr;
    case Accessor::kFrame:
      if (!ReadSuspended(parent, &suspended) || step.index >= suspended.nlocalsplus + suspended.depth) return nullptr;
      return suspended.objects[step.index];
    case Accessor::kGrad:
      return Grad(parent);
    case Accessor::kDictKeyAt:
      return KeyAt(parent, step.index);
    case Accessor::kReferent:
      return PyWeakref_CheckRefExact(parent) ? PyWeakref_GET_OBJECT(parent) : nullptr;
    case Accessor::kContextValue: {
      PyObject* value = nullptr;
      if (!PyContextVar_CheckExact(parent)) return nullptr;
      if (PyContextVar_Get(parent, Py_NotImplemented, &value) < 0) {
        PyErr_Clear();
        return nullptr;
      }
      Py_XDECREF(value);  // the context keeps it
      return value;
    }
    case Accessor::kOver:
      found = HeldObject(parent);
      return found != nullptr ? found : IteratedOver(parent, step.index);
    case Accessor::kNext:
      return UpcomingItem(parent, step.index);
    case Accessor::kNextKey:
      return UpcomingKey(parent, step.index);
    case Accessor::kSize:
    case Accessor::kStride:
    case Accessor::kLength:
    case Accessor::kCount:
    case Accessor::kLeft:
    case Accessor::kAddress:
      return nullptr;
  }
  return nullptr;
}

std::string Name(PyObject* str) {
  std::string text = ShortRepr(str);
  return text.size() >= 2 && PyUnicode_CheckExact(str) ? text.substr(1, text.size() - 2) : text;
}

// In a path a string stands in double quotes, `L.d["mask"]`, where it can as it is.
std::string KeyText(PyObject* key) {
  std::string text = ShortRepr(key);
  const bool is_plain = PyUnicode_CheckExact(key) && text.front() == '\'' && text.back() == '\'' &&
                        text.find_first_of("\"\\") == std::string::npos;
  if (is_plain) text.front() = text.back() = '"';
  return text;
}

std::string NotFound(PyObject* dict, DictOf which, const Key& key, const char* what) {
  if (dict == nullptr) return absl::StrCat(what, " ", ShortRepr(key.object.get()), " is missing: there is no dict");
  PyObject* unused;
  const Found found = IsReadable(which, dict) ? DictGet(dict, key, &unused) : Found::kDoubt;
  return absl::StrCat(what, " ", ShortRepr(key.object.get()), found == Found::kNo ? " is missing" : kNeedsPython);
}

}  // namespace

PyObject** DictSlot(DictOf which, PyObject* object) {
  if (which == DictOf::kInstance) {
    PyObject** slot = _PyObject_GetDictPtr(object);  // gives an object with inline values its dict
    if (slot != nullptr) return slot;
    return (Py_TYPE(object)->tp_flags & Py_TPFLAGS_MANAGED_DICT) != 0 ? &g_unreadable : &g_no_dict;
  }
  if (!PyFunction_Check(object)) return &g_no_dict;
  auto* f = reinterpret_cast<PyFunctionObject*>(object);
  switch (which) {
    case DictOf::kGlobals:
      return &f->func_globals;
    case DictOf::kKwDefaults:
      return &f->func_kwdefaults;
    case DictOf::kSelf:
    case DictOf::kInstance:
      break;
  }
  return &g_no_dict;
}

PyObject* DictAt(DictOf which, PyObject* object) { return which == DictOf::kSelf ? object : *DictSlot(which, object); }

bool IsReadable(DictOf which, PyObject* dict) {
  return which == DictOf::kGlobals ? PyDict_CheckExact(dict) : PyDict_Check(dict);
}

const Key& ModuleDictKey(int home) {
  static const Key keys[] = {NameKey("_parameters"), NameKey("_buffers"), NameKey("_modules")};
  return keys[home];
}

PyObject* ModuleDictName(int home) { return ModuleDictKey(home).object.get(); }

Step MakeStep(SourceId parent_id, PyObject* parent, Accessor accessor, int64_t index, PyObject* key) {
  Step step;
  step.parent = parent_id;
  step.accessor = accessor;
  step.index = index;
  switch (accessor) {
    case Accessor::kKey:
      step.via = Step::Via::kDict;
      step.key = Key::Of(key, parent);
      return step;
    case Accessor::kGlobal:
      step.via = Step::Via::kDict;
      step.key = Key::Of(key, nullptr);
      step.dict = parent != nullptr && PyDict_Check(parent)     ? DictOf::kSelf
                  : parent != nullptr && PyModule_Check(parent) ? DictOf::kInstance
                                                                : DictOf::kGlobals;
      return step;
    case Accessor::kKwDefault:
      step.via = Step::Via::kDict;
      step.dict = DictOf::kKwDefaults;
      step.key = Key::Of(key, nullptr);
      return step;
    case Accessor::kAttr: {
      step.key = Key::Of(key, nullptr);
      step.via = Step::Via::kDict;
      step.dict = DictOf::kInstance;
      PyObject* own = parent != nullptr ? DictAt(DictOf::kInstance, parent) : nullptr;
      PyObject* found;
      if (parent == nullptr || (own != nullptr && DictGet(own, step.key, &found) == Found::kYes)) return step;
      PyObject* descriptor = PyUnicode_Check(key) ? _PyType_Lookup(Py_TYPE(parent), key) : nullptr;
      if (descriptor == nullptr || !Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) return step;
      auto* member = reinterpret_cast<PyMemberDescrObject*>(descriptor);
      if (member->d_member->type != T_OBJECT_EX && member->d_member->type != T_OBJECT) return step;
      step.via = Step::Via::kOther;
      step.slot_type = Ref<PyTypeObject>::New(member->d_common.d_type);
      step.slot_offset = member->d_member->offset;
      return step;
    }
    case Accessor::kModuleAttr:
      step.key = Key::Of(key, nullptr);
      step.via = Step::Via::kModule;
      step.home = static_cast<uint8_t>(index);
      step.index = 0;
      return step;
    default:
      return step;
  }
}

bool Follow(const Step& step, PyObject* parent, const Roots& roots, Reached* out) {
  if (parent == nullptr && !IsRoot(step.accessor)) return false;
  if (IsNumber(step.accessor)) {
    out->object = nullptr;
    return NumberAt(step, parent, &out->number);
  }
  out->object = ObjectAt(step, parent, roots);
  return out->object != nullptr;
}

std::string WhyNotFollowed(const Step& step, PyObject* parent, const Roots& roots) {
  switch (step.accessor) {
    case Accessor::kLocal:
    case Accessor::kCell:
      return absl::StrCat("variable '", step.text, "' is not bound");
    case Accessor::kKey:
      if (!PyDict_Check(parent)) return absl::StrCat("type: ", TypeName(Py_TYPE(parent)), " is not a dict");
      return NotFound(parent, step.dict, step.key, "key");
    case Accessor::kGlobal:
      return NotFound(DictAt(step.dict, parent), step.dict, step.key, "global");
    case Accessor::kKwDefault:
      return NotFound(DictAt(step.dict, parent), step.dict, step.key, "default of");
    case Accessor::kModuleAttr:
      if (!SurelyAbsent(DictAt(DictOf::kInstance, parent), DictOf::kInstance, step.key)) {
        return absl::StrCat("attribute '", Name(step.key.object.get()), "' of the instance hides the module's");
      }
      return absl::StrCat("attribute '", Name(step.key.object.get()), "' is not in ", Name(ModuleDictName(step.home)),
                          " or is hidden by another");
    case Accessor::kAttr:
      if (step.via == Step::Via::kDict) {
        return NotFound(DictAt(step.dict, parent), step.dict, step.key, "attribute");
      }
      return absl::StrCat("attribute '", Name(step.key.object.get()), "' is missing");
    case Accessor::kItem: {
      int64_t length = 0;
      if (!LengthOf(parent, &length)) return absl::StrCat("type: ", TypeName(Py_TYPE(parent)), " has no items");
      return absl::StrCat("index ", step.index, " is out of range, length is ", length);
    }
    case Accessor::kNext:
    case Accessor::kNextKey:
    case Accessor::kCount:
      return absl::StrCat("the iterator gives nothing after ", step.index, " items");
    default:
      return "cannot be reached any more";
  }
}

Source InWords(const Step& step) {
  Source source;
  source.parent = step.parent;
  source.accessor = step.accessor;
  source.index = step.index;
  source.text = step.text;
  if (source.text.empty() && step.key.object && step.accessor != Accessor::kPinned) {
    source.text = step.accessor == Accessor::kKey ? KeyText(step.key.object.get()) : Name(step.key.object.get());
  }
  return source;
}

void AddNewSteps(const Steps& steps, SourceTable* table) {
  for (size_t i = table->size(); i < steps.size(); ++i) table->AddApart(InWords(steps[i]));
}

SourceTable TableOf(const Steps& steps) {
  SourceTable table;
  AddNewSteps(steps, &table);
  return table;
}

std::string NameOf(const Steps& steps, SourceId id) {
  std::vector<uint32_t> path;
  for (SourceId at = id; at.valid(); at = steps[at.raw()].parent) path.push_back(at.raw());
  SourceTable table;
  SourceId parent;
  for (auto at = path.rbegin(); at != path.rend(); ++at) {
    const Step& step = steps[*at];
    SourceId named;
    for (size_t i = step.parent.valid() ? step.parent.raw() + 1 : 0; i <= *at; ++i) {
      const Step& sibling = steps[i];
      if (sibling.parent != step.parent || sibling.accessor != step.accessor || sibling.index != step.index) continue;
      Source source = InWords(sibling);
      source.parent = parent;
      named = table.AddApart(std::move(source));
    }
    parent = named;
  }
  return table.Name(parent);
}

}  // namespace frametap
