#include "backends/onednn/kept_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <new>

namespace frametap::onednn {
namespace {

constexpr size_t kHugePage = size_t{2} << 20, kLine = 64;
constexpr size_t kChunk = size_t{8} << 20;   // pages that no part has reached take no memory
constexpr size_t kSmall = size_t{64} << 10;  // fits into the caches

size_t RoundedUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

std::shared_ptr<char> Allocate(size_t bytes, size_t alignment) {
  void* data = nullptr;
  if (posix_memalign(&data, alignment, bytes) != 0) throw std::bad_alloc();
  return {static_cast<char*>(data), std::free};
}

// The chunk that parts are cut from.
struct Chunk {
  std::weak_ptr<char> memory;
  size_t used = 0, size = 0;
};

}  // namespace

std::shared_ptr<void> KeptMemory(size_t bytes) {
  static std::mutex mutex;
  static Chunk chunk;
  const size_t wanted = RoundedUp(std::max<size_t>(bytes, 1), kLine);
  if (wanted < kSmall) return Allocate(wanted, kLine);
  const std::lock_guard lock(mutex);
  std::shared_ptr<char> memory = chunk.memory.lock();
  if (memory == nullptr || chunk.size - chunk.used < wanted) {
    const size_t size = std::max(kChunk, RoundedUp(wanted, kHugePage));
    memory = Allocate(size, kHugePage);
    madvise(memory.get(), size, MADV_HUGEPAGE);  // H2
    // The rest of the larger one is of more use.
    if (chunk.memory.expired() || size - wanted > chunk.size - chunk.used) chunk = {memory, wanted, size};
    return {memory, memory.get()};
  }
  void* const part = memory.get() + chunk.used;
  chunk.used += wanted;
  return {memory, part};
}

}  // namespace frametap::onednn
