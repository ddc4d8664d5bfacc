#include "frame_eval/record/semantics/cached_calls.h"

#include <cstddef>
#include <vector>

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/objects/force.h"
#include "frame_eval/record/objects/knowledge.h"
#include "frame_eval/record/objects/outside_containers.h"
#include "frame_eval/record/semantics/calls.h"
#include "frame_eval/record/semantics/predicted_calls.h"
#include "frame_eval/segment/cached_functions.h"
#include "guards/kinds/keys.h"
#include "guards/objects/torch_tensor.h"
#include "guards/objects/well_known_objects.h"

namespace frametap {

void FixByIdentity(Trace& trace, PyObject* object) {
  AdoptPinned(trace, object);
  ObjectRecord* const known = trace.objects.Find(object);
  if (known != nullptr && known->state == ObjectRecord::State::kSource) Fix(trace, *known);
}

void InvokeCached(Trace& trace, Call& call) {
  if (!WantPrediction(trace, call)) InvokeCachedByIdentity(trace, call);
}

void InvokeCachedByIdentity(Trace& trace, Call& call) {
  FixByIdentity(trace, call.callable);
  for (size_t i = 0; i < call.args.size(); ++i) {
    PyObject* arg = call.args[i];
    if (IsPlainKey(arg)) {
      SpecializeDeep(trace, arg, call.shadows[i], false);
      continue;
    }
    // Hashed and compared by identity.
    ObjectRecord* known = trace.objects.Find(arg);
    bool plain = Py_TYPE(arg)->tp_hash == PyBaseObject_Type.tp_hash;
    if (!plain || IsTensor(arg) || (known != nullptr && known->state != ObjectRecord::State::kSource)) {
      throw Refusal(call.callable);
    }
    FixByIdentity(trace, arg);
  }
  const CacheParts parts = PartsOfCached(call.callable);
  CacheEntry entry;
  if (parts.cache != nullptr) {
    entry = EntryOf(parts, call.args.data(), call.args.size(), call.names.data(), call.names.size());
  }
  if (entry.found == nullptr) throw Break{Reason::done_once, CallableName(call.callable)};
  // The entry is still the one: cache_clear() forgets it.
  const SourceId cache = trace.guards.Pinned(parts.cache, CallableName(call.callable) + ".cache");
  const SourceId found = trace.guards.Child(cache, Accessor::kKey, 0, entry.key, entry.found);
  trace.guards.Identity(found, trace.frames.Here());
  if (Py_TYPE(entry.found) == Objects().cache_link) {
    trace.guards.Field(found, offsetof(CacheLink, result),
                       trace.frames.Here());  // a cache of limited size uses its links again
  }
  // Replay asks the cache as well: it counts its hits, and drops what has not been asked for.
  const Ref<> names = KeywordsOf(call);
  std::vector<PyObject*> values = {names.get()};
  values.insert(values.end(), call.args.begin(), call.args.end());
  AddEffect(trace, Effect::Kind::kLookUp, call.callable, "", values, std::vector<Shadow>(values.size()));
  call.note.op.expect.kind = ResultSpec::Kind::kPinned;
  PyObject* const result = entry.result();
  if (IsTensor(result)) {
    call.note.op.expect.SetSource(trace.guards.Pinned(result, CallableName(call.callable) + "(...)"),
                                  /*is_pinned=*/true);
  }
  call.note.op.opaque_operation = true;
}

}  // namespace frametap
