#include "frame_eval/segment/segment.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "backends/holds_objects.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/segment/event_log.h"
#include "ir/dcheck.h"

namespace frametap {
namespace {

// After their sources, which are beside them: `x`, `weight`, `weight.1`.
void NameInputs(const std::vector<SourceId>& input_sources, const SourceTable& sources, Graph* graph) {
  absl::flat_hash_set<std::string> taken;
  absl::flat_hash_map<std::string, int> counts;
  for (const auto& [id, tensor] : graph->constants) taken.insert(graph->value(id).name);
  for (size_t i = 0; i < input_sources.size(); ++i) {
    const Source& source = sources[input_sources[i]];
    const auto parent_text = [&] { return sources[source.parent].text; };
    std::string name;
    if (source.accessor == Accessor::kStack) name = "stack";
    if (source.accessor == Accessor::kNext) name = "item";
    if (source.accessor == Accessor::kCount) name = "count";
    if (source.accessor == Accessor::kAddress) name = "id";
    const bool is_size = source.accessor == Accessor::kSize;
    const bool is_item = source.accessor == Accessor::kItem;
    for (char c : is_size || is_item ? parent_text() : source.text) {
      if (isalnum(static_cast<unsigned char>(c)) || c == '_') name += c;
    }
    if (is_item) name += std::to_string(source.index);
    if (is_size) name += "_size" + std::to_string(source.index);
    if (name.empty() || isdigit(static_cast<unsigned char>(name[0]))) name = "in" + name;
    std::string& given = graph->value(graph->inputs[i]).name;
    do {
      const int count = counts[name]++;
      given = count == 0 ? name : absl::StrCat(name, ".", count);
    } while (!taken.insert(given).second);
  }
}

}  // namespace

bool Segment::ErrorsAreHandled() const {
  if (shown_) return errors_are_handled_;
  return std::any_of(node_places.begin(), node_places.end(), [this](PlaceId at) { return places.IsHandled(at); });
}

const SegmentIr& Segment::Shown() {
  FT_DCHECK(PyGILState_Check());  // X1
  if (!shown_) {
    errors_are_handled_ = ErrorsAreHandled();
    std::vector<std::pair<SourceId, ValueId>> binds;
    for (size_t i = 0; i < input_sources.size(); ++i) binds.emplace_back(input_sources[i], ir.graph.inputs[i]);
    ir.sources = guards->Sources();
    ir.guards = guards->Lines(binds);
    ir.graph.symbols = guards->OpenSizes(binds);
    NameInputs(input_sources, ir.sources, &ir.graph);
    NameInputs(ir.decisions.sources, ir.sources, &ir.decisions.graph);
    ir.graph.NameResults();
    ir.decisions.graph.NameResults();
    places.Tell(node_places, ir.sources, &ir.graph);
    places.Tell(decision_places, ir.sources, &ir.decisions.graph);
    places = Places();
    shown_ = true;
  }
  return ir;
}

EntryPoint* SegmentCache::Find(PyCodeObject* code, int offset) {
  auto it = entries_.find(Key(code, offset));
  return it == entries_.end() ? nullptr : it->second.get();
}

EntryPoint& SegmentCache::FindOrAdd(PyCodeObject* code, int offset) {
  std::unique_ptr<EntryPoint>& entry = entries_[Key(code, offset)];
  if (!entry) {
    entry = std::make_unique<EntryPoint>();
    codes_.try_emplace(code, Ref<>::New(reinterpret_cast<PyObject*>(code)));
  }
  return *entry;
}

// Whether the lists that stand beside others are as long as these, and the end is one of a segment.
static bool IsConsistent(const Segment& segment) {
  const SegmentIr& ir = segment.ir;
  const size_t inputs = ir.graph.inputs.size();
  return segment.effect_names.size() == ir.effects.size() && segment.input_sources.size() == inputs &&
         segment.weights.size() == inputs && ir.decisions.sources.size() == ir.decisions.graph.inputs.size() &&
         ir.decisions.outcomes.size() == ir.decisions.graph.outputs.size() &&
         segment.frame_codes.size() == ir.exit.frames.size() &&
         (ir.exit.kind != Exit::Kind::kResume || RowOf(ir.exit.reason).is_break);
}

void SegmentCache::Publish(std::shared_ptr<Segment> segment) {
  FT_DCHECK(IsConsistent(*segment));
  EntryPoint& entry = FindOrAdd(reinterpret_cast<PyCodeObject*>(segment->code.get()), segment->entry_offset);
  order_.push_back(segment);
  entry.Add(std::move(segment));
}

void SegmentCache::MoveToFront(PyCodeObject* code, int offset, const Segment& segment, const Roots& roots) {
  if (EntryPoint* entry = Find(code, offset)) entry->MoveToFront(&segment, roots);
}

void SegmentCache::Hit(Segment& segment) {
  ++segment.hits;
  ++hits;
  if (IsLogged(LogEntry::Kind::kHit)) [[unlikely]]
    WriteSegmentLog(LogEntry::Kind::kHit, segment);
}

void SegmentCache::LeftAlone(Reason reason, PyCodeObject* code, int offset) {
  const ReasonRow& row = RowOf(reason);
  if (!FirstTold(row.name)) return;
  const Position at = PositionAt(code, offset);
  Log({LogEntry::Kind::kAbort, at.function, row.name, row.text, row.advice, at, {}});
}

void SegmentCache::NoteByIdentity(PyObject* cached) {
  Ref<> weak = Ref<>::Steal(PyWeakref_NewRef(cached, nullptr));
  PyErr_Clear();
  if (weak) by_identity_.insert_or_assign(cached, std::move(weak));
}

bool SegmentCache::IsByIdentity(PyObject* cached) const {
  const auto known = by_identity_.find(cached);
  return known != by_identity_.end() && PyWeakref_GET_OBJECT(known->second.get()) == cached;
}

void SegmentCache::Reset() {
  // Destructors may run Python code that comes back here: empty the members first.
  auto entries = std::move(entries_);
  auto codes = std::move(codes_);
  auto order = std::move(order_);
  entries_.clear();
  codes_.clear();
  order_.clear();
  names_.clear();
  log_.clear();
  told_.clear();
  recordings = hits = misses = faults = 0;
  recording_seconds = 0;
}

void SegmentCache::Log(LogEntry entry) {
  if (entry.kind != LogEntry::Kind::kRecorded && IsLogged(entry.kind)) WriteLog(entry);
  // Where the log is full, what calls repeat (misses, recordings given up) is counted only: it must not push out what
  // was captured and where it breaks.
  if (log_.size() == kMaxLog) {
    if (entry.kind == LogEntry::Kind::kMiss || entry.kind == LogEntry::Kind::kAbort ||
        entry.kind == LogEntry::Kind::kFault) {
      return;
    }
    log_.pop_front();
  }
  log_.push_back(std::move(entry));
}

std::string SegmentCache::NextName(const std::string& function) {
  return function + "#" + std::to_string(names_[function]++);
}

namespace {

// Visits the objects of a backend or an executable that `owners` hold. With another owner it is reached from outside.
template <typename T>
int VisitObjects(const std::shared_ptr<T>& held, size_t owners, visitproc visit, void* arg) {
  if (held == nullptr || static_cast<size_t>(held.use_count()) > owners) return 0;
  const auto* holder = dynamic_cast<const HoldsObjects*>(held.get());
  return holder == nullptr ? 0 : holder->Traverse(visit, arg);
}

}  // namespace

int SegmentCache::Traverse(visitproc visit, void* arg) const {
  Py_VISIT(function_.get());
  if (const int stop = VisitObjects(backend_, 1, visit, arg)) return stop;
  for (const auto& segment : order_) {
    // A segment that is being replayed is held there too and must not be taken for garbage.
    if (segment.use_count() > 2) continue;
    for (const Ref<>& constant : segment->constants) Py_VISIT(constant.get());
    Py_VISIT(segment->globals.get());
    for (const Segment::Caller& caller : segment->callers) Py_VISIT(caller.globals.get());
    if (const int stop = segment->guards->Traverse(visit, arg)) return stop;
    const size_t owners = 1 + segment->free_rows.size();  // a row keeps the executable that its weights are for
    if (const int stop = VisitObjects(segment->executable, owners, visit, arg)) return stop;
  }
  return 0;
}

}  // namespace frametap
