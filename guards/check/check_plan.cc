#include "guards/check/check_plan.h"

#include <algorithm>

namespace frametap {

bool Checks::Hold(const Reached* registers) const {
  for (const TypeCheck& c : types) {
    if (Py_TYPE(registers[c.node].object) != c.type) return false;
  }
  for (const DictLengthCheck& c : lengths) {
    if (PyDict_GET_SIZE(registers[c.node].object) != c.length) return false;
  }
  for (const ContentCheck& c : contents) {
    if (!c.guard->Holds(registers[c.node])) return false;
  }
  for (const PairCheck& c : pairs) {
    if ((registers[c.a].object == registers[c.b].object) != c.same) return false;
  }
  for (const NumbersCheck& c : numbers) {
    const Reached* at[NumbersRelation::kMostInputs];
    for (size_t i = 0; i < c.nodes.size(); ++i) at[i] = &registers[c.nodes[i]];
    if (!c.relation->Holds(at)) return false;
  }
  return true;
}

bool AllHold(const std::vector<TensorCheck>& tensors, const std::vector<Reached>& registers) {
  for (const TensorCheck& c : tensors) {
    PyObject* tensor = registers[c.node].object;
    if (!c.basics.Hold(tensor) || (c.shape != nullptr && !c.shape->ShapeHolds(tensor))) return false;
  }
  return true;
}

bool CheckPlan::Holds(const Roots& roots) {
  for (const Stage& stage : stages) {
    for (const int32_t node : stage.followed) {
      if (!Follow(node, roots)) return false;
    }
    for (uint32_t w = stage.first_watch; w < stage.end_watch; ++w) {
      if (!watches[w].IsSame() && !ReadAgain(&watches[w])) return false;
    }
  }
  return AllHold(tensors, registers) && checks.Hold(registers.data());
}

bool CheckPlan::Follow(int32_t i, const Roots& roots) {
  const TreeNode& node = nodes[i];
  PyObject* parent = node.parent != kNoNode ? registers[node.parent].object : nullptr;
  return frametap::Follow(guards_.steps[node.step], parent, roots, &registers[i]) && Bind(i);
}

bool CheckPlan::IsReachedBy(Accessor accessor, int32_t node) const {
  return nodes[node].step >= 0 && guards_.steps[nodes[node].step].accessor == accessor;
}

bool CheckPlan::TypesHold() {
  for (TypeWatch& t : types) {
    if (TypeIsUnchanged(t.type, t.version)) [[likely]]
      continue;
    const ClassNote* asked = nullptr;  // most guards have the same note
    for (const TypeGuard* guard : t.guards) {
      if (asked != nullptr && guard->note() == asked) continue;
      if (!guard->LookupsHold()) return false;
      asked = guard->note();
    }
    t.version = TypeVersion(t.type);
  }
  return true;
}

// The register has been filled. Predicates that depend on the object alone are evaluated, and its dicts are found
// again. (An equal address does not prove an equal object where the old one was not held.)
bool CheckPlan::Bind(int32_t i) {
  const TreeNode& node = nodes[i];
  const Reached at = registers[i];
  if (node.type != nullptr && (at.object == nullptr || Py_TYPE(at.object) != node.type)) return false;
  if (node.is_dict && (at.object == nullptr || !PyDict_Check(at.object))) return false;
  for (const Guard* guard : node.on_bind) {
    if (!guard->Holds(at)) return false;
  }
  for (const uint32_t w : node.watches) {
    if (at.object == nullptr) return false;
    watches[w].slot = DictSlot(views[watches[w].view].dict, at.object);
  }
  return true;
}

bool CheckPlan::ReadAgain(Watch* watch) {
  ++dict_reads;
  const View& view = views[watch->view];
  PyObject* dict = *watch->slot;
  watch->dict = nullptr;
  if (dict == nullptr) {
    return view.keys.empty() &&
           std::none_of(view.reads.begin(), view.reads.end(), [](const KeyRead& r) { return r.present; });
  }
  if (!IsReadable(view.dict, dict)) return false;
  if (view.as_module_dict && !PyDict_CheckExact(dict) && !PyODict_CheckExact(dict)) return false;
  bool is_watched = true;
  for (const KeysGuard* keys : view.keys) {
    if (!keys->Holds(Reached::Object(dict))) return false;
    is_watched &= KeysGuard::OrderIsWatched(dict);
  }
  for (const KeyRead& read : view.reads) {
    PyObject* value = nullptr;
    if (DictGet(dict, read.key, &value) != (read.present ? Found::kYes : Found::kNo)) return false;
    if (read.child == kNoNode) continue;
    registers[read.child] = Reached::Object(value);
    if (!Bind(read.child)) return false;
  }
  if (!is_watched) return true;  // not remembered: read again next time
  watch->dict = dict;
  watch->version = DictVersion(dict);
  return true;
}

}  // namespace frametap
