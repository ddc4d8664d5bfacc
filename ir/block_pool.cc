#include "ir/block_pool.h"

#include <bit>
#include <utility>

#include "ir/dcheck.h"

namespace frametap {
namespace {

constexpr size_t kLeast = 1024, kMost = 16384;  // in bytes; smaller ones are at hand in any C library, larger ones rare
constexpr size_t kStepsOfDoubling = 8;          // at most an eighth of a block is left over
constexpr size_t kSizes = kStepsOfDoubling * static_cast<size_t>(std::bit_width(kMost / kLeast) - 1);

struct Free {
  Free* next;
};

// Without a destructor, so that it can be asked while the thread ends.
struct Kept {
  Free* blocks[kSizes];
  size_t bytes;
  bool is_watched;  // by Cleaner
  bool has_ended;
};
constinit thread_local Kept kept{};

bool IsPooled(size_t bytes) { return BlockPool::kKeeps && bytes > kLeast && bytes <= kMost; }

// The number of the least size that holds `bytes`, and that size. Sizes of one doubling are equal steps apart.
struct SizeOf {
  explicit SizeOf(size_t bytes) {
    const auto doubling = static_cast<size_t>(std::bit_width(bytes - 1)) - 1;  // the doubling begins after 2^doubling
    const size_t step = (size_t{1} << doubling) / kStepsOfDoubling;
    const size_t steps = (bytes - 1) / step + 1;  // from kStepsOfDoubling + 1 to twice kStepsOfDoubling
    number = (doubling - (std::bit_width(kLeast) - 1)) * kStepsOfDoubling + steps - kStepsOfDoubling - 1;
    size = steps * step;
    FT_DCHECK(number < kSizes && size >= bytes);
  }
  size_t number, size;
};

struct Cleaner {
  ~Cleaner() {
    kept.has_ended = true;
    for (Free*& list : kept.blocks) {
      while (list != nullptr) ::operator delete(std::exchange(list, list->next));
    }
    kept.bytes = 0;
  }
};

void Watch() {
  thread_local Cleaner cleaner;
  (void)&cleaner;
  kept.is_watched = true;
}

}  // namespace

void* BlockPool::Take(size_t bytes) {
  if (!IsPooled(bytes)) return ::operator new(bytes);
  const SizeOf size(bytes);
  Kept& mine = kept;
  Free*& list = mine.blocks[size.number];
  if (list == nullptr) return ::operator new(size.size);
  mine.bytes -= size.size;
  return std::exchange(list, list->next);
}

void BlockPool::Give(void* block, size_t bytes) noexcept {
  if (!IsPooled(bytes) || block == nullptr) return ::operator delete(block);
  const SizeOf size(bytes);
  Kept& mine = kept;
  if (mine.has_ended || mine.bytes + size.size > kMostKept) return ::operator delete(block);
  if (!mine.is_watched) Watch();
  mine.bytes += size.size;
  mine.blocks[size.number] = new (block) Free{mine.blocks[size.number]};
}

size_t BlockPool::BytesKept() { return kept.bytes; }

}  // namespace frametap
