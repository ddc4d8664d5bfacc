// Places: where in the program the ops of a recording ran. While it is recorded, the program notes a call site for each
// frame and instruction at which an op or a call on the way to one stood. Words (ir/graph/position.h) are made of them when
// somebody first looks: most segments are never shown.
#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "guards/ref.h"
#include "guards/stable_vector.h"
#include "ir/block_pool.h"
#include "ir/graph/graph.h"
#include "ir/graph/ids.h"
#include "ir/graph/position.h"
#include "ir/segment/source.h"

namespace frametap {

using PlaceId = uint32_t;
constexpr PlaceId kNowhere = 0xffffffffu;

class Places {
 public:
  // A module that a frame calls. `source` is invalid if the trace made it.
  struct Module {
    SourceId source;
    SharedText klass;
    PyObject* outside = nullptr;                    // AddOutside: itself, borrowed; only its address is looked at
    std::optional<SharedText> path = std::nullopt;  // where the source does not say it (module_paths.h)
  };

  // `caller`: where the frame was called, or kNowhere. `module`: null unless the frame is a call of one. Needs no Python
  // lock.
  PlaceId Add(PlaceId caller, PyCodeObject* code, int offset, const Module* module);
  // A call of a module in which the recording began. It counts as a scope, and not as a caller.
  PlaceId AddOutside(PlaceId caller, Module module);
  void NamePaths(absl::FunctionRef<std::optional<SharedText>(const Module&)> path_of);

  struct Mark {
    PlaceId sites;
    uint32_t modules;
  };
  Mark mark() const { return {static_cast<PlaceId>(sites_.size()), static_cast<uint32_t>(modules_.size())}; }
  // Maps the places of a call to places in another one: `site` is the site of the first, `onto` the site of the other.
  class Repetition {
   public:
    Repetition(PlaceId site, PlaceId onto, const Mark& from, const Mark& to)
        : site_(site),
          onto_(onto),
          from_(from),
          told_(to.sites - from.sites, kNowhere),
          modules_(to.modules - from.modules, kNowhere) {}

   private:
    friend class Places;
    PlaceId site_, onto_;
    Mark from_;
    std::vector<PlaceId> told_;      // what those noted in the call are now
    std::vector<uint32_t> modules_;  // … and its modules
  };
  // `is_now` is for the source of a module. kNowhere if `place` is not in the call.
  PlaceId Repeat(PlaceId place, Repetition* repetition, absl::FunctionRef<SourceId(SourceId)> is_now);
  bool AreAlike(PlaceId a, PlaceId b) const;  // self-check

  // Returns whether an exception there reaches a handler, a `finally` or the end of a `with` in a frame of the trace.
  bool IsHandled(PlaceId place) const;

  // The code objects, which the caller has kept alive until now.
  void Keep();

  // Sets Node::where. `of_nodes`: beside graph->nodes.
  void Tell(const std::vector<PlaceId>& of_nodes, const SourceTable& sources, Graph* graph) const;

 private:
  class LocationPrinter;
  struct Site {
    PlaceId caller;
    int offset;
    PyCodeObject* code;  // null: AddOutside
    uint32_t module;     // into modules_, or kNowhere
  };

  StableVector<Site> sites_;
  std::vector<Module, PoolAllocator<Module>> modules_;
  std::vector<Ref<>> codes_;  // of the sites, once they are kept
};

}  // namespace frametap
