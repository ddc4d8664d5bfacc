// CheckPlan: the guards of a segment, laid out for checking. Sources become nodes, parents first, each with a
// register for the object that was reached last.
//   - A view is all that is read of one dict: `self.__dict__`, a dict of a module, a function's globals.
//   - Stages: a path that passes through something without a version (an item of a list, the content of a cell) is
//     followed each time. The views below it come in the next stage. So views are confirmed parents first.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "guards/collect/frozen_guards.h"
#include "guards/cpython/watch.h"
#include "guards/kinds/keys.h"
#include "guards/kinds/tensor.h"
#include "guards/kinds/type.h"

namespace frametap {

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
  uint8_t changes = 0;  // how often it has been another dict, or got other objects, while words stood for it
};

// The data of a view that a check reads. `slot` is the place of the pointer to the dict.
struct Watch {
  PyObject** slot;
  PyObject* dict;
  uint64_t version;
  uint32_t view;

  bool IsSame() const { return *slot == dict && dict != nullptr && DictVersion(dict) == version; }
};

struct TreeNode {
  int32_t parent = kNoNode;
  uint32_t stage = 0;
  int32_t step = -1;                  // index into FrozenGuards::steps (followed each time), or -1 (filled by a view)
  PyTypeObject* type = nullptr;       // what must be found whenever the register is filled
  bool is_dict = false;               // as is a dict, if its length is checked
  std::vector<const Guard*> on_bind;  // and what must hold
  std::vector<uint32_t> watches;      // whose dict pointer lives in the object
};

struct TypeCheck {
  int32_t node;
  PyTypeObject* type;
};

// Every module has four dicts of hooks: most lengths are lengths of dicts. The node makes sure that it is one.
struct DictLengthCheck {
  int32_t node;
  int32_t length;
};

struct TensorCheck {
  int32_t node;
  TensorGuard::Basics basics;
  const TensorGuard* shape;  // null if no size was read
};

bool AllHold(const std::vector<TensorCheck>& tensors, const std::vector<Reached>& registers);

struct ContentCheck {
  int32_t node;
  const Guard* guard;
};

struct PairCheck {
  int32_t a, b;
  bool same;
};

struct NumbersCheck {
  const NumbersRelation* relation;
  std::vector<int32_t> nodes;
};

// The comparisons that are left when the objects have been reached. Tensors' facts are compared beside
// (CheckPlan::tensors).
struct Checks {
  std::vector<TypeCheck> types;
  std::vector<DictLengthCheck> lengths;
  std::vector<ContentCheck> contents;
  std::vector<PairCheck> pairs;
  std::vector<NumbersCheck> numbers;

  bool Hold(const Reached* registers) const;
};

// All look-ups that were made in a type hold while its version is the one with which they were seen to hold last.
struct TypeWatch {
  PyTypeObject* type;
  uint32_t version;
  std::vector<const TypeGuard*> guards;
};

struct Stage {
  std::vector<int32_t> followed;
  uint32_t first_watch = 0, end_watch = 0;
};

// `guards` outlives it.
struct CheckPlan {
  explicit CheckPlan(const FrozenGuards& guards);

  std::vector<int32_t> node_of_source;
  std::vector<TreeNode> nodes;
  std::vector<Reached> registers;  // beside `nodes`
  std::vector<View> views;
  std::vector<Watch> watches;  // by stage, owners first
  std::vector<Stage> stages;

  std::vector<TypeWatch> types;
  Checks checks;
  std::vector<TensorCheck> tensors;

  uint64_t dict_reads = 0;

  bool Holds(const Roots& roots);  // all of it, except the types' look-ups
  bool TypesHold();
  // Follows a node that is followed each time. Returns false if it does not lead there, or if a predicate on the
  // object fails.
  bool Follow(int32_t node, const Roots& roots);
  bool ReadAgain(Watch* watch);
  bool IsPinned(int32_t node) const { return IsReachedBy(Accessor::kPinned, node); }
  bool IsItem(int32_t node) const { return IsReachedBy(Accessor::kItem, node); }

 private:
  bool Bind(int32_t node);
  bool IsReachedBy(Accessor accessor, int32_t node) const;  // and followed

  const FrozenGuards& guards_;
};

}  // namespace frametap
