#include "frame_eval/record/objects/variables.h"

#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/numbers/numbers.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/quiet.h"
#include "guards/throw_if_null.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

// The name of the module in the globals; null if there is none, or if it is not a string.
static PyObject* NameIn(PyObject* globals) {
  static PyObject* const key = InternedName("__name__");
  PyObject* const name = ItemQuietly(globals, key);
  return name != nullptr && PyUnicode_CheckExact(name) ? name : nullptr;
}

PyObject* ModuleOf(PyObject* globals) {
  PyObject* const name = NameIn(globals);
  PyObject* const module = name != nullptr ? ItemQuietly(PyImport_GetModuleDict(), name) : nullptr;
  return module != nullptr && PyModule_Check(module) && PyModule_GetDict(module) == globals ? module : nullptr;
}

// The dict of a function's globals, named after its module; the globals of the entry frame are G.
static SourceId GlobalsOf(Trace& trace, FrameState& f) {
  PyObject* globals = f.function->func_globals;
  if (globals == trace.entry.globals.get()) return trace.guards.Pinned(globals, "G");
  PyObject* const module = ModuleOf(globals);
  PyObject* const pinned = module != nullptr && PyModule_CheckExact(module) ? module : globals;
  if (const SourceId known = trace.guards.PinnedAs(pinned); known.valid()) return known;
  PyObject* const name = NameIn(globals);
  return trace.guards.Pinned(pinned, name != nullptr ? PyUnicode_AsUTF8(name) : "?");
}

PyObject* ReadGlobal(Trace& trace, FrameState& f, FrameNote& note, PyObject* name, Shadow* out) {
  PyObject* value = ItemQuietly(f.function->func_globals, name);
  if (value == nullptr) return nullptr;
  Event read;
  read.op = Op::kLoadGlobal;
  read.name = name;
  LoadGlobal(trace, f, note, read, value, out);
  return value;
}

void LoadGlobal(Trace& trace, FrameState& f, FrameNote&, const Event& e, PyObject* result, Shadow* out) {
  PyObject* globals = f.function->func_globals;
  if (Shadow* written = WrittenShadow(trace, globals, e.name)) {
    *out = *written;
    return;
  }
  PyObject* builtins = e.arg == 0 ? nullptr : f.function->func_builtins;
  RefuseMutatedDict(trace, globals);
  if (builtins != nullptr) RefuseMutatedDict(trace, builtins);
  SourceId& read = trace.variables.globals_read[{globals, builtins, e.name}];
  if (read.valid() && trace.guards.seen(read) == result) {
    if (const ObjectRecord* known = trace.repeated_calls ? trace.objects.Find(result) : nullptr)
      trace.repeated_calls->Meet(*known, true);
    if (IsScalar(result)) *out = Shadow{Shadow::Kind::kSource, read.raw()};
    return;
  }
  SourceId dict = GlobalsOf(trace, f);
  if (e.arg == 0) {
    bool by_module = PyModule_Check(trace.guards.seen(dict));
    read = trace.guards.Child(dict, by_module ? Accessor::kAttr : Accessor::kGlobal, 0, e.name, result);
  } else {
    trace.guards.Absent(dict, e.name, trace.frames.Here());
    read = trace.guards.Child(trace.guards.Pinned(builtins, "B"), Accessor::kGlobal, 0, e.name, result);
  }
  *out = FromSource(trace, read, result, true);
}

Shadow LoadDeref(Trace& trace, FrameState& f, int slot, PyObject* result) {
  if (f.shadows[slot].kind == Shadow::Kind::kCell) return trace.variables.cells[f.shadows[slot].id];
  PyObject* cell = f.objects[slot];
  MeetCell(trace, f, slot);
  ObjectRecord* known = trace.objects.Find(cell);
  if (known != nullptr && (!known->items.empty() || known->state == ObjectRecord::State::kFresh)) {
    return known->items.empty() ? Shadow() : known->items[0];
  }
  bool is_free = KindOfSlot(f.code, slot) == SlotKind::kFree;
  if (trace.frames.is_base(f)) {
    SourceId id =
        trace.guards.Cell(FrameSlot(trace.frames.level(), slot), PyUnicode_AsUTF8(SlotName(f.code, slot)), result);
    return FromSource(trace, id, result, false);
  }
  if (!is_free) throw Break{Reason::unknown_operation, "a cell"};
  // The function whose closure the cell was met in: this one may be the trace's own.
  const SourceId cell_source = known != nullptr ? known->source : CellSource(trace, f, slot);
  const SourceId closure = cell_source.valid() ? trace.guards.parent(cell_source) : SourceId();
  const SourceId function = closure.valid() ? trace.guards.parent(closure) : SourceId();
  if (!function.valid() || trace.guards.accessor(closure) != Accessor::kAttr) {
    throw Break{Reason::unknown_operation, "a cell"};
  }
  const Source step = trace.guards.Describe(cell_source);
  return FromSource(trace, trace.guards.Child(function, Accessor::kClosure, step.index, nullptr, result), result,
                    IsFixedFunction(trace, f));
}

// The variable from which super() without arguments takes its class.
void ReadClassCell(Trace& trace, FrameState& f) {
  static PyObject* const name = InternedName("__class__");
  for (int slot = 0; slot < f.nlocalsplus; ++slot) {
    PyObject* cell = f.objects[slot];
    if (KindOfSlot(f.code, slot) != SlotKind::kFree || SlotName(f.code, slot) != name) continue;
    if (PyObject* content = cell != nullptr ? PyCell_GET(cell) : nullptr; content != nullptr) {
      Specialize(trace, content, LoadDeref(trace, f, slot, content));
      GuardTypeOrIdentity(trace, content);
    }
  }
}

// Whether a frame above the entry frame runs a function that is known by identity, and so are its cells and defaults.
bool IsFixedFunction(Trace& trace, const FrameState& f) {
  const SourceId source = SourceOf(trace, reinterpret_cast<PyObject*>(f.function));
  return !source.valid() || trace.objects.pinned[source.raw()];
}

// Which of the free variables the slot is.
static int FreeIndex(const FrameState& f, int slot) {
  int index = 0;
  for (int i = 0; i < slot; ++i) index += KindOfSlot(f.code, i) == SlotKind::kFree;
  return index;
}

// A variable of a function that is known by its code only: where its cell is one that was met elsewhere, that is guarded.
void MeetCell(Trace& trace, FrameState& f, int slot) {
  if (trace.frames.is_base(f) || KindOfSlot(f.code, slot) != SlotKind::kFree) return;
  PyObject* const cell = f.objects[slot];
  if (!IsFixedFunction(trace, f)) {
    trace.variables.has_open_cells = true;
    FromSource(trace, CellSource(trace, f, slot), cell, false);
  } else if (trace.objects.Find(reinterpret_cast<PyObject*>(f.function)) == nullptr ||
             SourceOf(trace, reinterpret_cast<PyObject*>(f.function)).valid()) {
    // Which cell it is follows from the function; whether an open function has the same one does not.
    trace.variables.fixed_cells.try_emplace(
        cell, VariableRecords::FixedCell{reinterpret_cast<PyObject*>(f.function), FreeIndex(f, slot)});
    if (trace.variables.has_open_cells && SourceOf(trace, cell).valid())
      FromSource(trace, CellSource(trace, f, slot), cell, true);
  }
}

// The cell itself of a variable that existed before: functions share it. The cell of a free variable belongs to the
// function. The cell of the base frame's own variable lies in its slot.
SourceId CellSource(Trace& trace, FrameState& f, int slot) {
  if (trace.frames.is_base(f) && KindOfSlot(f.code, slot) != SlotKind::kFree) {
    return trace.guards.Local(FrameSlot(trace.frames.level(), slot), PyUnicode_AsUTF8(SlotName(f.code, slot)),
                              f.objects[slot]);
  }
  PyObject* function = reinterpret_cast<PyObject*>(f.function);
  SourceId source = trace.frames.is_base(f) ? trace.guards.Function(function, FrameSlot(trace.frames.level(), 0))
                                            : SourceOf(trace, function);
  // The trace has made it of a tuple of cells that it found on the stack.
  if (!source.valid() && trace.objects.Find(function) != nullptr) throw Break{Reason::unknown_operation, "a cell"};
  // Without a source it was reached through a class or a constant.
  if (!source.valid()) source = trace.guards.Pinned(function, PyUnicode_AsUTF8(f.function->func_name));
  return ClosureCell(trace, source, function, FreeIndex(f, slot));
}

SourceId ClosureCell(Trace& trace, SourceId source, PyObject* function, int index) {
  static PyObject* const closure_name = InternedName("__closure__");
  PyObject* const closure = PyFunction_GET_CLOSURE(function);
  const SourceId cells = trace.guards.Child(source, Accessor::kAttr, 0, closure_name, closure);
  return trace.guards.Child(cells, Accessor::kItem, index, nullptr, PyTuple_GET_ITEM(closure, index));
}

// Others may get at the cell from now on: it is known by its identity.
void ShareCell(Trace& trace, FrameState& f, int slot) {
  Shadow& shadow = f.shadows[slot];
  if (shadow.kind != Shadow::Kind::kCell) return;
  AddFresh(trace, f.objects[slot]).items.assign(1, trace.variables.cells[shadow.id]);
  shadow = Shadow();
}

void StoreDeref(Trace& trace, FrameState& f, const Event& e) {
  if (f.shadows[e.arg].kind == Shadow::Kind::kCell) return;  // After
  PyObject* cell = f.objects[e.arg];
  ObjectRecord* known = trace.objects.Find(cell);
  if (known != nullptr && known->state == ObjectRecord::State::kFresh) {
    known->items.assign(1, e.shadows[0]);
    MarkMutated(trace, cell);
    return;
  }
  if (KindOfSlot(f.code, e.arg) != SlotKind::kFree && !trace.entry.began_at_break) {
    // The variable of a frame that has just begun: nothing else has its cell. From now on the trace knows the content.
    AddFresh(trace, cell).items.assign(1, e.shadows[0]);
    trace.variables.base_cells.push_back(cell);
    return;
  }
  const bool is_fixed = !trace.frames.is_base(f) && IsFixedFunction(trace, f);
  trace.variables.has_open_cells |= !trace.frames.is_base(f) && !is_fixed;
  FromSource(trace, CellSource(trace, f, e.arg), cell, is_fixed);
  AddEffect(trace, Effect::Kind::kSetCell, cell, PyUnicode_AsUTF8(SlotName(f.code, e.arg)), {e.in[0]}, {e.shadows[0]});
  trace.objects.Find(cell)->items.assign(1, e.shadows[0]);
}

}  // namespace frametap
