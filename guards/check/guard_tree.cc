// Checking. The registers filled from a watched dict are right while it is the same dict with the same version. All facts
// that follow only from the objects in them are right as well (guard/P2).
//   - Registers and remembered dicts are borrowed. A register is trusted only after the view or the step that fills it
//     has been confirmed in this very check, so its object is alive. A remembered dict is compared, not read
//     (watch/W1). Hence no argument is kept alive, and a model may die.
//   - The first check makes the tree. A segment that is never entered again needs none, and the first call saves the time.
//   - A successful check is turned into words (fast_check.h), which the next check compares instead. A check that finds
//     a word changed is done properly.
#include "guards/check/guard_tree.h"

#include <optional>

#include "guards/check/check_plan.h"
#include "guards/check/explain.h"
#include "guards/check/fast_check.h"
#include "guards/collect/frozen_guards.h"

namespace frametap {

namespace {

class Tree final : public GuardTree {
 public:
  explicit Tree(FrozenGuards guards) : frozen_(std::move(guards)) {}

  Verdict Check(const Roots& roots) override;
  MissReport Explain(const Roots& roots) override;
  std::string Recheck(const Roots& roots, Verdict verdict) override;
  size_t predicate_count() const override { return frozen_.predicates.size(); }
  const FrozenGuards& frozen() const override { return frozen_; }
  std::vector<GuardLine> Lines(const std::vector<std::pair<SourceId, ValueId>>& inputs) const override {
    return LinesOf(frozen_, inputs);
  }
  std::vector<SizeSymbol> OpenSizes(const std::vector<std::pair<SourceId, ValueId>>& inputs) const override {
    return OpenSizesOf(frozen_, inputs);
  }
  SourceTable Sources() const override { return TableOf(frozen_.steps); }
  bool IsNumber(SourceId id) const override { return frametap::IsNumber(frozen_.steps[id.raw()].accessor); }
  uint64_t dict_reads() const override { return planted_ ? planted_->dict_reads : 0; }
  uint64_t standing() const override { return standing_.number(); }
  bool Stands(SourceId id) const override { return standing_.Holds(planted_->node_of_source[id.raw()]); }
  int Traverse(visitproc visit, void* arg) const override;
  Reached At(SourceId id) const override {
    const int32_t node = planted_->node_of_source[id.raw()];
    return node != kNoNode ? planted_->registers[node] : Reached();
  }

 private:
  bool Run(const Roots& roots);

  FrozenGuards frozen_;
  std::optional<CheckPlan> planted_;
  FastCheck standing_;
};

Verdict Tree::Check(const Roots& roots) {
  const auto run = [&] {
    try {
      if (!planted_) [[unlikely]]
        planted_.emplace(frozen_);
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
  if (!(WorldState::Now() == frozen_.world) || !planted_->TypesHold()) return false;
  switch (standing_.Check(*planted_, roots)) {
    case FastCheck::Answer::kHit:
      return true;
    case FastCheck::Answer::kMiss:
      return false;
    case FastCheck::Answer::kUnknown:
      break;
  }
  if (!planted_->Holds(roots)) return false;
  standing_.Held(*planted_);
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
    const std::vector<Reached> found = ReachWanted(frozen_, roots);
    for (size_t i = 0; i < found.size(); ++i) {
      const SourceId id = frozen_.wanted[i];
      if (!same(found[i], At(id))) return NameOf(frozen_.steps, id) + " is not what is there";
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
  if (planted_) {
    for (const View& view : planted_->views) {
      for (const KeyRead& read : view.reads) Py_VISIT(read.key.object.get());
    }
  }
  for (const GuardEntry& p : frozen_.predicates) {
    const Guard* const guard = p.own_guard();
    if (guard == nullptr) continue;
    if (const int stop = guard->Traverse(visit, arg); stop != 0) return stop;
  }
  return 0;
}

}  // namespace

std::unique_ptr<GuardTree> PlantTree(FrozenGuards guards) { return std::make_unique<Tree>(std::move(guards)); }

}  // namespace frametap
