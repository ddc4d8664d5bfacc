#include "guards/guard_recorder.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "guards/frozen_guards.h"
#include "guards/kinds/keys.h"
#include "guards/kinds/length.h"
#include "guards/kinds/no_hooks.h"
#include "guards/kinds/tensor.h"
#include "guards/kinds/type.h"
#include "guards/kinds/value.h"
#include "guards/kinds/world.h"
#include "guards/must.h"
#include "guards/tensor_door.h"

namespace frametap {

namespace {

// Thousands of keys are hashed in a recording: two multiplications mix all that is in one. The upper bits are the best.
uint64_t HashOfKey(uint32_t source, uint8_t what, int64_t number, const void* object) {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;
  const uint64_t first = (uint64_t{source} << 8 | what) * kOdd;
  const uint64_t second = static_cast<uint64_t>(number) ^ reinterpret_cast<uintptr_t>(object) << 12;
  return ((first ^ first >> 32) + second) * kOdd;
}

// S1 without building text: `key` is the address of an object that stands for all equal keys.
struct SourceKey {
  uint32_t parent;
  Accessor accessor;
  int64_t index;
  const void* key;

  friend bool operator==(const SourceKey&, const SourceKey&) = default;
  uint64_t Hash() const { return HashOfKey(parent, static_cast<uint8_t>(accessor), index, key); }
};

// R3. What of a source a predicate speaks of; two predicates with one key say the same.
struct PredicateKey {
  uint32_t source;
  Guard::Kind kind;
  int64_t detail;
  const void* object;

  friend bool operator==(const PredicateKey&, const PredicateKey&) = default;
  uint64_t Hash() const { return HashOfKey(source, static_cast<uint8_t>(kind), detail, object); }
};

constexpr int64_t kSameObjectDetail = int64_t{1} << 40;
constexpr int64_t kNumbersDetail = -1;  // of a relation: of several numbers

// Keys by number, each once, and only the last ones are taken away again. The table holds the numbers and half of their
// hashes: it stays small, and hardly ever looks at a key that is not the one asked for.
template <class Key>
class Numbering {
 public:
  void Reserve(size_t count) {
    keys_.reserve(count);
    Grow(std::bit_ceil(2 * count));
  }
  // The number of `key`: the next one if it is new.
  std::pair<uint32_t, bool> Add(const Key& key) {
    if (2 * keys_.size() >= slots_.size()) Grow(std::max<size_t>(2 * slots_.size(), 64));
    const auto hash = static_cast<uint32_t>(key.Hash() >> 32);
    Slot& slot = slots_[SlotOf(key, hash)];
    if (slot.number != kNone) return {slot.number, false};
    slot = {hash, static_cast<uint32_t>(keys_.size())};
    keys_.push_back(key);
    return {slot.number, true};
  }
  std::optional<uint32_t> Find(const Key& key) const {
    if (keys_.empty()) return std::nullopt;
    const Slot& slot = slots_[SlotOf(key, static_cast<uint32_t>(key.Hash() >> 32))];
    return slot.number == kNone ? std::nullopt : std::optional(slot.number);
  }
  void Truncate(size_t count) {
    if (count >= keys_.size()) return;
    keys_.resize(count);
    Grow(slots_.size());
  }

 private:
  static constexpr uint32_t kNone = 0xffffffff;
  struct Slot {
    uint32_t hash = 0;
    uint32_t number = kNone;
  };

  // Where `key` is, or the empty place for it.
  size_t SlotOf(const Key& key, uint32_t hash) const {
    size_t at = hash & (slots_.size() - 1);
    while (slots_[at].number != kNone && !(slots_[at].hash == hash && keys_[slots_[at].number] == key)) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }
  // A table of `size`, a power of two, for the keys that there are.
  void Grow(size_t size) {
    const std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(size));
    for (const Slot& slot : old) {
      if (slot.number >= keys_.size()) continue;
      size_t at = slot.hash & (size - 1);
      while (slots_[at].number != kNone) at = (at + 1) & (size - 1);
      slots_[at] = slot;
    }
  }

  std::vector<Key> keys_;
  std::vector<Slot> slots_;
};

}  // namespace

struct GuardRecorder::Impl {
  explicit Impl(WorldState w) : world(w) {}

  void Reserve() {
    constexpr size_t kUsual = 512;  // of one model
    seen.reserve(kUsual);
    sources.Reserve(kUsual);
    known.Reserve(2 * kUsual);
  }

  WorldState world;
  Steps steps;
  std::vector<Ref<>> seen;
  std::vector<int64_t> numbers;
  Numbering<SourceKey> sources;  // of `steps`

  StableVector<Predicate> predicates;
  Numbering<PredicateKey> known;  // of `predicates`
  std::vector<Ref<>> codes;       // of their spots
  absl::flat_hash_set<PyCodeObject*> codes_kept;

  std::unordered_map<Py_hash_t, std::vector<Ref<>>> plain_keys;
  std::function<void(const std::string&)> contradicts;                    // empty: marks do not count
  absl::flat_hash_map<std::string, std::unique_ptr<char>> relation_keys;  // an address for each text
  absl::flat_hash_map<PyObject*, Py_ssize_t> counts;  // references held to the objects that CountOf was asked for

  void Count(const Step& step, PyObject* object) {
    CountOne(object, this);
    CountOne(step.key.object.get(), this);
  }
  void Count(const Predicate& predicate) {
    if (predicate.guard != nullptr) predicate.guard->Traverse(&CountOne, this);
  }
  void Keep(const Spot& spot) {
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

  template <class MakeStepFn>
  SourceId Add(const SourceKey& key, PyObject* object, MakeStepFn&& make) {
    const auto [number, is_new] = sources.Add(key);
    if (!is_new) return SourceId(number);
    steps.emplace_back(make());
    seen.push_back(Ref<>::New(object));
    numbers.push_back(0);
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
  // Sources without an object (unbound, or never told) have nothing that could be guarded.
  bool empty(SourceId id) const { return !is_number(id) && object(id) == nullptr; }

  bool Has(SourceId id, Guard::Kind kind, int64_t detail = 0, const void* object = nullptr) const {
    return known.Find(PredicateKey{id.raw(), kind, detail, object}).has_value();
  }

  template <class MakeGuardFn>
  Predicate& Say(SourceId id, Guard::Kind kind, int64_t detail, const void* object, const Spot& why,
                 MakeGuardFn&& make) {
    const auto [number, is_new] = known.Add(PredicateKey{id.raw(), kind, detail, object});
    if (!is_new) return predicates[number];
    Predicate& predicate = predicates.emplace_back();
    predicate.source = id;
    predicate.guard = make();
    predicate.why = why;
    Keep(why);
    if (!counts.empty()) [[unlikely]]
      Count(predicate);
    return predicate;
  }

  void SayKey(SourceId id, DictOf dict, PyObject* name, bool present, const Spot& why) {
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
    while (predicates.size() > n_predicates) predicates.pop_back();
    sources.Truncate(n_sources);
    while (steps.size() > n_sources) {
      numbers.pop_back();
      seen.pop_back();
      steps.pop_back();
    }
  }
};

GuardRecorder::GuardRecorder(WorldState world) : impl_(std::make_unique<Impl>(world)) { impl_->Reserve(); }
GuardRecorder::~GuardRecorder() = default;

SourceId GuardRecorder::Local(int64_t slot, const std::string& name, PyObject* seen) {
  return impl_->Root(Accessor::kLocal, slot, name, seen);
}

SourceId GuardRecorder::Cell(int64_t slot, const std::string& name, PyObject* content) {
  return impl_->Root(Accessor::kCell, slot, name, content);
}

SourceId GuardRecorder::Stack(int64_t slot, PyObject* seen) { return impl_->Root(Accessor::kStack, slot, "", seen); }

SourceId GuardRecorder::Function(PyObject* function, int64_t slot) {
  return impl_->Root(Accessor::kFunction, slot, "", function);
}

SourceId GuardRecorder::Pinned(PyObject* object, const std::string& text) {
  const SourceId id = impl_->Root(Accessor::kPinned, static_cast<int64_t>(impl_->steps.size()), text, object, object);
  // The object is known, but its code or class can be assigned to.
  if (PyFunction_Check(object) || PyModule_Check(object)) Identity(id, Spot());
  return id;
}

bool GuardRecorder::IsPinned(PyObject* object) const {
  return impl_->sources.Find(SourceKey{SourceId::kNoneRaw, Accessor::kPinned, 0, object}).has_value();
}

SourceId GuardRecorder::Child(SourceId parent, Accessor accessor, int64_t index, PyObject* key, PyObject* seen) {
  Impl& r = *impl_;
  Ref<> canonical = r.Canonical(key);
  const size_t count = r.steps.size();
  PyObject* from = r.object(parent);
  const SourceId id = r.Add({parent.raw(), accessor, index, canonical.get()}, seen,
                            [&] { return MakeStep(parent, from, accessor, index, canonical.get()); });
  if (r.steps.size() == count || !IsNumber(accessor)) return id;
  Reached at;
  if (seen != nullptr && PyLong_CheckExact(seen)) {
    r.numbers[id.raw()] = PyLong_AsLongLong(seen);
  } else if (Follow(r.steps[id.raw()], from, Roots{}, &at)) {
    r.numbers[id.raw()] = at.number;
  }
  return id;
}

PyObject* GuardRecorder::seen(SourceId id) const { return impl_->object(id); }

SourceId GuardRecorder::parent(SourceId id) const { return impl_->steps[id.raw()].parent; }

Py_ssize_t GuardRecorder::CountOf(PyObject* object) {
  Impl& r = *impl_;
  if (auto it = r.counts.find(object); it != r.counts.end()) return it->second;
  absl::flat_hash_map<PyObject*, Py_ssize_t> others = std::exchange(r.counts, {});
  r.counts[object] = 0;
  for (size_t i = 0; i < r.steps.size(); ++i) r.Count(r.steps[i], r.seen[i].get());
  for (const Predicate& predicate : r.predicates) r.Count(predicate);
  for (const Ref<>& code : r.codes) Impl::CountOne(code.get(), &r);
  others[object] = r.counts[object];
  r.counts = std::move(others);
  return r.counts[object];
}

std::string GuardRecorder::FaultAt(SourceId id) const {
  const Impl& r = *impl_;
  if (id.raw() >= r.steps.size()) return "the source does not exist";
  const Step& step = r.steps[id.raw()];
  if (!step.parent.valid() || r.empty(id)) return "";
  PyObject* parent = r.object(step.parent);
  Reached at;
  if (!Follow(step, parent, Roots{}, &at)) return absl::StrCat(Name(id), " cannot be followed");
  if (r.is_number(id)) {
    if (at.number == r.numbers[id.raw()]) return "";
    return absl::StrCat(Name(id), " is ", at.number, ", was ", r.numbers[id.raw()]);
  }
  return at.object == r.object(id) ? "" : absl::StrCat(Name(id), " leads to another object");
}

Accessor GuardRecorder::accessor(SourceId id) const { return impl_->steps[id.raw()].accessor; }

PyObject* GuardRecorder::KeyOf(SourceId id) const { return impl_->steps[id.raw()].key.object.get(); }

Source GuardRecorder::Describe(SourceId id) const { return InWords(impl_->steps[id.raw()]); }

std::string GuardRecorder::Name(SourceId id) const { return TableOf(impl_->steps).Name(id); }

void GuardRecorder::Type(SourceId id, const Spot& why) {
  if (impl_->object(id) == nullptr || impl_->is_number(id)) return;
  impl_->Say(id, Guard::Kind::kType, 0, nullptr, why, [&] { return std::make_unique<TypeGuard>(impl_->object(id)); });
}

void GuardRecorder::Class(PyTypeObject* type, const Spot& why) {
  if ((type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) != 0) return;
  const SourceId id = Pinned(reinterpret_cast<PyObject*>(type), TypeName(type));
  impl_->Say(id, Guard::Kind::kClass, 0, nullptr, why, [&] { return std::make_unique<ClassGuard>(type); });
}

void GuardRecorder::Identity(SourceId id, const Spot& why) {
  if (impl_->object(id) == nullptr) return;
  const Step& step = impl_->steps[id.raw()];
  const std::string& text = step.accessor == Accessor::kPinned ? step.text : std::string();
  impl_->Say(id, Guard::Kind::kIdentity, 0, nullptr, why, [&] { return MakeIdentityGuard(impl_->object(id), text); });
}

void GuardRecorder::Address(SourceId id, const Spot& why) {
  if (impl_->object(id) == nullptr || impl_->Has(id, Guard::Kind::kIdentity)) return;
  impl_->Say(id, Guard::Kind::kAddress, 0, nullptr, why, [&] { return MakeAddressGuard(impl_->object(id)); });
}

void GuardRecorder::Code(SourceId id, const Spot& why) {
  if (impl_->object(id) == nullptr || impl_->Has(id, Guard::Kind::kIdentity)) return;
  impl_->Say(id, Guard::Kind::kCode, 0, nullptr, why, [&] { return MakeCodeGuard(impl_->object(id)); });
}

void GuardRecorder::Suspended(SourceId id, const Spot& why) {
  if (impl_->object(id) == nullptr) return;
  impl_->Say(id, Guard::Kind::kSuspended, 0, nullptr, why, [&] { return MakeSuspendedGuard(impl_->object(id)); });
}

void GuardRecorder::Field(SourceId id, Py_ssize_t offset, const Spot& why) {
  if (impl_->object(id) == nullptr) return;
  Identity(id, why);
  impl_->Say(id, Guard::Kind::kField, offset, nullptr, why, [&] { return MakeFieldGuard(impl_->object(id), offset); });
}

void GuardRecorder::Registry(const Spot& why) {
  static PyObject* const counter = [] {
    Ref<> module = Must(PyImport_ImportModule("_abc"));
    return Must(PyObject_GetAttrString(module.get(), "get_cache_token")).Release();
  }();
  impl_->Say(Pinned(counter, "abc.get_cache_token"), Guard::Kind::kRegistry, 0, nullptr, why,
             [] { return MakeRegistryGuard(counter); });
}

void GuardRecorder::Value(SourceId id, const Spot& why) {
  if (impl_->empty(id)) return;
  if (!impl_->is_number(id) && !IsPlainValue(impl_->object(id))) return Identity(id, why);
  if (impl_->Has(id, Guard::Kind::kIdentity)) return;
  CheckFixed(id);
  impl_->Say(id, Guard::Kind::kValue, 0, nullptr, why, [&] { return MakeValueGuard(impl_->reached(id)); });
}

int64_t GuardRecorder::SeenNumber(SourceId id) const { return impl_->reached(id).number; }

bool GuardRecorder::IsFixed(SourceId id) const { return impl_->Has(id, Guard::Kind::kValue); }

void GuardRecorder::Elements(SourceId id, const Spot& why) {
  if (impl_->object(id) == nullptr) return;
  impl_->Say(id, Guard::Kind::kValue, 1, nullptr, why, [&] { return MakeSetGuard(impl_->object(id)); });
}

void GuardRecorder::Layout(SourceId id, const Spot& why) {
  if (impl_->object(id) == nullptr) return;
  impl_->Say(id, Guard::Kind::kValue, 3, nullptr, why, [&] { return MakeSetLayoutGuard(impl_->object(id)); });
}

bool GuardRecorder::HasLayout(SourceId id) const { return impl_->Has(id, Guard::Kind::kValue, 3); }

void GuardRecorder::Member(SourceId set, PyObject* item, const Spot& why) {
  if (impl_->object(set) == nullptr) return;
  impl_->Say(set, Guard::Kind::kValue, 2, item, why, [&] { return MakeMemberGuard(impl_->object(set), item); });
}

void GuardRecorder::Length(SourceId id, const Spot& why) {
  if (impl_->object(id) == nullptr || impl_->Has(id, Guard::Kind::kKeys)) return;
  impl_->Say(id, Guard::Kind::kLength, 0, nullptr, why,
             [&] { return std::make_unique<LengthGuard>(impl_->object(id)); });
}

void GuardRecorder::Keys(SourceId id, const Spot& why) {
  PyObject* dict = impl_->object(id);
  if (dict == nullptr || !PyDict_Check(dict)) return;
  impl_->Say(id, Guard::Kind::kKeys, 0, nullptr, why, [&] { return std::make_unique<KeysGuard>(dict); });
}

void GuardRecorder::Absent(SourceId dict, PyObject* key, const Spot& why) {
  if (impl_->object(dict) != nullptr) impl_->SayKey(dict, impl_->DictOfSeen(dict), key, false, why);
}

void GuardRecorder::Present(SourceId dict, PyObject* key, const Spot& why) {
  if (impl_->object(dict) != nullptr) impl_->SayKey(dict, impl_->DictOfSeen(dict), key, true, why);
}

void GuardRecorder::NoInstanceAttr(SourceId object, PyObject* name, const Spot& why) {
  if (impl_->object(object) != nullptr) impl_->SayKey(object, DictOf::kInstance, name, false, why);
}

void GuardRecorder::NoHooks(SourceId module, const Spot& why) {
  if (impl_->object(module) == nullptr) return;
  impl_->Say(module, Guard::Kind::kNoHooks, 0, nullptr, why, [] { return std::make_unique<NoHooksGuard>(); });
}

void GuardRecorder::TypeAttr(SourceId object, PyObject* name, PyObject* found, const Spot& why) {
  if (impl_->object(object) == nullptr) return;
  Ref<> key = impl_->Canonical(name);
  impl_->Say(object, Guard::Kind::kTypeAttr, 0, key.get(), why,
             [&] { return std::make_unique<TypeAttrGuard>(impl_->object(object), key.get(), found); });
}

void GuardRecorder::Tensor(SourceId id, const TensorRead& read, const Spot& why) {
  PyObject* tensor = impl_->object(id);
  if (tensor == nullptr || !IsTensor(tensor)) return;
  if (impl_->contradicts && HasSizeMarks(tensor)) {
    for (int64_t dim = 0; dim < TensorOf(tensor).dim(); ++dim) {
      const bool is_read = read.sizes || read.strides || (dim < 64 && (read.dims >> dim & 1) != 0);
      if (is_read) CheckFixed(Child(id, Accessor::kSize, dim, nullptr, nullptr));
    }
  }
  const Predicate& predicate =
      impl_->Say(id, Guard::Kind::kTensor, 0, nullptr, why, [&] { return std::make_unique<TensorGuard>(tensor); });
  static_cast<TensorGuard*>(predicate.guard.get())->Read(read);
}

void GuardRecorder::HeedMarks(std::function<void(const std::string&)> contradicts) {
  impl_->contradicts = std::move(contradicts);
}

std::optional<SizeMark> GuardRecorder::MarkOf(SourceId size) const {
  PyObject* const tensor = seen(parent(size));
  return tensor != nullptr && HasSizeMarks(tensor) ? SizeMarkOf(tensor, Describe(size).index) : std::nullopt;
}

// The mark of a size, if it is one and marked as dynamic, and marks count.
std::optional<SizeMark> GuardRecorder::DynamicMark(SourceId size) const {
  if (!impl_->contradicts || accessor(size) != Accessor::kSize) return std::nullopt;
  const auto mark = MarkOf(size);
  return mark && !mark->is_static ? mark : std::nullopt;
}

void GuardRecorder::CheckFixed(SourceId size) {
  if (const auto mark = DynamicMark(size)) {
    impl_->contradicts(
        absl::StrCat(Name(size), " is marked as dynamic ", mark->Text(), ", and fixed to ", SeenNumber(size), " here"));
  }
}

// `holds`: for a number in place of the size. Looks at the numbers around the one seen, up to the ends of the range.
void GuardRecorder::CheckRange(SourceId size, const std::string& condition, const std::function<bool(int64_t)>& holds) {
  const auto mark = DynamicMark(size);
  if (!mark || !mark->has_range) return;
  constexpr int64_t kMostSteps = 1 << 16;
  const int64_t seen = SeenNumber(size);
  int64_t least = seen, most = seen;
  while (least > mark->least && seen - least < kMostSteps && holds(least - 1)) --least;
  while (most < mark->most && most - seen < kMostSteps && holds(most + 1)) ++most;
  const bool below = least > mark->least && seen - least < kMostSteps;
  const bool above = most < mark->most && most - seen < kMostSteps;
  if (!below && !above) return;
  impl_->contradicts(absl::StrCat(
      Name(size), " is marked as dynamic ", mark->Text(), ", and ", condition, " holds ",
      below && above ? absl::StrCat("from ", least, " to ", most, " only: mark it with min=", least, ", max=", most)
      : below        ? absl::StrCat("from ", least, " on: mark it with min=", least)
                     : absl::StrCat("up to ", most, " only: mark it with max=", most)));
}

bool GuardRecorder::Relation(SourceId number, int py_compare_op, PyObject* constant, bool outcome, const Spot& why) {
  if (impl_->empty(number) || impl_->Has(number, Guard::Kind::kValue)) return true;
  Ref<> key = impl_->Canonical(constant);
  std::unique_ptr<Guard> guard = MakeRelationGuard(impl_->reached(number), py_compare_op, key.get(), outcome);
  if (!guard->Holds(impl_->reached(number))) return false;
  if (DynamicMark(number)) {
    CheckRange(number, absl::StrCat(Name(number), " ", guard->Want()),
               [&](int64_t other) { return guard->Holds(Reached::Number(other)); });
  }
  impl_->Say(number, Guard::Kind::kRelation, py_compare_op * 2 + (outcome ? 1 : 0), key.get(), why,
             [&] { return std::move(guard); });
  return true;
}

bool GuardRecorder::Relation(NumberExpr left, int py_compare_op, NumberExpr right, bool outcome,
                             const std::vector<SourceId>& numbers, const Spot& why) {
  Impl& r = *impl_;
  bool fixed = true;
  std::vector<Reached> seen;
  std::vector<std::string> names;
  for (const SourceId id : numbers) {
    fixed = fixed && r.Has(id, Guard::Kind::kValue);
    seen.push_back(r.reached(id));
    names.push_back(absl::StrCat("%", id.raw()));  // no constant looks like it
  }
  if (fixed) return true;
  auto relation = std::make_unique<NumbersRelation>(std::move(left), py_compare_op, std::move(right), outcome, seen);
  std::vector<const Reached*> at;
  for (const Reached& one : seen) at.push_back(&one);
  if (!relation->Holds(at.data())) return false;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (!DynamicMark(numbers[i])) continue;
    std::vector<std::string> words;
    for (const SourceId id : numbers) words.push_back(Name(id));
    CheckRange(numbers[i], relation->Want(words), [&](int64_t other) {
      const Reached instead = Reached::Number(other);
      std::vector<const Reached*> with = at;
      with[i] = &instead;
      return relation->Holds(with.data());
    });
  }
  // R3: two that say the same have the same text.
  std::unique_ptr<char>& key = r.relation_keys[relation->Want(names)];
  if (!key) key = std::make_unique<char>();
  const size_t count = r.predicates.size();
  Predicate& predicate = r.Say(numbers[0], Guard::Kind::kRelation, kNumbersDetail, key.get(), why,
                               [] { return std::unique_ptr<Guard>(); });
  if (r.predicates.size() == count) return true;
  predicate.related = std::make_unique<RelatedNumbers>(RelatedNumbers{std::move(relation), numbers});
  return true;
}

void GuardRecorder::SameObject(SourceId a, SourceId b, bool same, const Spot& why) {
  if (a == b || impl_->object(a) == nullptr || impl_->object(b) == nullptr) return;
  if (b < a) std::swap(a, b);
  const size_t count = impl_->predicates.size();
  Predicate& predicate = impl_->Say(b, Guard::Kind::kIdentity, kSameObjectDetail + a.raw(), nullptr, why,
                                    [] { return std::unique_ptr<Guard>(); });
  if (impl_->predicates.size() == count) return;
  predicate.other = a;
  predicate.same = same;
}

GuardRecorder::Mark GuardRecorder::mark() const { return {impl_->predicates.size(), impl_->steps.size()}; }

void GuardRecorder::Rewind(const Mark& mark) { impl_->Truncate(mark.predicates, mark.sources); }

std::vector<std::string> GuardRecorder::StateLines() const { return StateWords(impl_->world); }

namespace {

// A read under a name raises where the name is gone.
bool IsNamed(Accessor accessor) {
  switch (accessor) {
    case Accessor::kCell:
    case Accessor::kAttr:
    case Accessor::kModuleAttr:
    case Accessor::kKey:
    case Accessor::kGlobal:
    case Accessor::kBuiltin:
    case Accessor::kClosure:
    case Accessor::kKwDefault:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::unique_ptr<GuardTree> GuardRecorder::Freeze(const std::vector<SourceId>& wanted) {
  FrozenGuards frozen;
  frozen.world = impl_->world;
  frozen.wanted = wanted;
  // What was read must be there, even where nothing depends on what it is.
  for (uint32_t i = 0; i < impl_->steps.size(); ++i) {
    if (IsNamed(impl_->steps[i].accessor) && !impl_->empty(SourceId(i))) frozen.wanted.push_back(SourceId(i));
  }
  frozen.steps = std::move(impl_->steps);
  frozen.predicates = std::move(impl_->predicates);
  frozen.codes = std::move(impl_->codes);
  impl_ = std::make_unique<Impl>(frozen.world);
  return PlantTree(std::move(frozen));
}

}  // namespace frametap
