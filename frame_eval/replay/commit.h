// CommitEffect: performs one effect of a segment, by its row in ir/segment/effects.def.
//   K1  An effect makes nothing of its own that can fail, except the items of the container that it changes. Reifier has made
//       its operands before (reify/Z1).
// A new kind of effect is its row and a definition of CommitEffect for it, here or in a file of its own.
// Not here: the order of effects, and how operands are made (reify.h).
#pragma once

#include <Python.h>

#include "frame_eval/segment/segment.h"
#include "ir/segment/segment_ir.h"

namespace frametap {

// An effect with its operands as objects. Those that its row does not have are null or empty.
struct EffectStep {
  const Effect& effect;
  PyObject *target, *key, *value, *name;
  FrameContent& content;
};

// Returns false with a Python exception.
template <Effect::Kind kKind>
bool CommitEffect(const EffectStep& step) = delete;
#define EFFECT(kind, word, parts, meaning) \
  template <>                              \
  bool CommitEffect<Effect::Kind::kind>(const EffectStep& step);
#include "ir/segment/effects.def"
#undef EFFECT

bool CommitByKind(const EffectStep& step);

// Takes so many items from an iterator of C, or the items that are left in it.
bool Advance(PyObject* iterator, PyObject* times);

}  // namespace frametap
