// The part of Session at an entry point: a segment is looked up and replayed, and frames take what its exit leaves.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/replay/cached_entries.h"
#include "frame_eval/replay/reify.h"
#include "frame_eval/replay/run_graph.h"
#include "frame_eval/segment/error_classes.h"
#include "frame_eval/session/self_check.h"
#include "frame_eval/session/session_parts.h"

namespace frametap {
namespace {

FrameRestore Returning(Ref<> result) {
  FrameRestore restore;
  restore.leaves = true;
  restore.result = std::move(result);
  return restore;
}

Roots RootsOf(const FrameState& f) {
  Roots roots;
  roots.localsplus = f.objects;
  roots.nlocalsplus = f.nlocalsplus;
  roots.stack = f.objects + f.nlocalsplus;
  roots.depth = f.depth;
  roots.function = reinterpret_cast<PyObject*>(f.function);
  return roots;
}

// The frames whose callers are what sources of an entry point's segments may lead to.
class RootChain {
 public:
  RootChain(const FrameState& f, const EntryPoint& entry) {
    frames_.push_back(&f);
    while (frames_.size() <= entry.callers()) {
      const FrameState* caller = NoteOf(*frames_.back()).caller;
      if (caller == nullptr || !MayGoOnIn(*caller, *frames_.back())) break;
      frames_.push_back(caller);
    }
    for (const FrameState* frame : frames_) roots_.push_back(RootsOf(*frame));
    for (size_t i = 1; i < roots_.size(); ++i) roots_[i - 1].caller = &roots_[i];
  }
  const Roots& roots() const { return roots_[0]; }
  bool Fits(const Segment& segment) const { return FirstMisfit(segment) == segment.callers.size(); }
  // In words, where the segment does not fit.
  MissReport Explain(const Segment& segment) const {
    const size_t i = FirstMisfit(segment);
    const Segment::Caller& caller = segment.callers[i];
    const Position want = PositionAt(reinterpret_cast<PyCodeObject*>(caller.code.get()), caller.offset);
    MissReport miss{"caller", "called by " + ToString(want), "called in another way", "", {}};
    if (i + 1 < frames_.size()) {
      miss.got = "called by " + ToString(PositionAt(frames_[i + 1]->code, frames_[i + 1]->offset));
    }
    miss.why = "the graph continues in the function that called this one, and this call has another caller";
    return miss;
  }

 private:
  size_t FirstMisfit(const Segment& segment) const {
    for (size_t i = 0; i < segment.callers.size(); ++i) {
      const Segment::Caller& caller = segment.callers[i];
      if (i + 1 >= frames_.size()) return i;
      const FrameState& frame = *frames_[i + 1];
      if (reinterpret_cast<PyObject*>(frame.code) != caller.code.get() || frame.offset != caller.offset ||
          frame.function->func_globals != caller.globals.get()) {
        return i;
      }
    }
    return segment.callers.size();
  }

  absl::InlinedVector<const FrameState*, 4> frames_;
  absl::InlinedVector<Roots, 4> roots_;
};

MissReport WhyNot(Segment& segment, const RootChain& chain) {
  if (!chain.Fits(segment)) return chain.Explain(segment);
  if (reinterpret_cast<PyFunctionObject*>(chain.roots().function)->func_globals != segment.globals.get()) {
    return {"G", "the globals that it was recorded with", "others", "another function of this code runs", {}};
  }
  if (segment.refuted) {
    return {"the graph", "contiguous() and the like gave the tensor itself, or a copy", "the other of the two",
            "a tensor made on the way has other strides or sizes", segment.ir.exit.at};
  }
  MissReport miss = segment.guards->Explain(chain.roots());
  if (miss.source.empty() && segment.guards->Check(chain.roots()) == Verdict::kHit && CachesAgree(segment, &miss))
    DecisionsHold(segment, &miss);
  return miss;
}

// Why the latest segment could not be used. Numbers, sizes and objects that kept others from it are noted as well: the
// latest may be for tensors of another kind.
MissReport NoteMisses(const EntryPoint& entry, const RootChain& chain, SegmentCache* store) {
  constexpr size_t kMost = 8;
  MissReport of_latest;
  for (size_t i = 0; i < std::min(kMost, entry.size()); ++i) {
    MissReport miss = WhyNot(*entry.segments()[i], chain);
    if (miss.of_number) store->NoteChanging(miss.source);
    for (const std::string& place : miss.other_places) store->NoteChanging(place);
    if (miss.of_size) store->NoteOtherSizes();
    if (i == 0) of_latest = std::move(miss);
  }
  return of_latest;
}

bool RecordingIsForbidden() {
  PyObject* value = nullptr;
  if (Errors().recording_forbidden == nullptr) return false;
  if (PyContextVar_Get(Errors().recording_forbidden, nullptr, &value) < 0) PyErr_Clear();
  const Ref<> held = Ref<>::Steal(value);
  return held.get() == Py_True;
}

void LogLimit(SegmentCache& store, const EntryPoint& entry, const Position& at) {
  store.Log({LogEntry::Kind::kAbort,
             at.function,
             "segment_limit",
             "this entry point has " + std::to_string(entry.size()) + " segments, the limit",
             "raise options={'segment_limit': n}, or make what differs a tensor",
             at,
             {}});
}

}  // namespace

Tracer::Go Session::RefuseToRecord(const FrameState& f, const char* reason, const std::string& segment,
                                   const MissReport& miss) {
  refusal_.Recording(f, reason, segment, miss);
  refusal_.Raise();
  return Go::kRaise;
}

Tracer::Go Session::EntryAt(FrameState& f, FrameNote& note) {
  if (fault_observer != nullptr) [[unlikely]]
    fault_observer->BeforeLookUp(*store_);
  AllocZone zone;
  if (f.depth > 0) {
    if (PyObject* const pushed = f.objects[f.nlocalsplus + f.depth - 1]; pushed != nullptr) made_classes_.Meet(pushed);
  }
  EntryPoint* entry = store_->Find(f.code, f.offset);
  if (entry != nullptr) {
    const RootChain chain(f, *entry);
    const Roots& roots = chain.roots();
    const EntryPoint::Candidates candidates = entry->LookUp(roots);
    for (const std::shared_ptr<Segment>& segment : candidates) {
      if (segment->refuted) store_->StopSpeculating();
      if (!chain.Fits(*segment)) continue;
      const Verdict verdict = Fits(*segment, roots);
      if (verdict == Verdict::kError) return Go::kRaise;
      if (verdict != Verdict::kHit) continue;
      if (segment != candidates.front()) store_->MoveToFront(f.code, f.offset, *segment, roots);
      return Replay(f, note, segment);
    }
    entry = &store_->FindOrAdd(f.code, f.offset);  // the checks may have let other threads run
    if (entry->empty() && (entry->wait_offset >= 0 || entry->denials >= SegmentCache::kMaxDenials)) {
      note.entry.wait_offset = entry->wait_offset;
      return Go::kOn;
    }
    bool is_full = static_cast<int>(entry->size()) >= store_->options().segment_limit;
    if (is_full && store_->options().answers_by_replay && !RecordingIsForbidden()) {
      LogLimit(*store_, *entry, PositionAt(f.code, f.offset));
      store_->Reset();
      entry = &store_->FindOrAdd(f.code, f.offset);
      is_full = false;
    }
    if (is_full) {
      if (!entry->limit_told) {
        entry->limit_told = true;
        LogLimit(*store_, *entry, PositionAt(f.code, f.offset));
      }
      if (!RecordingIsForbidden()) return Go::kOn;
    }
    if (!entry->empty()) {
      OwnCode own(thread_);
      ++store_->misses;
      const std::shared_ptr<Segment> latest = entry->latest();
      const MissReport miss = NoteMisses(*entry, chain, store_.get());
      store_->Log({LogEntry::Kind::kMiss, latest->ir.name, "", "", "", miss.line, miss});
      if (RecordingIsForbidden()) return RefuseToRecord(f, is_full ? "segment_limit" : "miss", latest->ir.name, miss);
    }
  }
  if (RecordingIsForbidden()) return RefuseToRecord(f, "not_recorded", "", {});
  Begin(f, note);
  return Go::kOn;
}

Tracer::Go Session::Replay(FrameState& f, FrameNote& note, const std::shared_ptr<Segment>& shared) {
  Segment& segment = *shared;
  const Exit& exit = segment.ir.exit;
  const size_t up = segment.callers.size();
  if (exit.frames.size() > 1 && !MayCall(static_cast<int>(exit.frames.size()))) return Go::kOn;
  // A frame that is left keeps the variables that it has now. If they can be observed, it continues by itself.
  FrameState* ending = &f;
  for (size_t i = exit.kind == Exit::Kind::kReturn ? up + 1 : up; i > 0; --i, ending = NoteOf(*ending).caller) {
    if (IsHeldByOthers(*ending)) return Go::kOn;
  }
  Reifier reifier(segment);
  if (PyErr_Occurred() != nullptr) return Go::kRaise;
  std::vector<c10::IValue> outputs;
  if (const Ran ran = RunGraph(segment, &outputs); ran != Ran::kThrough) {
    if (ran == Ran::kRaised) return Go::kRaise;
    const bool is_fault = ran == Ran::kFault || ran == Ran::kBroken;
    if (is_fault && !TellFault(*store_, segment, ran == Ran::kFault)) return Go::kRaise;
    if (ran == Ran::kRefused) store_->LeftAlone(Reason::cannot_take_back, f.code, f.offset);
    if (ran == Ran::kOpRaised && suspected_frame_ == nullptr) {
      suspicion_.Take(shared);
      if (suspicion_.is_held()) suspected_frame_ = &f;
    }
    // Nothing has happened yet: plain Python raises the same exception, at the right place.
    PyErr_Clear();
    note.entry.wait_offset = -1;
    return Go::kOn;
  }
  reifier.set_outputs(std::move(outputs));
  store_->Hit(segment);
  if (!reifier.Prepare()) return Go::kRaise;
  std::vector<FrameRestore> leaving;
  for (FrameState* left = &f; leaving.size() < up; left = NoteOf(*left).caller) {
    FrameRestore& restore = leaving.emplace_back(Returning(Ref<>::New(Py_None)));
    if (left->is_generator) restore.yields = reifier.TakeYield(left->raw, &restore.content);
    restore.segment = shared;
  }
  if (exit.kind == Exit::Kind::kReturn) {
    Ref<> result = reifier.Make(exit.result);
    if (!result || !reifier.Commit()) return Go::kRaise;
    return restorer_.UnwindTo(f, std::move(leaving), Returning(std::move(result)));
  }
  FrameRestore outermost;
  for (size_t i = 0; i < exit.frames.size(); ++i) {
    FrameRestore& restore = i == 0 ? outermost : outermost.above.emplace_back();
    restore.segment = shared;
    restore.frame = i;
    if (!reifier.MakeContent(exit.frames[i], &restore.content)) return Go::kRaise;
  }
  if (!reifier.Commit()) return Go::kRaise;
  std::reverse(outermost.above.begin(), outermost.above.end());
  return restorer_.UnwindTo(f, std::move(leaving), std::move(outermost));
}

}  // namespace frametap
