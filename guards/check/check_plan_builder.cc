#include "guards/check/check_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "guards/kinds/length.h"
#include "guards/kinds/no_hooks.h"
#include "ir/dcheck.h"

namespace frametap {

namespace {

class CheckPlanBuilder {
 public:
  CheckPlanBuilder(const FrozenGuards& guards, CheckPlan& tree) : guards_(guards), tree_(tree) {}

  void Plant() {
    tree_.node_of_source.assign(guards_.steps.size(), kNoNode);
    tree_.nodes.reserve(guards_.steps.size());
    for (const GuardEntry& p : guards_.predicates) Place(p);
    for (const SourceId id : guards_.wanted) NodeFor(id);
    Lay();
  }

 private:
  int32_t NodeFor(SourceId id);
  int32_t NewNode(int32_t parent, uint32_t stage, int32_t step);
  uint32_t ViewFor(int32_t owner, DictOf dict);
  int32_t ReadFrom(uint32_t view, const Key& key);
  void Expect(uint32_t view, const Key& key, bool present);
  void Place(const GuardEntry& predicate);
  void PlaceNoHooks(int32_t module);
  void WatchType(const TypeGuard* guard);
  void Lay();
  bool IsOrdered() const;

  const FrozenGuards& guards_;
  CheckPlan& tree_;
  absl::flat_hash_map<std::pair<int32_t, DictOf>, uint32_t> view_of_;
};

int32_t CheckPlanBuilder::NewNode(int32_t parent, uint32_t stage, int32_t step) {
  TreeNode node;
  node.parent = parent;
  node.stage = stage;
  node.step = step;
  tree_.nodes.push_back(std::move(node));
  return static_cast<int32_t>(tree_.nodes.size() - 1);
}

uint32_t CheckPlanBuilder::ViewFor(int32_t owner, DictOf dict) {
  const auto [it, is_new] = view_of_.try_emplace({owner, dict}, static_cast<uint32_t>(tree_.views.size()));
  if (is_new) {
    View view;
    view.owner = owner;
    view.dict = dict;
    tree_.views.push_back(std::move(view));
  }
  return it->second;
}

int32_t CheckPlanBuilder::ReadFrom(uint32_t view, const Key& key) {
  for (KeyRead& read : tree_.views[view].reads) {
    if (read.key.object.get() != key.object.get() || !read.present) continue;
    if (read.child == kNoNode)
      read.child = NewNode(tree_.views[view].owner, tree_.nodes[tree_.views[view].owner].stage, -1);
    return read.child;
  }
  const int32_t child = NewNode(tree_.views[view].owner, tree_.nodes[tree_.views[view].owner].stage, -1);
  tree_.views[view].reads.push_back({key, child, true});
  return child;
}

void CheckPlanBuilder::Expect(uint32_t view, const Key& key, bool present) {
  for (const KeyRead& read : tree_.views[view].reads) {
    if (read.key.object.get() == key.object.get() && read.present == present) return;
  }
  tree_.views[view].reads.push_back({key, kNoNode, present});
}

int32_t CheckPlanBuilder::NodeFor(SourceId id) {
  const uint32_t source = id.raw();
  if (tree_.node_of_source[source] != kNoNode) return tree_.node_of_source[source];
  const Step& step = guards_.steps[source];
  int32_t node;
  if (!step.parent.valid()) {
    node = NewNode(kNoNode, 0, static_cast<int32_t>(source));
  } else {
    const int32_t parent = NodeFor(step.parent);
    if (step.via == Step::Via::kDict) {
      node = ReadFrom(ViewFor(parent, step.dict), step.key);
    } else if (step.via == Step::Via::kModule) {
      const uint32_t own = ViewFor(parent, DictOf::kInstance);
      Expect(own, step.key, false);
      node = kNoNode;
      for (int home = 0; home <= step.home; ++home) {
        const int32_t dict = ReadFrom(own, ModuleDictKey(home));
        const uint32_t view = ViewFor(dict, DictOf::kSelf);
        tree_.views[view].as_module_dict = true;
        if (home == step.home) {
          node = ReadFrom(view, step.key);
        } else {
          Expect(view, step.key, false);
        }
      }
    } else {
      node = NewNode(parent, tree_.nodes[parent].stage + 1, static_cast<int32_t>(source));
    }
  }
  tree_.node_of_source[source] = node;
  return node;
}

void CheckPlanBuilder::Place(const GuardEntry& p) {
  const int32_t node = NodeFor(p.source);
  if (p.related != nullptr) {
    NumbersCheck check{p.related->relation.get(), {}};
    for (const SourceId number : p.related->numbers) check.nodes.push_back(NodeFor(number));
    tree_.checks.numbers.push_back(std::move(check));
    return;
  }
  if (p.guard == nullptr) {
    tree_.checks.pairs.push_back({node, NodeFor(p.other), p.same});
    return;
  }
  const Guard* guard = p.guard;
  if (guard->kind() == Guard::Kind::kKey) {
    const auto* key = static_cast<const KeyGuard*>(guard);
    Expect(ViewFor(node, key->dict()), key->key(), key->present());
    return;
  }
  if (guard->kind() == Guard::Kind::kKeys) {
    tree_.views[ViewFor(node, DictOf::kSelf)].keys.push_back(static_cast<const KeysGuard*>(guard));
    return;
  }
  if (guard->kind() == Guard::Kind::kNoHooks) return PlaceNoHooks(node);
  const bool is_type = guard->kind() == Guard::Kind::kType;
  if (is_type && !p.is_again) WatchType(static_cast<const TypeGuard*>(guard));
  // A step that is followed each time is bound each time: its predicates are evaluated early, before the tree goes
  // deeper.
  if (guard->scope() == Guard::Scope::kBinding || tree_.nodes[node].step >= 0) {
    // The look-ups on the type are TypesHold's.
    PyTypeObject* type = is_type ? static_cast<const TypeGuard*>(guard)->type() : nullptr;
    if (type != nullptr && (tree_.nodes[node].type == nullptr || tree_.nodes[node].type == type)) {
      tree_.nodes[node].type = type;
    } else {
      tree_.nodes[node].on_bind.push_back(guard);
    }
    return;
  }
  switch (guard->kind()) {
    case Guard::Kind::kType: {
      PyTypeObject* type = static_cast<const TypeGuard*>(guard)->type();
      const auto known = [&](const TypeCheck& c) { return c.node == node && c.type == type; };
      // The look-ups of one object come one after the other.
      if (tree_.checks.types.empty() || !known(tree_.checks.types.back())) tree_.checks.types.push_back({node, type});
      return;
    }
    case Guard::Kind::kLength: {
      const auto* length = static_cast<const LengthGuard*>(guard);
      if (!length->of_dict() || length->length() > INT32_MAX) break;
      tree_.nodes[node].is_dict = true;
      tree_.checks.lengths.push_back({node, static_cast<int32_t>(length->length())});
      return;
    }
    case Guard::Kind::kTensor: {
      const auto* tensor = static_cast<const TensorGuard*>(guard);
      tree_.tensors.push_back({node, tensor->basics(), tensor->reads_shape() ? tensor : nullptr});
      return;
    }
    default:
      break;
  }
  tree_.checks.contents.push_back({node, guard});
}

void CheckPlanBuilder::PlaceNoHooks(int32_t module) {
  const uint32_t own = ViewFor(module, DictOf::kInstance);
  for (const Key& name : NoHooksGuard::names().of_class) Expect(own, name, false);
  for (const Key& name : NoHooksGuard::names().hooks) {
    const int32_t hooks = ReadFrom(own, name);
    tree_.nodes[hooks].on_bind.push_back(&NoHooksGuard::OrderedDict());
    tree_.checks.lengths.push_back({hooks, 0});
  }
}

// Whether each node comes after the one that it is reached from, and is followed at the same stage or a later one.
bool CheckPlanBuilder::IsOrdered() const {
  for (size_t i = 0; i < tree_.nodes.size(); ++i) {
    const TreeNode& node = tree_.nodes[i];
    if (node.parent == kNoNode) continue;
    if (node.parent >= static_cast<int32_t>(i) || tree_.nodes[node.parent].stage > node.stage) return false;
  }
  return true;
}

void CheckPlanBuilder::WatchType(const TypeGuard* guard) {
  if (guard->is_immutable()) return;
  auto it =
      std::find_if(tree_.types.begin(), tree_.types.end(), [&](const TypeWatch& t) { return t.type == guard->type(); });
  if (it == tree_.types.end()) {
    tree_.types.push_back({guard->type(), guard->version(), {}});
    it = tree_.types.end() - 1;
  }
  // Guards made before and after a change of the type say different things: each is asked.
  if (guard->version() != it->version) it->version = 0;
  it->guards.push_back(guard);
}

void CheckPlanBuilder::Lay() {
  tree_.registers.resize(tree_.nodes.size());
  uint32_t stage_count = 1;
  for (const TreeNode& node : tree_.nodes) stage_count = std::max(stage_count, node.stage + 1);
  tree_.stages.resize(stage_count);
  for (size_t i = 0; i < tree_.nodes.size(); ++i) {
    if (tree_.nodes[i].step >= 0) tree_.stages[tree_.nodes[i].stage].followed.push_back(static_cast<int32_t>(i));
  }
  std::vector<uint32_t> order(tree_.views.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const View &x = tree_.views[a], &y = tree_.views[b];
    return std::make_tuple(tree_.nodes[x.owner].stage, x.owner, a) <
           std::make_tuple(tree_.nodes[y.owner].stage, y.owner, b);
  });
  static PyObject* nothing = nullptr;
  for (const uint32_t v : order) {
    const View& view = tree_.views[v];
    Stage& stage = tree_.stages[tree_.nodes[view.owner].stage];
    const uint32_t w = static_cast<uint32_t>(tree_.watches.size());
    if (stage.end_watch == 0) stage.first_watch = w;
    stage.end_watch = w + 1;
    const bool is_self = view.dict == DictOf::kSelf;
    tree_.watches.push_back({is_self ? &tree_.registers[view.owner].object : &nothing, nullptr, 0, v});
    if (!is_self) tree_.nodes[view.owner].watches.push_back(w);
  }
  FT_DCHECK(IsOrdered());
}

}  // namespace

CheckPlan::CheckPlan(const FrozenGuards& guards) : guards_(guards) { CheckPlanBuilder(guards, *this).Plant(); }

}  // namespace frametap
