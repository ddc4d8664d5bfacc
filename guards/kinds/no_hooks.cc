#include "guards/kinds/no_hooks.h"

#include "absl/strings/str_cat.h"
#include "guards/cpython/watch.h"
#include "guards/kinds/needs_python.h"
#include "guards/objects/value.h"

namespace frametap {
namespace {

class OrderedDictGuard : public Guard {
 public:
  OrderedDictGuard() : Guard(Kind::kType) {}
  Scope scope() const override { return Scope::kBinding; }
  bool Holds(const Reached& at) const override { return at.object != nullptr && PyODict_CheckExact(at.object); }
  Predicate Want() const override { return {Predicate::Form::kFixedType, "OrderedDict"}; }
  std::string Why(const Reached&) const override { return "it is not an OrderedDict"; }
};

// The first part that does not hold.
struct Unusual {
  PyObject* name = nullptr;  // null: all hold
  Found found = Found::kNo;
  PyObject* own = nullptr;  // kYes: what the instance has there
  bool is_hooks = false;
};

Unusual FirstUnusual(PyObject* object, std::array<PyObject*, 4>* hooks = nullptr) {
  PyObject* dict = object != nullptr ? DictAt(DictOf::kInstance, object) : nullptr;
  const bool is_readable = dict != nullptr && IsReadable(DictOf::kInstance, dict);
  const bool is_plain = is_readable && HasOnlyExactStrKeys(dict);
  const auto look_up = [&](const Key& name, bool is_hooks) {
    Unusual at{name.object.get(), Found::kDoubt, nullptr, is_hooks};
    if (is_plain) {
      at.own = StrDictGet(dict, name);
      at.found = at.own != nullptr ? Found::kYes : Found::kNo;
    } else if (is_readable) {
      at.found = DictGet(dict, name, &at.own);
    }
    if (at.own != nullptr) __builtin_prefetch(at.own);  // a module that is called for the first time is in no cache
    return at;
  };
  const NoHooksGuard::Names& names = NoHooksGuard::names();
  std::array<Unusual, std::tuple_size_v<decltype(NoHooksGuard::Names::hooks)>> own;
  for (size_t i = 0; i < own.size(); ++i) own[i] = look_up(names.hooks[i], true);
  for (const Key& name : names.of_class) {
    if (const Unusual at = look_up(name, false); at.found != Found::kNo) return at;
  }
  for (size_t i = 0; i < own.size(); ++i) {
    const Unusual& at = own[i];
    if (at.found != Found::kYes || !PyODict_CheckExact(at.own) || PyDict_GET_SIZE(at.own) != 0) return at;
    if (hooks != nullptr) (*hooks)[i] = at.own;
  }
  return Unusual();
}

}  // namespace

bool IsEmptyDict(PyObject* object) {
  return object != nullptr && (PyDict_CheckExact(object) || PyODict_CheckExact(object)) && PyDict_GET_SIZE(object) == 0;
}

const NoHooksGuard::Names& NoHooksGuard::names() {
  static const Names names = {{NameKey("_compiled_call_impl"), NameKey("_call_impl"), NameKey("forward")},
                              {NameKey("_backward_hooks"), NameKey("_backward_pre_hooks"), NameKey("_forward_hooks"),
                               NameKey("_forward_pre_hooks")}};
  return names;
}

const Guard& NoHooksGuard::OrderedDict() {
  static const OrderedDictGuard guard;
  return guard;
}

std::optional<std::array<PyObject*, 4>> NoHooksGuard::HooksOf(PyObject* module) {
  std::array<PyObject*, 4> hooks;
  if (FirstUnusual(module, &hooks).name != nullptr) return std::nullopt;
  return hooks;
}

bool NoHooksGuard::Holds(const Reached& at) const { return FirstUnusual(at.object).name == nullptr; }

std::string NoHooksGuard::Got(const Reached& at) const {
  const Unusual unusual = FirstUnusual(at.object);
  if (unusual.name == nullptr || unusual.found == Found::kDoubt) return Guard::Got(at);
  const std::string name = ShortRepr(unusual.name);
  if (unusual.found == Found::kNo) return absl::StrCat("absent ", name);
  if (unusual.is_hooks && !PyODict_CheckExact(unusual.own))
    return absl::StrCat(name, ": ", TypeName(Py_TYPE(unusual.own)));
  if (!unusual.is_hooks) return absl::StrCat("has ", name);
  return absl::StrCat(name, " of len ", PyDict_GET_SIZE(unusual.own));
}

std::string NoHooksGuard::Why(const Reached& at) const {
  const Unusual unusual = FirstUnusual(at.object);
  const std::string name = unusual.name != nullptr ? ShortRepr(unusual.name) : "";
  switch (unusual.found) {
    case Found::kDoubt:
      return absl::StrCat("attribute ", name, kNeedsPython);
    case Found::kNo:
      return absl::StrCat("attribute ", name, " is missing");
    case Found::kYes:
      break;
  }
  if (!unusual.is_hooks) return absl::StrCat("attribute ", name, " is present");
  if (!PyODict_CheckExact(unusual.own)) return absl::StrCat("attribute ", name, " is not an OrderedDict");
  return absl::StrCat(PyUnicode_AsUTF8(unusual.name), ": a key was added");
}

template <>
std::unique_ptr<Guard> MakeGuard<GuardKind::kNoHooks>(PyObject*) {
  return std::make_unique<NoHooksGuard>();
}

}  // namespace frametap
