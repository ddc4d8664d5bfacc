// Methods of the builtin containers and of those of `collections`.
#include "frame_eval/callables/table.h"
#include "guards/tensor_door.h"

namespace frametap {
namespace {

// dict.get(key[, default]) and dict.__getitem__: one key is read.
void DictGet(Recorder& r, Call& call) {
  PyObject* dict = call.args.empty() ? nullptr : call.args[0];
  if (dict == nullptr || call.args.size() < 2 || !Recorder::IsScalar(call.args[1])) {
    for (size_t i = 0; i < call.args.size(); ++i) r.ForceDeep(call.args[i], call.shadows[i], true);
    return r.ReadIdentities(Reads::kKey, call);
  }
  r.Force(call.args[1], call.shadows[1]);
  for (size_t i = 2; i < call.args.size(); ++i) r.Force(call.args[i], call.shadows[i]);
  Known* known = r.Find(dict);
  if (known == nullptr || known->state != Known::State::kSource || known->adopted) return;
  r.Touch(dict);
  if (Shadow* written = r.WrittenShadow(dict, call.args[1])) {
    if (written->kind != Shadow::Kind::kNone) throw Break{Reason::unknown_operation, "dict.get"};
    return;
  }
  PyObject* value = PyDict_GetItemWithError(dict, call.args[1]);
  if (value == nullptr) {
    PyErr_Clear();
    r.guards().Absent(known->source, call.args[1], r.Here());
    return;
  }
  call.note.expect.kind = Expect::Kind::kSource;
  call.note.expect.source = r.guards().Child(known->source, Accessor::kKey, 0, call.args[1], value);
  call.note.expect.pinned = known->pinned;
}

}  // namespace

void LoadContainers() {
  AddRows("builtins", "list", Conduct::kMutates, {"append", "extend", "insert", "pop", "clear", "reverse"});
  AddRows("builtins", "list", Conduct::kMutates, {"remove"}, Reads::kSearch);
  AddRows("builtins", "list", Conduct::kPureObjects, {"copy"});
  for (const char* type : {"list", "tuple"}) {
    AddRows("builtins", type, Conduct::kPureObjects, {"count", "index"}, Reads::kSearch);
  }
  const std::pair<const char*, const char*> dicts[] = {{"builtins", "dict"}, {"collections", "OrderedDict"}};
  for (const auto& [module, type] : dicts) {
    AddRows(module, type, Conduct::kMutates, {"popitem", "clear"});
    AddRows(module, type, Conduct::kMutates, {"pop", "setdefault", "move_to_end"}, Reads::kKey);
    AddRows(module, type, Conduct::kMutates, {"update"}, Reads::kKeys);
    AddRows(module, type, Conduct::kPureObjects, {"copy", "items", "keys", "values"});
    AddRows(module, type, Conduct::kPureObjects, {"fromkeys", "__init__"}, Reads::kKeys);
  }
  AddRows("builtins", "dict", Conduct::kPureObjects, {"__iter__", "__len__"});
  AddRows("collections", "", Conduct::kPureObjects, {"OrderedDict", "defaultdict"}, Reads::kKeys);
  AddRows("collections", "", Conduct::kPureObjects, {"deque"});
  AddRows("builtins", "set", Conduct::kMutates, {"pop", "clear"});
  AddRows("builtins", "set", Conduct::kMutates, {"add", "discard", "remove"}, Reads::kKey);
  AddRows("builtins", "set", Conduct::kMutates, {"update"}, Reads::kKeys);
  for (const char* type : {"set", "frozenset"}) {
    AddRows("builtins", type, Conduct::kPureObjects, {"copy"});
    AddRows("builtins", type, Conduct::kPureObjects,
            {"union", "difference", "intersection", "symmetric_difference", "issubset", "issuperset", "isdisjoint"},
            Reads::kKeys);
  }
  for (const char* name : {"get", "__getitem__"}) {
    Ref<> method = Ref<>::Steal(PyObject_GetAttrString(reinterpret_cast<PyObject*>(&PyDict_Type), name));
    AddRow(method.get(), {name, Conduct::kSpecial, DictGet});
  }
}

}  // namespace frametap
