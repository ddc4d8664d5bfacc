// Methods that change their first argument, a builtin container: list.append, dict.update, set.add.
// Not here: `x[key] = value` (containers.h), containers whose changes leave numbers open (rows.h, own_dicts.h).
#pragma once

#include "frame_eval/record/callables/table.h"
#include "frame_eval/record/trace.h"

namespace frametap {

// Follows the change in the records, or records an effect on a container that existed before.
void Mutate(Trace& trace, Call& call, const CallableRow& row);

}  // namespace frametap
