// Shadow: what the recorder knows of the object in one place (a local or a stack slot) beyond the object itself.
//   H1  Shadows are keyed by place. Scalars (None, bool, int, float, str, bytes …) have no other provenance: an object
//       is shared by many places. A scalar with the shadow kNone is a constant of the trace: guards already fix its
//       value.
//   H2  Tensors, modules, containers and other objects with an identity of their own are known by identity as well (the
//       recorder's tables); their shadow may be kNone.
#pragma once

#include <cstdint>

namespace frametap {

struct Shadow {
  enum class Kind : uint8_t {
    kNone,    // constant scalar, or an object known by identity
    kSource,  // read at `id` (a SourceId), value not yet guarded
    kValue,   // a number that is the graph value `id` (a ValueId)
    kUnread,  // the object at the entry, which is not read
    kCell,    // a cell that only its frame has so far; `id` numbers what is known of its content (Recorder)
  };
  Kind kind = Kind::kNone;
  uint32_t id = 0;
};

}  // namespace frametap
