#include "guards/collect/guard_recorder.h"

#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "guards/collect/guard_recorder_impl.h"
#include "guards/kinds/length.h"
#include "guards/kinds/no_hooks.h"
#include "guards/kinds/roots.h"
#include "guards/kinds/tensor.h"
#include "guards/kinds/type.h"
#include "guards/objects/import.h"
#include "guards/objects/torch_tensor.h"
#include "ir/dcheck.h"

namespace frametap {

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
  if (PyFunction_Check(object) || PyModule_Check(object)) Identity(id, GuardSite());
  return id;
}

SourceId GuardRecorder::PinnedAs(PyObject* object) const {
  const auto number = impl_->sources.Find(SourceKey{SourceId::kNoneRaw, Accessor::kPinned, 0, object});
  return number ? SourceId(*number) : SourceId();
}

SourceId GuardRecorder::Child(SourceId parent, Accessor accessor, int64_t index, PyObject* key, PyObject* seen) {
  Impl& r = *impl_;
  Ref<> canonical = r.Canonical(key);
  const size_t count = r.steps.size();
  if (parent.raw() >= count) throw std::out_of_range("a source that Rewind has dropped");
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
  for (const GuardEntry& predicate : r.predicates) r.Count(predicate);
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

std::string GuardRecorder::Name(SourceId id) const {
  AddNewSteps(impl_->steps, &impl_->shown);
  return impl_->shown.Name(id);
}

uint64_t GuardRecorder::NameHash(SourceId id) const {
  AddNewSteps(impl_->steps, &impl_->shown);
  return impl_->shown.NameHash(id);
}

void GuardRecorder::Type(SourceId id, const GuardSite& why) {
  if (impl_->object(id) == nullptr || impl_->is_number(id) || impl_->IsToldByNoHooks(id)) return;
  impl_->Say(id, Guard::Kind::kType, 0, nullptr, why,
             [&] { return std::make_unique<TypeGuard>(impl_->object(id), &impl_->Names()); });
}

void GuardRecorder::Class(PyTypeObject* type, const GuardSite& why) {
  if ((type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) != 0) return;
  const SourceId id = Pinned(reinterpret_cast<PyObject*>(type), TypeName(type));
  impl_->Say(id, Guard::Kind::kClass, 0, nullptr, why,
             [&] { return std::make_unique<ClassGuard>(type, &impl_->Names()); });
}

NamesRead* GuardRecorder::MakeNames() { return &impl_->Names(); }

void GuardRecorder::ReadsNamesOf(PyCodeObject* code) { impl_->Names().AddOf(code); }

void GuardRecorder::ReadsIntOfClass(PyTypeObject* type, PyObject* name, bool is_open) {
  impl_->Names().AddInt(type, name, is_open);
}

void GuardRecorder::Identity(SourceId id, const GuardSite& why) {
  if (impl_->object(id) == nullptr) return;
  const Step& step = impl_->steps[id.raw()];
  const bool is_named = step.accessor == Accessor::kPinned;
  impl_->Say(id, Guard::Kind::kIdentity, 0, nullptr, why,
             [&] { return MakeIdentityGuard(impl_->object(id), is_named ? step.text : std::string()); });
}

namespace {

using MakeGuardOf = std::unique_ptr<Guard> (*)(PyObject*, const GuardParameter&);

template <GuardKind kKind, class... Parameter>
std::unique_ptr<Guard> MakeWith(PyObject* object, const GuardParameter& parameter) {
  return MakeGuard<kKind>(object, parameter.As<Parameter>()...);
}

// By kind; null for a kind that has a method of its own.
constexpr MakeGuardOf kMakers[] = {
#define GUARD(kind, transfer) nullptr,
#define GUARD_OF(kind, transfer, ...) &MakeWith<GuardKind::kind __VA_OPT__(, ) __VA_ARGS__>,
#define FORM(form, word, text, meaning)
#include "ir/segment/predicates.def"
#undef GUARD
#undef GUARD_OF
#undef FORM
};

bool IsImpliedByIdentity(GuardKind kind) { return kind == GuardKind::kAddress || kind == GuardKind::kCode; }

}  // namespace

void GuardRecorder::Add(GuardKind kind, SourceId id, const GuardSite& why, const GuardParameter& parameter) {
  const MakeGuardOf make = kMakers[static_cast<size_t>(kind)];
  FT_DCHECK(make != nullptr);
  if (impl_->object(id) == nullptr) return;
  if (IsImpliedByIdentity(kind) && impl_->Has(id, GuardKind::kIdentity)) return;
  impl_->Say(id, kind, parameter.number, parameter.object, why, [&] { return make(impl_->object(id), parameter); });
}

void GuardRecorder::Field(SourceId id, Py_ssize_t offset, const GuardSite& why) {
  if (impl_->object(id) == nullptr) return;
  Identity(id, why);
  Add(GuardKind::kField, id, why, {.number = offset});
}

void GuardRecorder::Registry(const GuardSite& why) {
  static PyObject* const counter = [] {
    Ref<> module = MustImport("_abc");
    return Must(PyObject_GetAttrString(module.get(), "get_cache_token")).Release();
  }();
  Add(GuardKind::kRegistry, Pinned(counter, "abc.get_cache_token"), why);
}

void GuardRecorder::Value(SourceId id, const GuardSite& why) {
  if (impl_->empty(id)) return;
  if (!impl_->is_number(id)) {
    PyObject* const object = impl_->object(id);
    // The object becomes a constant of the recording, and NaN is found by identity.
    if (!IsPlainValue(object) || HoldsNan(object)) return Identity(id, why);
  }
  if (impl_->Has(id, Guard::Kind::kIdentity)) return;
  CheckFixed(id);
  impl_->Say(id, Guard::Kind::kValue, 0, nullptr, why, [&] { return MakeValueGuard(impl_->reached(id)); });
}

int64_t GuardRecorder::SeenNumber(SourceId id) const { return impl_->reached(id).number; }

bool GuardRecorder::IsFixed(SourceId id) const { return impl_->Has(id, Guard::Kind::kValue); }

bool GuardRecorder::HasLayout(SourceId id) const { return impl_->Has(id, Guard::Kind::kLayout); }

void GuardRecorder::Length(SourceId id, const GuardSite& why, Py_ssize_t length) {
  if (impl_->object(id) == nullptr || impl_->Has(id, Guard::Kind::kKeys) || impl_->IsToldByNoHooks(id)) return;
  impl_->Say(id, Guard::Kind::kLength, 0, nullptr, why,
             [&] { return std::make_unique<LengthGuard>(impl_->object(id), length); });
}

void GuardRecorder::Keys(SourceId id, const GuardSite& why) {
  PyObject* dict = impl_->object(id);
  if (dict == nullptr || !PyDict_Check(dict)) return;
  impl_->Say(id, Guard::Kind::kKeys, 0, nullptr, why, [&] { return std::make_unique<KeysGuard>(dict); });
}

void GuardRecorder::Absent(SourceId dict, PyObject* key, const GuardSite& why) {
  if (impl_->object(dict) != nullptr) impl_->SayKey(dict, impl_->DictOfSeen(dict), key, false, why);
}

void GuardRecorder::Present(SourceId dict, PyObject* key, const GuardSite& why) {
  if (impl_->object(dict) != nullptr) impl_->SayKey(dict, impl_->DictOfSeen(dict), key, true, why);
}

void GuardRecorder::NoInstanceAttr(SourceId object, PyObject* name, const GuardSite& why) {
  if (impl_->object(object) == nullptr || impl_->IsToldByNoHooks(object, name)) return;
  impl_->SayKey(object, DictOf::kInstance, name, false, why);
}

bool GuardRecorder::IsToldByNoHooks(SourceId id) const { return impl_->IsToldByNoHooks(id); }

void GuardRecorder::Tensor(SourceId id, const TensorRead& read, const GuardSite& why) {
  PyObject* tensor = impl_->object(id);
  if (tensor == nullptr || !IsTensor(tensor)) return;
  if (impl_->contradicts && HasSizeMarks(tensor)) {
    for (int64_t dim = 0; dim < TensorOf(tensor).dim(); ++dim) {
      const bool is_read = read.sizes || read.strides || (dim < 64 && (read.dims >> dim & 1) != 0);
      if (is_read) CheckFixed(Child(id, Accessor::kSize, dim, nullptr, nullptr));
    }
  }
  const GuardEntry& predicate =
      impl_->Say(id, Guard::Kind::kTensor, 0, nullptr, why, [&] { return std::make_unique<TensorGuard>(tensor); });
  static_cast<TensorGuard*>(predicate.guard)->Read(read);
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

bool GuardRecorder::Relation(SourceId number, int py_compare_op, PyObject* constant, bool outcome,
                             const GuardSite& why) {
  if (impl_->empty(number) || impl_->Has(number, Guard::Kind::kValue)) return true;
  Ref<> key = impl_->Canonical(constant);
  std::unique_ptr<Guard> guard = MakeRelationGuard(impl_->reached(number), py_compare_op, key.get(), outcome);
  if (!guard->Holds(impl_->reached(number))) return false;
  if (DynamicMark(number)) {
    CheckRange(number, absl::StrCat(Name(number), " ", ToString(guard->Want())),
               [&](int64_t other) { return guard->Holds(Reached::Number(other)); });
  }
  impl_->Say(number, Guard::Kind::kRelation, py_compare_op * 2 + (outcome ? 1 : 0), key.get(), why,
             [&] { return std::move(guard); });
  return true;
}

bool GuardRecorder::Relation(NumberExpr left, int py_compare_op, NumberExpr right, bool outcome,
                             const std::vector<SourceId>& numbers, const GuardSite& why) {
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
  GuardEntry& predicate =
      r.Say(numbers[0], Guard::Kind::kNumbers, 0, key.get(), why, [] { return std::unique_ptr<Guard>(); });
  if (r.predicates.size() == count) return true;
  predicate.related = std::make_unique<RelatedNumbers>(RelatedNumbers{std::move(relation), numbers});
  return true;
}

void GuardRecorder::SameObject(SourceId a, SourceId b, bool same, const GuardSite& why) {
  if (a == b || impl_->object(a) == nullptr || impl_->object(b) == nullptr) return;
  if (b < a) std::swap(a, b);
  const size_t count = impl_->predicates.size();
  GuardEntry& predicate =
      impl_->Say(b, Guard::Kind::kSameObject, a.raw(), nullptr, why, [] { return std::unique_ptr<Guard>(); });
  if (impl_->predicates.size() == count) return;
  predicate.other = a;
  predicate.same = same;
  ++impl_->uses[a.raw()].relations;
}

GuardRecorder::Mark GuardRecorder::mark() const { return {impl_->predicates.size(), impl_->steps.size()}; }

void GuardRecorder::Rewind(const Mark& mark) {
  FT_DCHECK(mark.predicates <= impl_->predicates.size() && mark.sources <= impl_->steps.size());
  impl_->Truncate(mark.predicates, mark.sources);
}

std::vector<StateFact> GuardRecorder::StateFacts() const { return ShownFacts(impl_->world); }

namespace {

// A read under a name raises where the name is gone.
bool IsNamed(Accessor accessor) {
  switch (accessor) {
    case Accessor::kCell:
    case Accessor::kAttr:
    case Accessor::kModuleAttr:
    case Accessor::kKey:
    case Accessor::kGlobal:
    case Accessor::kClosure:
    case Accessor::kKwDefault:
      return true;
    default:
      return false;
  }
}

}  // namespace

FrozenGuards GuardRecorder::Freeze(const std::vector<SourceId>& wanted) {
  FT_DCHECK(impl_->IsConsistent());
  FrozenGuards frozen;
  frozen.world = impl_->world;
  frozen.wanted = wanted;
  // A value that was read must exist, even where nothing depends on it.
  for (uint32_t i = 0; i < impl_->steps.size(); ++i) {
    if (IsNamed(impl_->steps[i].accessor) && !impl_->empty(SourceId(i))) frozen.wanted.push_back(SourceId(i));
  }
  // The keys lie side by side; the guards do not. Most are of other kinds.
  for (uint32_t i = 0; i < impl_->predicates.size(); ++i) {
    const Guard::Kind kind = impl_->known.KeyAt(i).kind;
    if ((kind != Guard::Kind::kType && kind != Guard::Kind::kClass) || impl_->predicates[i].is_again) continue;
    Guard* const guard = impl_->predicates[i].guard;
    kind == Guard::Kind::kType ? static_cast<TypeGuard*>(guard)->Seal() : static_cast<ClassGuard*>(guard)->Seal();
  }
  frozen.names = std::move(impl_->names);
  frozen.steps = std::move(impl_->steps);
  frozen.predicates = std::move(impl_->predicates);
  frozen.codes = std::move(impl_->codes);
  impl_ = std::make_unique<Impl>(frozen.world);
  names_ = nullptr;
  return frozen;
}

}  // namespace frametap
