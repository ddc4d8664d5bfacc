// Kept memory: memory for packed weights, in huge pages where Linux has them. Each run reads all weights of a model once; with
// pages of 4 KB, looking these up takes up to a tenth of the time.
//   H1  Parts are cut from chunks, one after another. A chunk is freed with its last part.
//   H2  Where Linux has no huge pages, the memory is as any other.
// Not here: results and scratchpads, whose memory is used again at once.
#pragma once

#include <cstddef>
#include <memory>

namespace frametap::onednn {

// The bytes begin at a cache line. Throws std::bad_alloc. May be called by any thread.
std::shared_ptr<void> KeptMemory(size_t bytes);

}  // namespace frametap::onednn
