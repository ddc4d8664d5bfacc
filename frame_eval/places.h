// Places: where in the program the ops of a recording ran. While it is recorded, the program notes a call site for each
// frame and instruction at which an op or a call on the way to one stood. Words (ir/position.h) are made of them when
// somebody first looks: most segments are never shown.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "guards/ref.h"
#include "ir/graph.h"
#include "ir/ids.h"
#include "ir/position.h"
#include "ir/source.h"

namespace frametap {

using PlaceId = uint32_t;
constexpr PlaceId kNowhere = 0xffffffffu;

class Places {
 public:
  // A module that a frame calls. `source` is invalid if the trace made it.
  struct Module {
    SourceId source;
    SharedText klass;
  };

  // `caller`: where the frame was called, or kNowhere. `module`: null unless the frame is a call of one. Needs no Python
  // lock.
  PlaceId Add(PlaceId caller, PyCodeObject* code, int offset, const Module* module);

  // Whether an exception there meets a handler, a `finally` or the end of a `with` in a frame of the trace.
  bool IsHandled(PlaceId place) const;

  // The code objects, which the caller has kept alive until now.
  void Keep();

  // Sets Node::where. `of_nodes`: beside graph->nodes.
  void Tell(const std::vector<PlaceId>& of_nodes, const SourceTable& sources, Graph* graph) const;

 private:
  class Teller;
  struct Site {
    PlaceId caller;
    int offset;
    PyCodeObject* code;
    uint32_t module;  // into modules_, or kNowhere
  };

  std::vector<Site> sites_;
  std::vector<Module> modules_;
  std::vector<Ref<>> codes_;  // of the sites, once they are kept
};

}  // namespace frametap
