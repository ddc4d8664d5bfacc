#include "frame_eval/record/trace.h"

#include <algorithm>

#include "frame_eval/cpython/exception_table.h"
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "guards/objects/torch_tensor.h"
#include "ir/dcheck.h"
#include "ir/graph/eager_state.h"

namespace frametap {

namespace {

// A backend that takes sizes for constants gets the first ones as such, and other numbers until one has changed, as
// torch.compile does it.
OpenNumbers NumbersOpenIn(SegmentCache& store, bool has_marks) {
  const Dynamic dynamic = store.options().dynamic;
  if (dynamic == Dynamic::kNever) return OpenNumbers::kNone;
  if (dynamic == Dynamic::kAlways || !store.backend().assumptions().static_sizes) return OpenNumbers::kAll;
  if (store.has_other_sizes() || has_marks) return OpenNumbers::kAll;
  return store.has_changing_numbers() ? OpenNumbers::kChanging : OpenNumbers::kNone;
}

// Those of *args and **kwargs count too, if they are not many.
bool HasMarkedArgument(const FrameState& base) {
  constexpr Py_ssize_t kMost = 64;
  const auto is_marked = [](PyObject* object) { return IsTensor(object) && HasSizeMarks(object); };
  for (int i = 0; i < base.nlocalsplus + base.depth; ++i) {
    PyObject* const object = base.objects[i];
    if (object == nullptr) continue;
    if (is_marked(object)) return true;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_CheckExact(object) && PyDict_GET_SIZE(object) <= kMost && PyDict_Next(object, &at, &key, &value)) {
      if (is_marked(value)) return true;
    }
    while (PyTuple_CheckExact(object) && at < std::min(kMost, PyTuple_GET_SIZE(object))) {
      if (is_marked(PyTuple_GET_ITEM(object, at++))) return true;
    }
  }
  return false;
}

}  // namespace

Entry::Entry(SegmentCache& store, const FrameState& base, const WorldState& world)
    : code(Ref<>::New(reinterpret_cast<PyObject*>(base.code))),
      globals(Ref<>::New(base.function->func_globals)),
      began_at_break(base.offset > StartOffset(base.code)),
      state(CurrentEagerState()),
      backends(world.backends),
      in_anomaly_mode(world.anomaly_mode),
      speculates(store.speculates() && !store.options().by_identity),
      has_marks(store.options().dynamic != Dynamic::kNever && HasMarkedArgument(base)) {
  ExceptionHandler handler;
  is_handled = FindHandler(base.code, base.offset / 2, &handler);
}

Trace::Trace(SegmentCache& store, FrameState& base, const WorldState& world)
    : store(store),
      entry(store, base, world),
      guards(world),
      thread(entry.state, entry.backends),
      numbers(NumbersOpenIn(store, entry.has_marks)),
      repeated_calls(RepeatedCalls::For(*this)) {
  aten.predicts_sizes = store.backend().assumptions().static_sizes;
  aten.place = [this] { return PlaceOf(*this, frames.inlined.size() - 1); };
  const Position at = PositionOf(*this, base.code, base.offset);
  entry.function = at.function;
  entry.text = entry.began_at_break ? std::to_string(at.line) + ":" + std::to_string(at.col) : "start";
  frames.inlined.push_back(&base);
}

Trace::~Trace() { aten.Stop(); }

bool HasChanged(const Trace& trace, SourceId place) {
  const SegmentCache& store = trace.store;
  return store.has_changing_numbers() && store.MayBeChanging(trace.guards.NameHash(place)) &&
         store.IsChanging(trace.guards.Name(place));
}

bool HasChangedInLength(const Trace& trace, SourceId container) {
  const SegmentCache& store = trace.store;
  return store.has_changing_numbers() && store.MayBeChanging(LengthNameHash(trace.guards.NameHash(container))) &&
         store.IsChanging(LengthName(trace.guards.Name(container)));
}

void Rewind(Trace& trace, const Mark& mark) {
  FT_DCHECK(mark.effects <= trace.effects.Now() && mark.decisions <= trace.decisions.size());  // effects/E1
  trace.aten.Rewind(mark.aten);
  trace.guards.Rewind(mark.guards);
  trace.effects.Rewind(mark.effects);
  trace.decisions.resize(mark.decisions);
  trace.thread.Rewind(mark.thread);
  trace.numbers.sizes_read.clear();
  trace.numbers.strides_read.clear();
}

}  // namespace frametap
