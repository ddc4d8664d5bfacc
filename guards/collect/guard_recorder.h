// GuardRecorder: collects, while a trace runs, the sources it read and what it relied on.
//   R1  `seen` is the object at the source in the state at the entry of the segment. The recorder does not report reads
//       of places that the trace itself has written.
//   R2  A predicate on a source implies that the path to it can be followed; following it runs no Python code.
//   R3  Predicates are kept in read order; an equal or implied one is not added twice.
// Not here: evaluation and words (guard_tree.h).
#pragma once

#include <Python.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "guards/collect/guard_site.h"
#include "guards/kinds/class_note.h"
#include "guards/kinds/guard_parameter.h"
#include "guards/kinds/tensor_read.h"
#include "guards/kinds/world.h"
#include "guards/objects/size_mark.h"
#include "ir/segment/predicate.h"
#include "ir/segment/source.h"
#include "ir/symbols/number_expr.h"

namespace frametap {

struct FrozenGuards;

class GuardRecorder {
 public:
  struct Mark {
    size_t predicates;
    size_t sources;
  };

  explicit GuardRecorder(WorldState world);
  ~GuardRecorder();

  // -- sources -- `seen` is borrowed, and kept alive until Freeze or destruction.
  // In roots, `slot` is a FrameSlot (ir/segment/frame_slot.h).
  SourceId Local(int64_t slot, const std::string& name, PyObject* seen);
  SourceId Cell(int64_t slot, const std::string& name, PyObject* content);  // localsplus[slot] is the cell
  SourceId Stack(int64_t slot, PyObject* seen);
  SourceId Function(PyObject* function, int64_t slot = 0);
  SourceId Pinned(PyObject* object, const std::string& text);  // known by identity; held strongly
  bool IsPinned(PyObject* object) const { return PinnedAs(object).valid(); }
  SourceId PinnedAs(PyObject* object) const;  // invalid if it is not pinned
  // `key` is an attribute name (str), a dict key, or null. `index` is as in MakeStep (accessor.h).
  SourceId Child(SourceId parent, Accessor accessor, int64_t index, PyObject* key, PyObject* seen);
  PyObject* seen(SourceId id) const;
  int64_t SeenNumber(SourceId id) const;  // for a size or a length, which is not an object
  SourceId parent(SourceId id) const;
  Py_ssize_t CountOf(PyObject* object);  // the number of references to it that are held here; slow for the first time
  // For the self-check. Returns "" if the step from the parent's object still leads to this one's, else the difference.
  std::string FaultAt(SourceId id) const;
  Accessor accessor(SourceId id) const;
  PyObject* KeyOf(SourceId id) const;    // attribute name or dict key of its last step; borrowed, may be null
  Source Describe(SourceId id) const;    // in words
  std::string Name(SourceId id) const;   // "L.self.weight"; slow
  uint64_t NameHash(SourceId id) const;  // as SourceTable::NameHash

  // -- predicates -- `why` is the instruction that has read the fact. Its code is kept alive.
  // Adds a guard of a kind that is made of the object, and of the parameter of its row (GUARD_OF in predicates.def). Does
  // nothing if there is no object, or if a guard on its identity implies the kind.
  void Add(GuardKind kind, SourceId id, const GuardSite& why, const GuardParameter& parameter = {});
  // Requires the exact type, with the same attributes under the names that the recording has read (ReadsName,
  // ReadsNamesOf) before its end, and under the names that C code looks up.
  void Type(SourceId id, const GuardSite& why);
  void ReadsName(PyObject* name) {  // an attribute's
    if (names_ == nullptr) [[unlikely]]
      names_ = MakeNames();
    names_->Add(name);
  }
  void ReadsNamesOf(PyCodeObject* code);  // all names in it
  // An int of a class is read. `is_open`: a guard of its own says so, or it may have any value.
  void ReadsIntOfClass(PyTypeObject* type, PyObject* name, bool is_open);
  void Identity(SourceId id, const GuardSite& why);  // the very object
  // Requires equal type and value, for None, bool, int, float (bitwise), complex, str, bytes, Ellipsis, dtype, device, layout,
  // slices and tuples of these; identity for anything else.
  void Value(SourceId id, const GuardSite& why);
  std::optional<SizeMark> MarkOf(SourceId size) const;  // of the user
  bool IsFixed(SourceId id) const;                      // by Value
  // Requires this length of a list, tuple, dict or set; by default, its present length.
  void Length(SourceId id, const GuardSite& why, Py_ssize_t length = -1);
  void Keys(SourceId id, const GuardSite& why);  // dict: its keys in order (implies the length)
  bool HasLayout(SourceId set) const;
  void Absent(SourceId dict, PyObject* key, const GuardSite& why);
  void Present(SourceId dict, PyObject* key, const GuardSite& why);
  void Tensor(SourceId id, const TensorRead& read, const GuardSite& why);  // reads of one tensor are merged
  // Returns false, and adds nothing, if the comparison is not exact (a float, and an int of more bits than it has).
  bool Relation(SourceId number, int py_compare_op, PyObject* constant, bool outcome, const GuardSite& why);
  // The same for expressions of at most NumbersRelation::kMostInputs numbers, all exact ints or floats.
  bool Relation(NumberExpr left, int py_compare_op, NumberExpr right, bool outcome,
                const std::vector<SourceId>& numbers, const GuardSite& why);
  void SameObject(SourceId a, SourceId b, bool same, const GuardSite& why);
  // Attributes of the class itself were read (Model.scale): what was read of it and its bases is the same (see Type).
  void Class(PyTypeObject* type, const GuardSite& why);
  // The object in a field of a C struct that no accessor leads to. The source is known by identity.
  void Field(SourceId id, Py_ssize_t offset, const GuardSite& why);
  // No class was registered with an abstract base class since: what its caches do not hold, they still do not.
  void Registry(const GuardSite& why);
  // The answer of this C function about the process: an int, None or a device.
  void Answer(PyObject* function, const char* name, const GuardSite& why) {
    Add(GuardKind::kAnswer, Pinned(function, name), why);
  }
  void NoInstanceAttr(SourceId object, PyObject* name, const GuardSite& why);  // not in object.__dict__
  // Returns whether `no hooks` of its module says all of the dict at `id`, except which object it is.
  bool IsToldByNoHooks(SourceId id) const;

  // From now on, some guards are reported to `contradicts` in words. These are guards that would fix a size that is
  // marked as dynamic, or divide its range. (The size is guarded all the same.)
  void HeedMarks(std::function<void(const std::string&)> contradicts);

  Mark mark() const;
  void Rewind(const Mark& mark);  // forgets what was added after the mark (merged tensor reads may stay)

  // -- repetition (repetition.cc): transfers guards from one object to another one --
  // The guards on an object so far, or on objects that are reached through it.
  enum class Said : uint8_t { kNothing, kType, kMore };
  Said SaidOf(SourceId id) const;
  // Returns whether a tensor has no guards beyond the ones that always hold; whether only sizes were read since.
  bool IsUnread(SourceId tensor) const;
  bool OnlySizesRead(SourceId tensor, const Mark& from, const Mark& to) const;
  // The guards between two marks on one object and on the objects reached through it.
  struct Part {
    SourceId of;
    Mark from, to;
    std::vector<SourceId> sources;     // each after its parent
    std::vector<uint32_t> predicates;  // their numbers
    std::vector<SourceId> fixed;       // sources that are known by identity or address
    std::vector<SourceId> shared;      // sources that are the same object as one outside of the part
    bool Holds(SourceId id) const;     // is it `of` or one of `sources`?
  };
  // Returns none if a guard in the slice is tied to this object, or if a guard on another object refers to it.
  std::optional<Part> PartOf(SourceId of, const Mark& from, const Mark& to) const;
  // The part, transferred to another object.
  class Repetition {
   public:
    Repetition(const Part& part, SourceId onto) : part_(part), onto_(onto), now_(part.to.sources - part.from.sources) {}
    SourceId IsNow(SourceId was) const {  // itself, if it is not in the part
      if (was == part_.of) return onto_;
      if (was.raw() < part_.from.sources || was.raw() >= part_.to.sources) return was;
      const SourceId is = now_[was.raw() - part_.from.sources];
      return is.valid() ? is : was;
    }

   private:
    friend class GuardRecorder;
    const Part& part_;
    SourceId onto_;
    std::vector<SourceId> now_;  // the present objects of the sources between the marks
  };
  // Adds the guards. `met` checks each new source and its counterpart, which has an object of the same type. Returns
  // false if a guard does not hold, or if `met` returns false; then the caller rewinds.
  bool Repeat(Repetition* repetition, absl::FunctionRef<bool(SourceId was, SourceId is)> met);
  // For the self-check. Returns the guards since a mark as numbers, which are equal for equal guards.
  std::vector<std::array<uint64_t, 4>> SaidSince(const Mark& mark) const;

  std::vector<StateFact> StateFacts() const;  // of the thread, as texts show them

  // The recorder is empty afterwards. `wanted`: sources whose objects replay needs (graph inputs, operands of exits and
  // effects); their registers are readable after a hit.
  FrozenGuards Freeze(const std::vector<SourceId>& wanted);

 private:
  std::optional<SizeMark> DynamicMark(SourceId size) const;
  void CheckFixed(SourceId size);
  void CheckRange(SourceId size, const std::string& condition, const std::function<bool(int64_t)>& holds);

  struct Impl;
  NamesRead* MakeNames();

  std::unique_ptr<Impl> impl_;
  NamesRead* names_ = nullptr;  // in `impl_`, once something is read
};

}  // namespace frametap
