// GuardTree: decides whether a segment may replay on the objects at hand, and reaches what replay needs.
//   V1  Check runs no Python code, raises nothing, leaves the error indicator as it was.
//   V2  A hit means that every predicate holds now; a doubt is a miss.
//   V3  A watched dict (reached by identity only, with an unchanged version) is not read again. After a change of the
//       version the keys that were read are read again, and the version is remembered if they are still right.
//   V4  Segments are shared by threads: Check changes only caches that any thread may write (Python's lock is held).
#pragma once

#include <Python.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "guards/kinds/accessor.h"
#include "guards/kinds/miss_report.h"
#include "guards/kinds/roots.h"
#include "ir/leaks.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

struct FrozenGuards;

class GuardTree {
 public:
  virtual ~GuardTree() = default;
  virtual Verdict Check(const Roots& roots) = 0;
  // After a hit and until Python code runs: the object at a wanted source (borrowed). Numbers (IsNumber) have none:
  // use Number.
  virtual Reached At(SourceId id) const = 0;
  PyObject* Object(SourceId id) const { return At(id).object; }
  int64_t Number(SourceId id) const { return At(id).number; }
  // After a hit: not 0 if what a model holds was as at an earlier hit, which had the same number. While it stays, a tensor
  // that stands (Stands) is the same one, at its place.
  virtual uint64_t standing() const { return 0; }
  virtual bool Stands(SourceId id) const { return false; }
  // Slow: evaluates everything without caches and says what fails first; empty `source` if nothing does.
  virtual MissReport Explain(const Roots& roots) = 0;
  // Self-check, right after Check gave `verdict`: evaluates everything without caches. "" if that comes to the same
  // verdict and, for a hit, reaches the same objects; else what differs.
  virtual std::string Recheck(const Roots& roots, Verdict verdict) = 0;
  virtual size_t predicate_count() const = 0;
  virtual const FrozenGuards& frozen() const = 0;
  // In words, for SegmentIr: the guards, with `binds` filled from `inputs` (source, value) pairs; the table they name.
  virtual std::vector<GuardLine> Lines(const std::vector<std::pair<SourceId, ValueId>>& inputs) const = 0;
  virtual SourceTable Sources() const = 0;
  // Sizes of these inputs that no guard fixes, except sizes of parameters and buffers.
  virtual std::vector<SizeSymbol> OpenSizes(const std::vector<std::pair<SourceId, ValueId>>& inputs) const = 0;
  virtual bool IsNumber(SourceId id) const = 0;      // reached by Number, not by Object
  virtual uint64_t dict_reads() const { return 0; }  // how often a dict had to be read again; V3 keeps it from growing
  // Garbage collection: visits every object that the tree holds strongly.
  virtual int Traverse(visitproc visit, void* arg) const = 0;

 private:
  Counted<"guard trees"> counted_;
};

std::unique_ptr<GuardTree> PlantTree(FrozenGuards guards);

}  // namespace frametap
