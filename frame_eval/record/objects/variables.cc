// Globals, cells and the free variables of functions.
#include "frame_eval/cpython/frame_view.h"
#include "frame_eval/record/fast_paths/repeated_calls.h"
#include "frame_eval/record/objects/quiet.h"
#include "frame_eval/record/recorder.h"
#include "guards/must.h"
#include "ir/segment/frame_slot.h"

namespace frametap {

// The name of the module in the globals; null if there is none, or if it is not a string.
static PyObject* NameIn(PyObject* globals) {
  static PyObject* const key = InternedName("__name__");
  PyObject* const name = ItemQuietly(globals, key);
  return name != nullptr && PyUnicode_CheckExact(name) ? name : nullptr;
}

PyObject* Recorder::ModuleOf(PyObject* globals) {
  PyObject* const name = NameIn(globals);
  PyObject* const module = name != nullptr ? ItemQuietly(PyImport_GetModuleDict(), name) : nullptr;
  return module != nullptr && PyModule_Check(module) && PyModule_GetDict(module) == globals ? module : nullptr;
}

// The dict of a function's globals, named after its module; the globals of the entry frame are G.
SourceId Recorder::GlobalsOf(FrameState& f) {
  PyObject* globals = f.function->func_globals;
  if (globals == entry_globals_.get()) return guards_.Pinned(globals, "G");
  PyObject* const module = ModuleOf(globals);
  PyObject* const pinned = module != nullptr && PyModule_CheckExact(module) ? module : globals;
  if (const SourceId known = guards_.PinnedAs(pinned); known.valid()) return known;
  PyObject* const name = NameIn(globals);
  return guards_.Pinned(pinned, name != nullptr ? PyUnicode_AsUTF8(name) : "?");
}

PyObject* Recorder::ReadGlobal(FrameState& f, FrameNote& note, PyObject* name, Shadow* out) {
  PyObject* value = ItemQuietly(f.function->func_globals, name);
  if (value == nullptr) return nullptr;
  Event read;
  read.op = Op::kLoadGlobal;
  read.name = name;
  LoadGlobal(f, note, read, value, out);
  return value;
}

void Recorder::LoadGlobal(FrameState& f, FrameNote&, const Event& e, PyObject* result, Shadow* out) {
  PyObject* globals = f.function->func_globals;
  if (Shadow* written = WrittenShadow(globals, e.name)) {
    *out = *written;
    return;
  }
  PyObject* builtins = e.arg == 0 ? nullptr : f.function->func_builtins;
  RefuseMutatedDict(globals);
  if (builtins != nullptr) RefuseMutatedDict(builtins);
  SourceId& read = globals_read_[{globals, builtins, e.name}];
  if (read.valid() && guards_.seen(read) == result) {
    if (const Known* known = repeated_calls_ ? Find(result) : nullptr) repeated_calls_->Meet(*known, true);
    if (IsScalar(result)) *out = Shadow{Shadow::Kind::kSource, read.raw()};
    return;
  }
  SourceId dict = GlobalsOf(f);
  if (e.arg == 0) {
    bool by_module = PyModule_Check(guards_.seen(dict));
    read = guards_.Child(dict, by_module ? Accessor::kAttr : Accessor::kGlobal, 0, e.name, result);
  } else {
    guards_.Absent(dict, e.name, Here());
    read = guards_.Child(guards_.Pinned(builtins, "B"), Accessor::kGlobal, 0, e.name, result);
  }
  *out = FromSource(read, result, true);
}

Shadow Recorder::LoadDeref(FrameState& f, int slot, PyObject* result) {
  if (f.shadows[slot].kind == Shadow::Kind::kCell) return cells_[f.shadows[slot].id];
  PyObject* cell = f.objects[slot];
  MeetCell(f, slot);
  Known* known = Find(cell);
  if (known != nullptr && (!known->items.empty() || known->state == Known::State::kFresh)) {
    return known->items.empty() ? Shadow() : known->items[0];
  }
  bool is_free = KindOfSlot(f.code, slot) == SlotKind::kFree;
  if (is_base(f)) {
    SourceId id = guards_.Cell(FrameSlot(level(), slot), PyUnicode_AsUTF8(SlotName(f.code, slot)), result);
    return FromSource(id, result, false);
  }
  if (!is_free) throw Break{Reason::unknown_operation, "a cell"};
  // The function whose closure the cell was met in: this one may be the trace's own.
  const SourceId cell_source = known != nullptr ? known->source : CellSource(f, slot);
  const SourceId closure = cell_source.valid() ? guards_.parent(cell_source) : SourceId();
  const SourceId function = closure.valid() ? guards_.parent(closure) : SourceId();
  if (!function.valid() || guards_.accessor(closure) != Accessor::kAttr) {
    throw Break{Reason::unknown_operation, "a cell"};
  }
  const Source step = guards_.Describe(cell_source);
  return FromSource(guards_.Child(function, Accessor::kClosure, step.index, nullptr, result), result,
                    IsFixedFunction(f));
}

// The variable from which super() without arguments takes its class.
void Recorder::ReadClassCell(FrameState& f) {
  static PyObject* const name = InternedName("__class__");
  for (int slot = 0; slot < f.nlocalsplus; ++slot) {
    PyObject* cell = f.objects[slot];
    if (KindOfSlot(f.code, slot) != SlotKind::kFree || SlotName(f.code, slot) != name) continue;
    if (PyObject* content = cell != nullptr ? PyCell_GET(cell) : nullptr; content != nullptr) {
      Force(content, LoadDeref(f, slot, content));
      Touch(content);
    }
  }
}

// Whether a frame above the entry frame runs a function that is known by identity, and so are its cells and defaults.
bool Recorder::IsFixedFunction(const FrameState& f) {
  const SourceId source = SourceOf(reinterpret_cast<PyObject*>(f.function));
  return !source.valid() || pinned_[source.raw()];
}

// Which of the free variables the slot is.
static int FreeIndex(const FrameState& f, int slot) {
  int index = 0;
  for (int i = 0; i < slot; ++i) index += KindOfSlot(f.code, i) == SlotKind::kFree;
  return index;
}

// A variable of a function that is known by its code only: where its cell is one that was met elsewhere, that is guarded.
void Recorder::MeetCell(FrameState& f, int slot) {
  if (is_base(f) || KindOfSlot(f.code, slot) != SlotKind::kFree) return;
  PyObject* const cell = f.objects[slot];
  if (!IsFixedFunction(f)) {
    has_open_cells_ = true;
    FromSource(CellSource(f, slot), cell, false);
  } else if (Find(reinterpret_cast<PyObject*>(f.function)) == nullptr ||
             SourceOf(reinterpret_cast<PyObject*>(f.function)).valid()) {
    // Which cell it is follows from the function; whether an open function has the same one does not.
    fixed_cells_.try_emplace(cell, FixedCell{reinterpret_cast<PyObject*>(f.function), FreeIndex(f, slot)});
    if (has_open_cells_ && SourceOf(cell).valid()) FromSource(CellSource(f, slot), cell, true);
  }
}

// The cell itself of a variable that existed before: functions share it. The cell of a free variable belongs to the
// function. The cell of the base frame's own variable lies in its slot.
SourceId Recorder::CellSource(FrameState& f, int slot) {
  if (is_base(f) && KindOfSlot(f.code, slot) != SlotKind::kFree) {
    return guards_.Local(FrameSlot(level(), slot), PyUnicode_AsUTF8(SlotName(f.code, slot)), f.objects[slot]);
  }
  PyObject* function = reinterpret_cast<PyObject*>(f.function);
  SourceId source = is_base(f) ? guards_.Function(function, FrameSlot(level(), 0)) : SourceOf(function);
  // The trace has made it of a tuple of cells that it found on the stack.
  if (!source.valid() && Find(function) != nullptr) throw Break{Reason::unknown_operation, "a cell"};
  // Without a source it was reached through a class or a constant.
  if (!source.valid()) source = guards_.Pinned(function, PyUnicode_AsUTF8(f.function->func_name));
  return ClosureCell(source, function, FreeIndex(f, slot));
}

SourceId Recorder::ClosureCell(SourceId source, PyObject* function, int index) {
  static PyObject* const closure_name = InternedName("__closure__");
  PyObject* const closure = PyFunction_GET_CLOSURE(function);
  const SourceId cells = guards_.Child(source, Accessor::kAttr, 0, closure_name, closure);
  return guards_.Child(cells, Accessor::kItem, index, nullptr, PyTuple_GET_ITEM(closure, index));
}

// Others may get at the cell from now on: it is known by its identity.
void Recorder::ShareCell(FrameState& f, int slot) {
  Shadow& shadow = f.shadows[slot];
  if (shadow.kind != Shadow::Kind::kCell) return;
  AddFresh(f.objects[slot]).items.assign(1, cells_[shadow.id]);
  shadow = Shadow();
}

void Recorder::StoreDeref(FrameState& f, const Event& e) {
  if (f.shadows[e.arg].kind == Shadow::Kind::kCell) return;  // After
  PyObject* cell = f.objects[e.arg];
  Known* known = Find(cell);
  if (known != nullptr && known->state == Known::State::kFresh) {
    known->items.assign(1, e.shadows[0]);
    MarkMutated(cell);
    return;
  }
  if (KindOfSlot(f.code, e.arg) != SlotKind::kFree && !began_at_break_) {
    // The variable of a frame that has just begun: nothing else has its cell. From now on the trace knows the content.
    AddFresh(cell).items.assign(1, e.shadows[0]);
    base_cells_.push_back(cell);
    return;
  }
  const bool is_fixed = !is_base(f) && IsFixedFunction(f);
  has_open_cells_ |= !is_base(f) && !is_fixed;
  FromSource(CellSource(f, e.arg), cell, is_fixed);
  AddEffect(Effect::Kind::kSetCell, cell, PyUnicode_AsUTF8(SlotName(f.code, e.arg)), {e.in[0]}, {e.shadows[0]});
  Find(cell)->items.assign(1, e.shadows[0]);
}

}  // namespace frametap
