// The steps of a recorder as a table of sources that print. A table that is kept grows with the steps, so that asking for a
// name costs no more than the steps that are new.
//
// Not here: what a step is and how it is taken (accessor.h).
#pragma once

#include "guards/kinds/accessor.h"

namespace frametap {

void AddNewSteps(const Steps& steps, SourceTable* table);  // those that `table`, which has the first ones, lacks

}  // namespace frametap
