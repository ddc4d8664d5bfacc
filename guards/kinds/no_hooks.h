// NoHooks: `model(x)` comes down to the `forward` of model's class. One predicate holds all reads of an instance by
// nn.Module.__call__, in place of eleven. It has no `forward` and no call functions of its own, and its four dicts of
// hooks are empty.
//   H1  A dict of hooks is an OrderedDict, not a subclass. So its truth is its length, and it is not one of the plain
//       dicts that a program changes.
//   H2  A tree takes the parts apart (check_plan_builder.cc), so that they are watched like other reads of the instance's dict.
// Not here: the class and the hooks of all modules, which have predicates of their own.
#pragma once

#include <array>
#include <optional>

#include "guards/kinds/guard.h"

namespace frametap {

// A dict or OrderedDict without items, of whose truth no other code is asked. False of null.
bool IsEmptyDict(PyObject* object);

class NoHooksGuard : public Guard {
 public:
  struct Names {  // interned
    std::array<Key, 3> of_class;
    std::array<Key, 4> hooks;
  };

  NoHooksGuard() : Guard(Kind::kNoHooks) {}

  static const Names& names();
  // The dicts, beside names().hooks; borrowed. None if the guard does not hold for the module.
  static std::optional<std::array<PyObject*, 4>> HooksOf(PyObject* module);
  static const Guard& OrderedDict();  // H1, of the object at one of `hooks`

  Scope scope() const override { return Scope::kContent; }
  bool Holds(const Reached& at) const override;
  Predicate Want() const override { return {Predicate::Form::kNoHooks, {}}; }
  std::string Got(const Reached& at) const override;
  std::string Why(const Reached& at) const override;
};

}  // namespace frametap
