// Library: the door to oneDNN, which is loaded when it is first asked for.
//   N1  Its symbols and torch's own copy of oneDNN never meet: the library is not linked, and looks its own symbols up in
//       itself first.
//   N2  A library that is missing or has another interface is a Status that says what to install.
//   N3  It is never unloaded: primitives may be freed at the end of the process.
// Not here: its functions (api.h); what is computed (primitive.h, layer_kernel.h).
#pragma once

#include <string>

#include "absl/status/status.h"

namespace frametap::onednn {

// Loads the library. The answer is kept for the process.
absl::Status Load();

// "3.2.0"; "" where it cannot be loaded.
std::string Version();

// Whether u8 x s8 products are exact: the processor has VNNI, and oneDNN is not held below it (ONEDNN_MAX_CPU_ISA).
bool HasExactProducts();

// Whether the processor has instructions for products of bfloat16, and oneDNN may use them.
bool HasBfloat16Products();

// Whether the processor has the vectors of AVX-512, and oneDNN may use them.
bool HasWideVectors();

// Whether the processor multiplies tiles (AMX), and oneDNN may do so.
bool HasTiles();

}  // namespace frametap::onednn
