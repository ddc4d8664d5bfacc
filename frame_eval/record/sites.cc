#include "frame_eval/record/sites.h"

#include <vector>

#include "frame_eval/record/break_words.h"
#include "frame_eval/record/objects/module_paths.h"
#include "frame_eval/record/trace.h"
#include "guards/objects/well_known_objects.h"

namespace frametap {

const Position& PositionOf(Trace& trace, PyCodeObject* code, int offset) {
  const auto [it, is_new] = trace.sites.positions.try_emplace({code, offset});
  if (is_new) it->second = trace.sites.tables.try_emplace(code, code).first->second.At(offset);
  return it->second;
}

SharedText ClassName(Trace& trace, PyTypeObject* type) {
  SharedText& name = trace.sites.class_names[type];
  if (name.empty()) name = type->tp_name;
  return name;
}

// May run without Python's lock, as PlaceOf may. If a recording begins at the captured function itself, there is
// nothing outside: sources give all paths.
PlaceId PlaceOutside(Trace& trace) {
  if (trace.sites.outside) return *trace.sites.outside;
  trace.sites.outside = kNowhere;
  const FrameState& base = *trace.frames.inlined[0];
  if (!trace.entry.began_at_break && NoteOf(base).caller == nullptr) return kNowhere;
  std::vector<PyObject*> modules;
  for (const FrameState* f = &base; f != nullptr; f = NoteOf(*f).caller) {
    trace.sites.outermost = f;
    if (f->code != Objects().module_call_code) continue;
    PyObject* const self = f->objects[0];  // a cell, once the frame has begun: closures in it read it
    PyObject* const module = self != nullptr && PyCell_Check(self) ? PyCell_GET(self) : self;
    if (module != nullptr) modules.push_back(module);
  }
  for (auto module = modules.rbegin(); module != modules.rend(); ++module) {
    trace.sites.outside =
        trace.sites.places.AddOutside(*trace.sites.outside, {SourceId(), ClassName(trace, Py_TYPE(*module)), *module});
  }
  return *trace.sites.outside;
}

void NamePaths(Trace& trace) {
  if (trace.sites.outermost == nullptr) return;
  const ModulePaths paths(*trace.sites.outermost);
  const size_t sources = trace.guards.mark().sources;
  trace.sites.places.NamePaths([&](const Places::Module& module) -> std::optional<SharedText> {
    if (module.outside != nullptr) return paths.Of(module.outside);
    if (!module.source.valid() || module.source.raw() >= sources) return std::nullopt;
    return paths.Of(trace.guards.seen(module.source));
  });
}

PlaceId PlaceOf(Trace& trace, size_t frame) {
  const FrameState& f = *trace.frames.inlined[frame];
  FrameNote& note = NoteOf(f);
  if (note.place == kNowhere || note.place_offset != f.offset) {
    const PlaceId caller = frame == 0 ? PlaceOutside(trace) : PlaceOf(trace, frame - 1);
    note.place = trace.sites.places.Add(caller, f.code, f.offset, note.module ? &*note.module : nullptr);
    note.place_offset = f.offset;
  }
  return note.place;
}

const Position& BreakPosition(Trace& trace) {
  const FrameState& f = *trace.frames.inlined[FrameOfUser(trace.frames.inlined)];
  return PositionOf(trace, f.code, f.offset);
}

}  // namespace frametap
