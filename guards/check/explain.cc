// Guards in words, and a miss in words: every predicate in read order, each path followed again.
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "guards/check/explain.h"
#include "guards/kinds/tensor.h"
#include "guards/kinds/world.h"
#include "guards/objects/value.h"

namespace frametap {

namespace {

std::vector<std::string> NamesOf(const std::vector<SourceId>& sources, const SourceTable& table) {
  std::vector<std::string> names;
  for (const SourceId source : sources) names.push_back(table.Name(source));
  return names;
}

class Explorer {
 public:
  Explorer(const FrozenGuards& guards, const Roots& roots)
      : guards_(guards), roots_(roots), found_(guards.steps.size()), state_(guards.steps.size()) {}

  // Made when it is asked for: few misses name a second source, and the table costs as much as a recording.
  const SourceTable& names() const {
    if (!names_) names_ = TableOf(guards_.steps);
    return *names_;
  }

  // Returns false if `report` has the place where the path ends.
  bool Reach(SourceId id, Reached* out, MissReport* report) {
    // A path may have as many steps as a linked list has nodes: no recursion.
    std::vector<SourceId> steps;
    for (SourceId at = id; at.valid() && state_[at.raw()] == kUnknown; at = guards_.steps[at.raw()].parent) {
      steps.push_back(at);
    }
    for (; !steps.empty(); steps.pop_back()) {
      const uint32_t i = steps.back().raw();
      const Step& step = guards_.steps[i];
      PyObject* const parent = step.parent.valid() ? found_[step.parent.raw()].object : nullptr;
      if (!Follow(step, parent, roots_, &found_[i])) {
        report->source = NameOf(guards_.steps, steps.back());
        report->want = "present";
        report->got = "missing";
        report->why = WhyNotFollowed(step, parent, roots_);
        return false;
      }
      state_[i] = kReached;
    }
    *out = found_[id.raw()];
    return true;
  }

  bool Fails(const GuardEntry& p, MissReport* report) {
    if (!Misses(p, report)) return false;
    report->line = PositionOf(p.why);
    return true;
  }

 private:
  enum State : uint8_t { kUnknown, kReached };

  bool Misses(const GuardEntry& p, MissReport* report) {
    Reached at, other;
    if (!Reach(p.source, &at, report)) return true;
    if (p.related != nullptr) {
      const RelatedNumbers& related = *p.related;
      std::vector<Reached> numbers(related.numbers.size());
      std::vector<const Reached*> inputs;
      for (size_t i = 0; i < numbers.size(); ++i) {
        if (!Reach(related.numbers[i], &numbers[i], report)) return true;
        inputs.push_back(&numbers[i]);
      }
      if (related.relation->Holds(inputs.data())) return false;
      report->want = ToString(WantOf(p, names()), names());
      report->got = related.relation->Got(inputs.data(), NamesOf(related.numbers, names()));
      report->why = absl::StrCat("not ", report->want);
    } else if (p.guard == nullptr) {
      if (!Reach(p.other, &other, report)) return true;
      if ((at.object == other.object) == p.same) return false;
      report->want = ToString(WantOf(p, names()), names());
      report->got = p.same ? "another object" : "the same object";
      report->why = absl::StrCat("it is ", p.same ? "not " : "", names().Name(p.other));
    } else {
      if (p.guard->Holds(at)) return false;
      report->want = ToString(p.guard->Want());
      report->got = p.guard->Got(at);
      report->why = Why(*p.guard, p.source, at);
      const bool is_number = at.object == nullptr || PyLong_CheckExact(at.object) || PyFloat_CheckExact(at.object);
      report->of_number = p.guard->kind() == Guard::Kind::kValue && is_number;
      report->of_size = report->of_number && at.object == nullptr;
      if (p.guard->kind() == Guard::Kind::kTensor && at.object != nullptr) {
        report->of_size = static_cast<const TensorGuard&>(*p.guard).basics().Hold(at.object);
      }
    }
    report->source = NameOf(guards_.steps, p.source);
    // Another object is as good a reason as another number to leave open next time what is in this place.
    if (p.guard != nullptr && p.guard->kind() == Guard::Kind::kIdentity) {
      report->other_places.push_back(report->source);
    } else if (p.guard != nullptr && p.guard->kind() == Guard::Kind::kLength) {
      report->other_places.push_back(LengthName(report->source));
    }
    if (SaysTheSame(report->want, report->got)) absl::StrAppend(&report->got, " (", report->why, ")");
    return true;
  }

  // Two objects of one name: "is C" was wanted, and another C is there.
  static bool SaysTheSame(absl::string_view want, absl::string_view got) {
    absl::ConsumePrefix(&want, "is ");
    absl::ConsumeSuffix(&want, " watched");
    return want == got;
  }

  static bool IsAboutTheValue(Guard::Kind kind) {
    using Kind = Guard::Kind;
    return kind == Kind::kValue || kind == Kind::kElements || kind == Kind::kMember || kind == Kind::kAddressInSet ||
           kind == Kind::kLayout;
  }

  // The values of attributes and keys are printed with their name: "attribute 'training' is True, was False".
  std::string Why(const Guard& guard, SourceId id, const Reached& at) const {
    std::string why = guard.Why(at);
    const Step& step = guards_.steps[id.raw()];
    if (guard.kind() == Guard::Kind::kLength && step.key.object) {
      const std::string name = ShortRepr(step.key.object.get());
      if (name.size() > 2 && PyUnicode_CheckExact(step.key.object.get())) {
        return absl::StrCat(name.substr(1, name.size() - 2), ": ", why);
      }
    }
    if (!IsAboutTheValue(guard.kind()) || at.object == nullptr) return why;
    switch (step.accessor) {
      case Accessor::kAttr:
      case Accessor::kModuleAttr:
        return absl::StrCat("attribute ", ShortRepr(step.key.object.get()), " ", why);
      case Accessor::kKey:
        return absl::StrCat("key ", ShortRepr(step.key.object.get()), " ", why);
      case Accessor::kGlobal:
        return absl::StrCat("global ", ShortRepr(step.key.object.get()), " ", why);
      case Accessor::kLocal:
      case Accessor::kCell:
        return absl::StrCat("variable '", step.text, "' ", why);
      case Accessor::kStack:
        return absl::StrCat("a value from before this segment ", why);
      default:
        return absl::StrCat(NameOf(guards_.steps, id), " ", why);
    }
  }

  const FrozenGuards& guards_;
  const Roots& roots_;
  mutable std::optional<SourceTable> names_;
  std::vector<Reached> found_;
  std::vector<State> state_;
};

}  // namespace

Predicate WantOf(const GuardEntry& entry, const SourceTable& table) {
  using Form = Predicate::Form;
  if (entry.guard != nullptr) return entry.guard->Want();
  if (const RelatedNumbers* related = entry.related.get(); related != nullptr) {
    return {Form::kNumbers, related->relation->Want(NamesOf(related->numbers, table))};
  }
  // In a text, a path that begins at a known object is the name of an object.
  if (table[table.root(entry.other)].accessor == Accessor::kPinned) {
    return {entry.same ? Form::kIs : Form::kIsNot, table.Name(entry.other)};
  }
  return {entry.same ? Form::kIsSource : Form::kIsNotSource, entry.other};
}

std::vector<Reached> ReachWanted(const FrozenGuards& guards, const Roots& roots) {
  Explorer explorer(guards, roots);
  std::vector<Reached> found(guards.wanted.size());
  MissReport unused;
  for (size_t i = 0; i < found.size(); ++i) {
    if (!explorer.Reach(guards.wanted[i], &found[i], &unused)) found[i] = Reached();
  }
  return found;
}

std::vector<GuardLine> LinesOf(const FrozenGuards& guards, const std::vector<std::pair<SourceId, ValueId>>& inputs) {
  const SourceTable names = TableOf(guards.steps);
  absl::flat_hash_map<uint32_t, ValueId> unbound;
  for (const auto& [source, value] : inputs) unbound.try_emplace(source.raw(), value);
  std::vector<GuardLine> lines;
  lines.reserve(guards.predicates.size() + inputs.size());
  for (const GuardEntry& p : guards.predicates) {
    GuardLine line;
    line.source = p.source;
    line.predicate = WantOf(p, names);
    line.why = PositionOf(p.why);
    if (auto it = unbound.find(p.source.raw()); it != unbound.end()) {
      line.binds = it->second;
      unbound.erase(it);
    }
    lines.push_back(std::move(line));
  }
  for (const auto& [source, value] : inputs) {
    auto it = unbound.find(source.raw());
    if (it == unbound.end() || it->second != value) continue;
    GuardLine line;
    line.source = source;
    line.binds = value;
    lines.push_back(std::move(line));
    unbound.erase(it);
  }
  return lines;
}

std::vector<SizeSymbol> OpenSizesOf(const FrozenGuards& guards,
                                    const std::vector<std::pair<SourceId, ValueId>>& inputs) {
  using Size = std::pair<SourceId, size_t>;  // of which source, which dimension
  const auto size_at = [&](SourceId id) -> std::optional<Size> {
    const Step& step = guards.steps[id.raw()];
    if (step.accessor != Accessor::kSize) return std::nullopt;
    return Size(step.parent, static_cast<size_t>(step.index));
  };
  absl::flat_hash_set<Size> fixed;
  absl::flat_hash_map<SourceId, const TensorGuard*> tensors;
  for (const GuardEntry& p : guards.predicates) {
    if (p.guard == nullptr) continue;
    if (p.guard->kind() == Guard::Kind::kTensor) tensors[p.source] = static_cast<const TensorGuard*>(p.guard);
    const std::optional<Size> size = size_at(p.source);
    if (size && p.guard->kind() == Guard::Kind::kValue) fixed.insert(*size);
  }
  absl::flat_hash_map<Size, ValueId> numbers;
  for (const auto& [source, value] : inputs) {
    if (const std::optional<Size> size = size_at(source)) numbers.emplace(*size, value);
  }
  std::vector<SizeSymbol> open;
  for (const auto& [source, value] : inputs) {
    const auto tensor = tensors.find(source);
    if (tensor == tensors.end() || guards.steps[source.raw()].accessor == Accessor::kModuleAttr) continue;
    for (size_t dim = 0; dim < tensor->second->rank(); ++dim) {
      const Size size(source, dim);
      if (tensor->second->FixesSize(dim) || fixed.contains(size)) continue;
      const auto number = numbers.find(size);
      open.push_back({value, dim, number != numbers.end() ? number->second : ValueId()});
    }
  }
  return open;
}

MissReport ExplainMiss(const FrozenGuards& guards, const Roots& roots) {
  MissReport report;
  if (DescribeStateMiss(guards.world, WorldState::Now(), &report)) return report;
  Explorer explorer(guards, roots);
  bool found = false;
  for (const GuardEntry& p : guards.predicates) {
    MissReport next;
    if (!explorer.Fails(p, &next)) continue;
    // No guard is below a number, so those after it may be evaluated.
    if (!found) {
      report = std::move(next);
      if (!report.of_number) return report;
      found = true;
    } else if (next.of_number) {
      if (!next.of_size) report.other_places.push_back(std::move(next.source));
    } else {
      return report;
    }
  }
  if (found) return report;
  for (const SourceId id : guards.wanted) {
    Reached unused;
    if (!explorer.Reach(id, &unused, &report)) return report;
  }
  return MissReport();
}

}  // namespace frametap
