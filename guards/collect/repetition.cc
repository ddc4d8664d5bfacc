// Transfers the guards of one object to another one. Layers of one class are read alike, and following the guards of
// the first is much less work than reading the next one in the same way again.
//   R4  Only predicates that hold for both objects are transferred, with the guard of the first. A guard on an
//       identity, or on the elements of a tensor, is made again for the other one. The caller decides which objects
//       may be others.
#include <algorithm>
#include <array>
#include <optional>

#include "absl/hash/hash.h"
#include "guards/collect/guard_recorder.h"
#include "guards/collect/guard_recorder_impl.h"
#include "guards/kinds/roots.h"
#include "guards/kinds/tensor.h"

namespace frametap {
namespace {

// Strings, numbers and what else is compared by value: one object is as good as another. (A slot or index without a key has
// none.)
bool IsPlainKey(PyObject* key) { return key == nullptr || PyUnicode_CheckExact(key) || IsPlainValue(key); }

// Steps that a layer takes to what it holds.
bool LeadsInside(Accessor accessor) {
  return accessor == Accessor::kAttr || accessor == Accessor::kModuleAttr || accessor == Accessor::kItem ||
         accessor == Accessor::kKey;
}

}  // namespace

GuardRecorder::Said GuardRecorder::SaidOf(SourceId id) const {
  const Impl::Uses& uses = impl_->uses[id.raw()];
  if (uses.children > 0 || uses.predicates > 1 || uses.relations > 0) return Said::kMore;
  if (uses.predicates == 0) return Said::kNothing;
  return impl_->Has(id, Guard::Kind::kType) ? Said::kType : Said::kMore;
}

bool GuardRecorder::IsUnread(SourceId tensor) const {
  const Impl::Uses& uses = impl_->uses[tensor.raw()];
  if (uses.children != 0 || uses.predicates != 1 || uses.relations != 0) return false;
  const auto number = impl_->known.Find(PredicateKey{tensor.raw(), Guard::Kind::kTensor, 0, nullptr});
  return number && static_cast<const TensorGuard&>(*impl_->predicates[*number].guard).ReadKey() == 0;
}

bool GuardRecorder::OnlySizesRead(SourceId tensor, const Mark& from, const Mark& to) const {
  const Impl& r = *impl_;
  for (size_t i = from.sources; i < to.sources; ++i) {
    if (r.steps[i].parent == tensor && r.steps[i].accessor != Accessor::kSize) return false;
  }
  for (size_t i = from.predicates; i < to.predicates; ++i) {
    if (r.predicates[i].source == tensor || r.predicates[i].other == tensor) return false;
  }
  return true;
}

bool GuardRecorder::Part::Holds(SourceId id) const {
  return id == of || std::binary_search(sources.begin(), sources.end(), id);
}

std::optional<GuardRecorder::Part> GuardRecorder::PartOf(SourceId of, const Mark& from, const Mark& to) const {
  const Impl& r = *impl_;
  Part part{of, from, to, {}, {}, {}, {}};
  for (auto raw = static_cast<uint32_t>(from.sources); raw < to.sources; ++raw) {
    const Step& step = r.steps[raw];
    if (!step.parent.valid()) continue;
    if (!IsPlainKey(step.key.object.get())) return std::nullopt;  // an item of a table of objects
    if (!part.Holds(step.parent)) continue;
    if (!LeadsInside(step.accessor) || r.seen[raw].get() == nullptr) return std::nullopt;
    part.sources.push_back(SourceId(raw));
  }
  for (auto number = static_cast<uint32_t>(from.predicates); number < to.predicates; ++number) {
    const GuardEntry& predicate = r.predicates[number];
    const PredicateKey& key = r.known.KeyAt(number);
    if (predicate.related != nullptr) {
      const std::vector<SourceId>& numbers = predicate.related->numbers;
      if (std::any_of(numbers.begin(), numbers.end(), [&](SourceId id) { return part.Holds(id); })) return std::nullopt;
      continue;
    }
    const bool is_within = part.Holds(predicate.source);
    if (predicate.other.valid()) {
      const bool is_other_within = part.Holds(predicate.other);
      if (is_within != is_other_within) {
        if (!predicate.same) return std::nullopt;
        part.shared.push_back(is_within ? predicate.source : predicate.other);
      }
      if (is_within || is_other_within) part.predicates.push_back(number);
      continue;
    }
    // (Of a relation between numbers, `object` is a mark.)
    if (!IsPlainKey(static_cast<PyObject*>(const_cast<void*>(key.object)))) return std::nullopt;
    if (!is_within) continue;
    if (TransferOf(key.kind) == Transfer::kNever) return std::nullopt;
    if (key.kind == Guard::Kind::kIdentity || key.kind == Guard::Kind::kAddress) part.fixed.push_back(predicate.source);
    part.predicates.push_back(number);
  }
  return part;
}

bool GuardRecorder::Repeat(Repetition* repetition, absl::FunctionRef<bool(SourceId was, SourceId is)> met) {
  Impl& r = *impl_;
  const Part& part = repetition->part_;
  if (Py_TYPE(r.object(part.of)) != Py_TYPE(r.object(repetition->onto_))) return false;
  for (const SourceId was : part.sources) {
    SourceKey key = r.sources.KeyAt(was.raw());
    const SourceId parent = repetition->IsNow(SourceId(key.parent));
    key.parent = parent.raw();
    const Step& step = r.steps[was.raw()];
    Reached at;
    if (!Follow(step, r.object(parent), Roots{}, &at) || Py_TYPE(at.object) != Py_TYPE(r.object(was))) return false;
    const size_t count = r.steps.size();
    const SourceId id = r.Add(key, at.object, [&]() -> const Step& { return step; });
    if (r.steps.size() == count || !met(was, id)) return false;
    repetition->now_[was.raw() - part.from.sources] = id;
  }
  for (const uint32_t number : part.predicates) {
    const GuardEntry& predicate = r.predicates[number];
    const PredicateKey& key = r.known.KeyAt(number);
    const SourceId id = repetition->IsNow(predicate.source);
    if (!predicate.other.valid() && TransferOf(key.kind) == Transfer::kIfItHolds) {
      if (!predicate.guard->Holds(r.reached(id)) || !r.SayAgain(number, id)) return false;
      continue;
    }
    const size_t count = r.predicates.size();
    if (predicate.other.valid()) {
      const SourceId other = repetition->IsNow(predicate.other);
      if ((r.object(id) == r.object(other)) != predicate.same) return false;
      SameObject(other, id, predicate.same, predicate.why);
    } else if (key.kind == Guard::Kind::kIdentity) {
      Identity(id, predicate.why);
    } else if (key.kind == Guard::Kind::kTensor) {
      Tensor(id, TensorRead(), predicate.why);
    } else {
      Add(key.kind, id, predicate.why, {key.detail, static_cast<PyObject*>(const_cast<void*>(key.object))});
    }
    if (r.predicates.size() == count) return false;
  }
  return true;
}

std::vector<std::array<uint64_t, 4>> GuardRecorder::SaidSince(const Mark& mark) const {
  const Impl& r = *impl_;
  std::vector<std::array<uint64_t, 4>> said;
  const auto number = [](const void* object) { return static_cast<uint64_t>(reinterpret_cast<uintptr_t>(object)); };
  // New sources by the way that leads to them: sizes, which say nothing by themselves, may come at other places.
  std::vector<uint64_t> ways;
  const auto way = [&](uint32_t source) { return source < mark.sources ? source : ways[source - mark.sources]; };
  for (size_t i = mark.sources; i < r.steps.size(); ++i) {
    const SourceKey& key = r.sources.KeyAt(static_cast<uint32_t>(i));
    const uint64_t parent = key.parent == SourceId::kNoneRaw ? key.parent : way(key.parent);
    const auto accessor = static_cast<uint64_t>(key.accessor), index = static_cast<uint64_t>(key.index);
    ways.push_back(absl::HashOf(parent, accessor, index, key.key));
    if (!IsNumber(key.accessor)) said.push_back({parent, accessor, index, number(key.key)});
  }
  for (size_t i = mark.predicates; i < r.predicates.size(); ++i) {
    const PredicateKey& key = r.known.KeyAt(static_cast<uint32_t>(i));
    const GuardEntry& predicate = r.predicates[i];
    const uint64_t what = key.kind == Guard::Kind::kTensor ? static_cast<const TensorGuard&>(*predicate.guard).ReadKey()
                                                           : number(key.object);
    const uint64_t detail = predicate.other.valid() ? way(predicate.other.raw()) : static_cast<uint64_t>(key.detail);
    said.push_back({way(key.source), static_cast<uint64_t>(key.kind) << 1 | (predicate.same ? 1 : 0), detail, what});
  }
  return said;
}

}  // namespace frametap
