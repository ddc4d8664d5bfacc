// The content of a GuardRecorder. For its own files only.
#pragma once

#include <Python.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "guards/collect/frozen_guards.h"
#include "guards/collect/guard_recorder.h"
#include "guards/collect/intern_table.h"
#include "guards/kinds/class_note.h"
#include "guards/kinds/keys.h"
#include "guards/kinds/no_hooks.h"
#include "guards/objects/value.h"
#include "guards/throw_if_null.h"
#include "ir/block_pool.h"
#include "ir/dcheck.h"

namespace frametap {

// Thousands of keys are hashed in a recording: two multiplications mix all that is in one. The upper bits are the best.
inline uint64_t HashOfKey(uint32_t source, uint8_t what, int64_t number, const void* object) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  const uint64_t first = (uint64_t{source} << 8 | what) * kOdd;
  const uint64_t second = static_cast<uint64_t>(number) ^ reinterpret_cast<uintptr_t>(object) << 12;
  return ((first ^ first >> 32) + second) * kOdd;
}

// source/S1 without building text: `key` is the address of an object that stands for all equal keys.
struct SourceKey {
  uint32_t parent;
  Accessor accessor;
  int64_t index;
  const void* key;

  friend bool operator==(const SourceKey&, const SourceKey&) = default;
  uint64_t Hash() const { return HashOfKey(parent, static_cast<uint8_t>(accessor), index, key); }
};

// guard_recorder/R3. The part of a source that a predicate describes; two predicates with one key are equal.
struct PredicateKey {
  uint32_t source;
  Guard::Kind kind;
  int64_t detail;
  const void* object;

  friend bool operator==(const PredicateKey&, const PredicateKey&) = default;
  uint64_t Hash() const { return HashOfKey(source, static_cast<uint8_t>(kind), detail, object); }
};

struct GuardRecorder::Impl {
  explicit Impl(WorldState w) : world(w) {}

  NamesRead& Names() {
    if (names == nullptr) [[unlikely]]
      names = std::make_unique<NamesRead>();
    return *names;
  }

  void Reserve() {
    constexpr size_t kUsual = 256;  // of a small model
    seen.reserve(kUsual);
    numbers.reserve(kUsual);
    uses.reserve(kUsual);
    sources.Reserve(kUsual);
    known.Reserve(kUsual);
  }

  WorldState world;
  Steps steps;
  std::vector<Ref<>, PoolAllocator<Ref<>>> seen;
  std::vector<int64_t, PoolAllocator<int64_t>> numbers;
  struct Uses {
    uint32_t children = 0, predicates = 0, relations = 0;  // those that stand with another source
  };
  std::vector<Uses, PoolAllocator<Uses>> uses;
  InternTable<SourceKey> sources;  // of `steps`
  SourceTable shown;               // the first of `steps` in words, as far as a name was asked for

  std::unique_ptr<NamesRead> names;  // outlives `predicates`; made when something is read, as it is large
  StableVector<GuardEntry> predicates;
  InternTable<PredicateKey> known;  // of `predicates`
  std::vector<Ref<>> codes;         // of their spots
  absl::flat_hash_set<PyCodeObject*> codes_kept;

  std::unordered_map<Py_hash_t, std::vector<Ref<>>> plain_keys;
  std::function<void(const std::string&)> contradicts;                    // empty: marks do not count
  absl::flat_hash_map<std::string, std::unique_ptr<char>> relation_keys;  // an address for each text
  absl::flat_hash_map<PyObject*, Py_ssize_t> counts;  // references held to the objects that CountOf was asked for

  void Count(const Step& step, PyObject* object) {
    CountOne(object, this);
    CountOne(step.key.object.get(), this);
  }
  void Count(const GuardEntry& predicate) {
    if (const Guard* guard = predicate.own_guard()) guard->Traverse(&CountOne, this);
  }
  void Keep(const GuardSite& spot) {
    PyObject* code = reinterpret_cast<PyObject*>(spot.code);
    if (code == nullptr || (!codes.empty() && codes.back().get() == code) || !codes_kept.insert(spot.code).second)
      return;
    codes.push_back(Ref<>::New(code));
    CountOne(code, this);
  }
  static int CountOne(PyObject* held, void* impl) {
    auto& counts = static_cast<Impl*>(impl)->counts;
    if (auto it = counts.find(held); it != counts.end()) ++it->second;
    return 0;
  }

  // The one object that stands for `key`: the interned string, the first equal value, else the object itself.
  Ref<> Canonical(PyObject* key) {
    if (key == nullptr) return Ref<>();
    if (PyUnicode_CheckExact(key)) return Interned(key);
    if (!IsPlainValue(key)) return Ref<>::New(key);
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1) PyErr_Clear();  // slices have none on 3.11
    std::vector<Ref<>>& alike = plain_keys[hash];
    for (const Ref<>& other : alike) {
      if (SameValue(other.get(), key)) return other;
    }
    alike.push_back(Ref<>::New(key));
    return alike.back();
  }

  template <class MakeStepFn>  // gives a step, or a reference to one that is copied
  SourceId Add(const SourceKey& key, PyObject* object, MakeStepFn&& make) {
    const auto [number, is_new] = sources.Add(key);
    if (!is_new) return SourceId(number);
    steps.emplace_back(make()).parent = SourceId(key.parent);
    seen.push_back(Ref<>::New(object));
    numbers.push_back(0);
    uses.emplace_back();
    if (key.parent != SourceId::kNoneRaw) ++uses[key.parent].children;
    if (!counts.empty()) [[unlikely]]
      Count(steps.back(), object);
    return SourceId(number);
  }

  SourceId Root(Accessor accessor, int64_t index, const std::string& text, PyObject* object,
                PyObject* pinned = nullptr) {
    return Add({SourceId::kNoneRaw, accessor, pinned != nullptr ? 0 : index, pinned}, object, [&] {
      Step step;
      step.accessor = accessor;
      step.index = index;
      step.text = text;
      step.key.object = Ref<>::New(pinned);
      return step;
    });
  }

  PyObject* object(SourceId id) const { return seen[id.raw()].get(); }
  bool is_number(SourceId id) const { return IsNumber(steps[id.raw()].accessor); }
  Reached reached(SourceId id) const {
    return is_number(id) ? Reached::Number(numbers[id.raw()]) : Reached::Object(object(id));
  }
  // Sources without an object (unbound, or never reported) have nothing that could be guarded.
  bool empty(SourceId id) const { return !is_number(id) && object(id) == nullptr; }

  bool Has(SourceId id, Guard::Kind kind, int64_t detail = 0, const void* object = nullptr) const {
    return known.Find(PredicateKey{id.raw(), kind, detail, object}).has_value();
  }

  bool IsToldByNoHooks(SourceId id) const {
    const Step& step = steps[id.raw()];
    return step.accessor == Accessor::kAttr && IsAmong(NoHooksGuard::names().hooks, step.key.object.get()) &&
           Has(step.parent, Guard::Kind::kNoHooks);
  }
  // … or that the instance at `module` has nothing under the name.
  bool IsToldByNoHooks(SourceId module, PyObject* name) const {
    return IsAmong(NoHooksGuard::names().of_class, name) && Has(module, Guard::Kind::kNoHooks);
  }
  template <class Names>
  static bool IsAmong(const Names& names, PyObject* name) {
    return std::any_of(names.begin(), names.end(), [name](const Key& one) { return one.object.get() == name; });
  }

  template <class MakeGuardFn>
  GuardEntry& Say(SourceId id, Guard::Kind kind, int64_t detail, const void* object, const GuardSite& why,
                  MakeGuardFn&& make) {
    const auto [number, is_new] = known.Add(PredicateKey{id.raw(), kind, detail, object});
    if (!is_new) return predicates[number];
    GuardEntry& predicate = predicates.emplace_back();
    predicate.source = id;
    predicate.guard = make().release();
    ++uses[id.raw()].predicates;
    predicate.why = why;
    Keep(why);
    if (!counts.empty()) [[unlikely]]
      Count(predicate);
    return predicate;
  }

  // Adds predicate `number` for another source, for which it holds. Returns false if it exists already.
  bool SayAgain(uint32_t number, SourceId id) {
    PredicateKey key = known.KeyAt(number);
    key.source = id.raw();
    if (!known.Add(key).second) return false;
    GuardEntry& predicate = predicates.emplace_back();
    predicate.source = id;
    predicate.guard = predicates[number].guard;
    predicate.is_again = true;
    predicate.why = predicates[number].why;  // whose code is kept
    ++uses[id.raw()].predicates;
    return true;
  }

  void SayKey(SourceId id, DictOf dict, PyObject* name, bool present, const GuardSite& why) {
    Ref<> key = Canonical(name);
    const int64_t detail = static_cast<int64_t>(dict) * 2 + (present ? 1 : 0);
    Say(id, Guard::Kind::kKey, detail, key.get(), why,
        [&] { return std::make_unique<KeyGuard>(dict, Key::Of(key.get(), DictAt(dict, object(id))), present); });
  }

  // A dict, or what has one where names are looked up: a function's globals, a module's dict.
  DictOf DictOfSeen(SourceId id) const {
    PyObject* o = object(id);
    return PyDict_Check(o) ? DictOf::kSelf : PyFunction_Check(o) ? DictOf::kGlobals : DictOf::kInstance;
  }

  void Truncate(size_t n_predicates, size_t n_sources) {
    known.Truncate(n_predicates);
    while (predicates.size() > n_predicates) {
      const GuardEntry& last = predicates.back();
      --uses[last.source.raw()].predicates;
      if (last.other.valid()) --uses[last.other.raw()].relations;
      predicates.pop_back();
    }
    sources.Truncate(n_sources);
    if (shown.size() > n_sources) shown = SourceTable();
    while (steps.size() > n_sources) {
      if (const SourceId parent = steps.back().parent; parent.valid()) --uses[parent.raw()].children;
      uses.pop_back();
      numbers.pop_back();
      seen.pop_back();
      steps.pop_back();
    }
    FT_DCHECK(IsConsistent());
  }

  // Whether the lists that stand beside each other are equally long.
  bool IsConsistent() const {
    return steps.size() == sources.size() && steps.size() == seen.size() && steps.size() == numbers.size() &&
           steps.size() == uses.size() && predicates.size() == known.size();
  }
};

}  // namespace frametap
