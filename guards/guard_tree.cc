// The frozen tree. Sources become nodes, parents first, each with a register for what was reached last.
//   - A view is all that is read of one dict: `self.__dict__`, a dict of a module, a function's globals. While the dict
//     is the one of last time and its version too, the registers filled from it are still right, and whatever follows
//     only from which objects they hold (P2) as well.
//   - Registers and remembered dicts are borrowed. A register is trusted only after the view or the step that fills it
//     has been confirmed in this very check, so what it points to is alive; a remembered dict is compared, not read
//     (W1). Hence nothing of the arguments is kept alive, and a model may die.
//   - It is planted by the first check: a segment that is never entered again needs no tree, and a first call no time for
//     one.
//   - Stages: a path that passes through something without a version (an item of a list, the content of a cell) is
//     followed each time; the views below it come in the next stage. So views are confirmed parents first.
#include "guards/guard_tree.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "guards/frozen_guards.h"
#include "guards/kinds/keys.h"
#include "guards/kinds/length.h"
#include "guards/kinds/tensor.h"
#include "guards/kinds/type.h"
#include "guards/watch.h"

namespace frametap {

namespace {

constexpr int32_t kNoNode = -1;

// One key of a view. `child`: the register it fills.
struct KeyRead {
  Key key;
  int32_t child = kNoNode;
  bool present = true;
};

struct View {
  int32_t owner;
  DictOf dict;
  bool as_module_dict = false;  // read by the code of nn.Module: a subclass could override what it calls
  std::vector<KeyRead> reads;
  std::vector<const KeysGuard*> keys;
};

// What a check touches of a view. `slot` is where the pointer to the dict lives.
struct Watch {
  PyObject** slot;
  PyObject* dict;
  uint64_t version;
  uint32_t view;
};

struct Node {
  int32_t parent = kNoNode;
  uint32_t stage = 0;
  int32_t step = -1;                  // index into FrozenGuards::steps: followed each time; -1: filled by a view
  PyTypeObject* type = nullptr;       // what must be found whenever the register is filled
  bool is_dict = false;               // as is a dict, if its length is checked
  std::vector<const Guard*> on_bind;  // and what must hold
  std::vector<uint32_t> watches;      // whose dict pointer lives in the object
};

struct TypeCheck {
  int32_t node;
  PyTypeObject* type;
};

// Every module has four dicts of hooks: most lengths are those of dicts. The node makes sure that it is one.
struct DictLengthCheck {
  int32_t node;
  int32_t length;
};

struct TensorCheck {
  int32_t node;
  TensorGuard::Basics basics;
  const TensorGuard* shape;  // null if no size was read
};

struct ContentCheck {
  int32_t node;
  const Guard* guard;
};

struct PairCheck {
  int32_t a, b;
  bool same;
};

// A type of which all attributes count has a version of its own; of others the look-ups that were made count.
struct TypeWatch {
  PyTypeObject* type;
  uint32_t version;
  bool strict = false;
  std::vector<const TypeGuard*> guards;
};

struct Stage {
  std::vector<int32_t> followed;
  uint32_t first_watch = 0, end_watch = 0;
};

struct Planted {
  std::vector<int32_t> node_of_source_;
  std::vector<Node> nodes_;
  std::vector<Reached> registers_;
  std::vector<View> views_;
  absl::flat_hash_map<std::pair<int32_t, DictOf>, uint32_t> view_of_;
  std::vector<Watch> watches_;  // by stage, owners first
  std::vector<Stage> stages_;

  std::vector<TypeWatch> types_;
  std::vector<TypeCheck> type_checks_;
  std::vector<DictLengthCheck> length_checks_;
  std::vector<TensorCheck> tensor_checks_;
  std::vector<ContentCheck> content_checks_;
  std::vector<PairCheck> pair_checks_;
};

class Tree final : public GuardTree, private Planted {
 public:
  explicit Tree(FrozenGuards guards) : frozen_(std::move(guards)) {}

  Verdict Check(const Roots& roots) override;
  PyObject* Object(SourceId id) const override { return At(id).object; }
  int64_t Number(SourceId id) const override { return At(id).number; }
  MissReport Explain(const Roots& roots) override;
  std::string Recheck(const Roots& roots, Verdict verdict) override;
  size_t predicate_count() const override { return frozen_.predicates.size(); }
  const FrozenGuards& frozen() const override { return frozen_; }
  std::vector<GuardLine> Lines(const std::vector<std::pair<SourceId, ValueId>>& inputs) const override {
    return LinesOf(frozen_, inputs);
  }
  SourceTable Sources() const override { return TableOf(frozen_.steps); }
  bool IsNumber(SourceId id) const override { return frametap::IsNumber(frozen_.steps[id.raw()].accessor); }
  uint64_t dict_reads() const override { return dict_reads_; }
  int Traverse(visitproc visit, void* arg) const override;

 private:
  // -- planting --
  void Plant();
  int32_t NodeFor(SourceId id);
  int32_t NewNode(int32_t parent, uint32_t stage, int32_t step);
  uint32_t ViewFor(int32_t owner, DictOf dict);
  int32_t ReadFrom(uint32_t view, const Key& key);
  void Expect(uint32_t view, const Key& key, bool present);
  void Place(const Predicate& predicate);
  void WatchType(const TypeGuard* guard);
  void Lay();

  // -- checking --
  Reached At(SourceId id) const {
    const int32_t node = node_of_source_[id.raw()];
    return node != kNoNode ? registers_[node] : Reached();
  }
  bool Run(const Roots& roots);
  bool TypesHold();
  bool Bind(int32_t node);
  bool ReadAgain(Watch* watch);

  FrozenGuards frozen_;
  bool is_planted_ = false;
  uint64_t dict_reads_ = 0;
};

// -- planting ---------------------------------------------------------------------------------------------------------

void Tree::Plant() {
  static_cast<Planted&>(*this) = Planted();  // it may have been begun when there was no memory
  node_of_source_.assign(frozen_.steps.size(), kNoNode);
  nodes_.reserve(frozen_.steps.size());
  for (const Predicate& p : frozen_.predicates) Place(p);
  for (const SourceId id : frozen_.wanted) NodeFor(id);
  Lay();
  is_planted_ = true;
}

int32_t Tree::NewNode(int32_t parent, uint32_t stage, int32_t step) {
  Node node;
  node.parent = parent;
  node.stage = stage;
  node.step = step;
  nodes_.push_back(std::move(node));
  return static_cast<int32_t>(nodes_.size() - 1);
}

uint32_t Tree::ViewFor(int32_t owner, DictOf dict) {
  const auto [it, is_new] = view_of_.try_emplace({owner, dict}, static_cast<uint32_t>(views_.size()));
  if (is_new) {
    View view;
    view.owner = owner;
    view.dict = dict;
    views_.push_back(std::move(view));
  }
  return it->second;
}

int32_t Tree::ReadFrom(uint32_t view, const Key& key) {
  for (KeyRead& read : views_[view].reads) {
    if (read.key.object.get() != key.object.get() || !read.present) continue;
    if (read.child == kNoNode) read.child = NewNode(views_[view].owner, nodes_[views_[view].owner].stage, -1);
    return read.child;
  }
  const int32_t child = NewNode(views_[view].owner, nodes_[views_[view].owner].stage, -1);
  views_[view].reads.push_back({key, child, true});
  return child;
}

void Tree::Expect(uint32_t view, const Key& key, bool present) {
  for (const KeyRead& read : views_[view].reads) {
    if (read.key.object.get() == key.object.get() && read.present == present) return;
  }
  views_[view].reads.push_back({key, kNoNode, present});
}

int32_t Tree::NodeFor(SourceId id) {
  const uint32_t source = id.raw();
  if (node_of_source_[source] != kNoNode) return node_of_source_[source];
  const Step& step = frozen_.steps[source];
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
        const int32_t dict = ReadFrom(own, Key::Of(ModuleDictName(home), nullptr));
        const uint32_t view = ViewFor(dict, DictOf::kSelf);
        views_[view].as_module_dict = true;
        if (home == step.home) {
          node = ReadFrom(view, step.key);
        } else {
          Expect(view, step.key, false);
        }
      }
    } else if (step.accessor == Accessor::kBuiltin) {
      Expect(ViewFor(parent, DictOf::kGlobals), step.key, false);
      node = ReadFrom(ViewFor(parent, DictOf::kBuiltins), step.key);
    } else {
      node = NewNode(parent, nodes_[parent].stage + 1, static_cast<int32_t>(source));
    }
  }
  node_of_source_[source] = node;
  return node;
}

void Tree::Place(const Predicate& p) {
  const int32_t node = NodeFor(p.source);
  if (p.guard == nullptr) {
    pair_checks_.push_back({node, NodeFor(p.other), p.same});
    return;
  }
  const Guard* guard = p.guard.get();
  if (guard->kind() == Guard::Kind::kKey) {
    const auto* key = static_cast<const KeyGuard*>(guard);
    Expect(ViewFor(node, key->dict()), key->key(), key->present());
    return;
  }
  if (guard->kind() == Guard::Kind::kKeys) {
    views_[ViewFor(node, DictOf::kSelf)].keys.push_back(static_cast<const KeysGuard*>(guard));
    return;
  }
  const bool is_type = guard->kind() == Guard::Kind::kType || guard->kind() == Guard::Kind::kTypeAttr;
  if (is_type) WatchType(static_cast<const TypeGuard*>(guard));
  // What is followed each time is bound each time: its predicates are looked at early, before the tree goes deeper.
  if (guard->scope() == Guard::Scope::kBinding || nodes_[node].step >= 0) {
    // The look-ups on the type are TypesHold's.
    PyTypeObject* type = is_type ? static_cast<const TypeGuard*>(guard)->type() : nullptr;
    if (type != nullptr && (nodes_[node].type == nullptr || nodes_[node].type == type)) {
      nodes_[node].type = type;
    } else {
      nodes_[node].on_bind.push_back(guard);
    }
    return;
  }
  switch (guard->kind()) {
    case Guard::Kind::kType:
    case Guard::Kind::kTypeAttr: {
      PyTypeObject* type = static_cast<const TypeGuard*>(guard)->type();
      const auto known = [&](const TypeCheck& c) { return c.node == node && c.type == type; };
      // The look-ups of one object come one after the other.
      if (type_checks_.empty() || !known(type_checks_.back())) type_checks_.push_back({node, type});
      return;
    }
    case Guard::Kind::kLength: {
      const auto* length = static_cast<const LengthGuard*>(guard);
      if (!length->of_dict() || length->length() > INT32_MAX) break;
      nodes_[node].is_dict = true;
      length_checks_.push_back({node, static_cast<int32_t>(length->length())});
      return;
    }
    case Guard::Kind::kTensor: {
      const auto* tensor = static_cast<const TensorGuard*>(guard);
      tensor_checks_.push_back({node, tensor->basics(), tensor->reads_shape() ? tensor : nullptr});
      return;
    }
    default:
      break;
  }
  content_checks_.push_back({node, guard});
}

void Tree::WatchType(const TypeGuard* guard) {
  if (guard->is_immutable()) return;
  auto it = std::find_if(types_.begin(), types_.end(), [&](const TypeWatch& t) { return t.type == guard->type(); });
  if (it == types_.end()) {
    types_.push_back({guard->type(), guard->version(), false, {}});
    it = types_.end() - 1;
  }
  // Guards made before and after a change of the type say different things: none may be taken for the other.
  if (guard->version() != it->version) it->version = 0;
  it->strict |= guard->kind() == Guard::Kind::kType;
  it->guards.push_back(guard);
}

void Tree::Lay() {
  registers_.resize(nodes_.size());
  uint32_t stage_count = 1;
  for (const Node& node : nodes_) stage_count = std::max(stage_count, node.stage + 1);
  stages_.resize(stage_count);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].step >= 0) stages_[nodes_[i].stage].followed.push_back(static_cast<int32_t>(i));
  }
  std::vector<uint32_t> order(views_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const View &x = views_[a], &y = views_[b];
    return std::make_tuple(nodes_[x.owner].stage, x.owner, a) < std::make_tuple(nodes_[y.owner].stage, y.owner, b);
  });
  static PyObject* nothing = nullptr;
  for (const uint32_t v : order) {
    const View& view = views_[v];
    Stage& stage = stages_[nodes_[view.owner].stage];
    const uint32_t w = static_cast<uint32_t>(watches_.size());
    if (stage.end_watch == 0) stage.first_watch = w;
    stage.end_watch = w + 1;
    const bool is_self = view.dict == DictOf::kSelf;
    watches_.push_back({is_self ? &registers_[view.owner].object : &nothing, nullptr, 0, v});
    if (!is_self) nodes_[view.owner].watches.push_back(w);
  }
}

// -- checking ---------------------------------------------------------------------------------------------------------

Verdict Tree::Check(const Roots& roots) {
  const auto run = [&] {
    try {
      if (!is_planted_) [[unlikely]]
        Plant();
      return Run(roots) ? Verdict::kHit : Verdict::kMiss;
    } catch (...) {
      return Verdict::kError;  // an unusual tensor's sizes, say
    }
  };
  if (PyErr_Occurred() != nullptr) {
    ErrScope keep;
    return run();
  }
  const Verdict verdict = run();
  if (PyErr_Occurred() != nullptr) PyErr_Clear();
  return verdict;
}

bool Tree::Run(const Roots& roots) {
  if (!(WorldState::Now() == frozen_.world) || !TypesHold()) return false;
  Watch* const watches = watches_.data();
  for (const Stage& stage : stages_) {
    for (const int32_t i : stage.followed) {
      const Node& node = nodes_[i];
      PyObject* parent = node.parent != kNoNode ? registers_[node.parent].object : nullptr;
      if (!Follow(frozen_.steps[node.step], parent, roots, &registers_[i]) || !Bind(i)) return false;
    }
    for (Watch *w = watches + stage.first_watch, *end = watches + stage.end_watch; w != end; ++w) {
      PyObject* dict = *w->slot;
      if (dict == w->dict && dict != nullptr && DictVersion(dict) == w->version) [[likely]]
        continue;
      if (!ReadAgain(w)) return false;
    }
  }
  const Reached* const registers = registers_.data();
  for (const TypeCheck& c : type_checks_) {
    if (Py_TYPE(registers[c.node].object) != c.type) return false;
  }
  for (const DictLengthCheck& c : length_checks_) {
    if (PyDict_GET_SIZE(registers[c.node].object) != c.length) return false;
  }
  for (const TensorCheck& c : tensor_checks_) {
    PyObject* tensor = registers[c.node].object;
    if (!c.basics.Hold(tensor) || (c.shape != nullptr && !c.shape->ShapeHolds(tensor))) return false;
  }
  for (const ContentCheck& c : content_checks_) {
    if (!c.guard->Holds(registers[c.node])) return false;
  }
  for (const PairCheck& c : pair_checks_) {
    if ((registers[c.a].object == registers[c.b].object) != c.same) return false;
  }
  return true;
}

bool Tree::TypesHold() {
  for (TypeWatch& t : types_) {
    if (TypeIsUnchanged(t.type, t.version)) [[likely]]
      continue;
    if (t.strict) return false;
    for (const TypeGuard* guard : t.guards) {
      if (!guard->LookupsHold()) return false;
    }
    t.version = TypeVersion(t.type);
  }
  return true;
}

// The register has been filled: what depends on the object alone is looked at, and its dicts are found anew. (An equal
// address is no proof of an equal object where the old one was not held.)
bool Tree::Bind(int32_t i) {
  const Node& node = nodes_[i];
  const Reached at = registers_[i];
  if (node.type != nullptr && (at.object == nullptr || Py_TYPE(at.object) != node.type)) return false;
  if (node.is_dict && (at.object == nullptr || !PyDict_Check(at.object))) return false;
  for (const Guard* guard : node.on_bind) {
    if (!guard->Holds(at)) return false;
  }
  for (const uint32_t w : node.watches) {
    if (at.object == nullptr) return false;
    watches_[w].slot = DictSlot(views_[watches_[w].view].dict, at.object);
  }
  return true;
}

bool Tree::ReadAgain(Watch* watch) {
  ++dict_reads_;
  const View& view = views_[watch->view];
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
    registers_[read.child] = Reached::Object(value);
    if (!Bind(read.child)) return false;
  }
  if (!is_watched) return true;  // not remembered: read again next time
  watch->dict = dict;
  watch->version = DictVersion(dict);
  return true;
}

MissReport Tree::Explain(const Roots& roots) {
  ErrScope keep;
  try {
    return ExplainMiss(frozen_, roots);
  } catch (const std::exception& e) {
    MissReport report;
    report.source = "?";
    report.why = e.what();
    return report;
  }
}

std::string Tree::Recheck(const Roots& roots, Verdict verdict) {
  ErrScope keep;
  try {
    const MissReport miss = ExplainMiss(frozen_, roots);
    const bool hit = miss.source.empty();
    if (hit && verdict == Verdict::kMiss) return "a miss without a reason";
    if (!hit && verdict == Verdict::kHit) return "a hit, but " + miss.source + ": " + miss.why;
    if (verdict != Verdict::kHit) return "";
    const auto same = [](const Reached& a, const Reached& b) { return a.object == b.object && a.number == b.number; };
    for (const SourceId id : frozen_.wanted) {
      if (!same(ReachAnew(frozen_, roots, id), At(id)))
        return TableOf(frozen_.steps).Name(id) + " is not what is there";
    }
    return "";
  } catch (const std::exception& e) {
    return verdict == Verdict::kHit ? e.what() : "";
  }
}

int Tree::Traverse(visitproc visit, void* arg) const {
  for (const Step& step : frozen_.steps) {
    Py_VISIT(step.key.object.get());
    Py_VISIT(reinterpret_cast<PyObject*>(step.slot_type.get()));
  }
  for (const View& view : views_) {
    for (const KeyRead& read : view.reads) Py_VISIT(read.key.object.get());
  }
  for (const Predicate& p : frozen_.predicates) {
    if (p.guard == nullptr) continue;
    if (const int stop = p.guard->Traverse(visit, arg); stop != 0) return stop;
  }
  return 0;
}

}  // namespace

std::unique_ptr<GuardTree> PlantTree(FrozenGuards guards) { return std::make_unique<Tree>(std::move(guards)); }

}  // namespace frametap
