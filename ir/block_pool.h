// BlockPool: blocks of memory of more than a kilobyte, kept by each thread for its next recording.
// A first call takes some forty of them within a few hundred microseconds. A C library has small blocks at hand. It searches
// for each large one, and merges it with its neighbours later: together a twentieth of the time of such a call.
//   P1  Any block may be given back in any thread, and in another module of the process: each comes from operator new.
//   P2  A thread keeps at most kMostKept bytes. They are freed when the thread ends.
// A build with a sanitizer keeps nothing, so that each use of a block after its end is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace frametap {

class BlockPool {
 public:
  static constexpr size_t kMostKept = size_t{256} << 10;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  static constexpr bool kKeeps = false;
#else
  static constexpr bool kKeeps = true;
#endif

  // Returns a block of at least `bytes` bytes, aligned for any fundamental type. Throws std::bad_alloc.
  static void* Take(size_t bytes);
  static void Give(void* block, size_t bytes) noexcept;  // `bytes` as taken
  static size_t BytesKept();                             // of this thread
};

// For containers that live as long as a recording.
template <class T>
struct PoolAllocator {
  using value_type = T;
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

  PoolAllocator() = default;
  template <class U>
  PoolAllocator(const PoolAllocator<U>&) {}  // NOLINT(google-explicit-constructor): an allocator is rebound so

  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(BlockPool::Take(count * sizeof(T)));
  }
  void deallocate(T* block, size_t count) noexcept { BlockPool::Give(block, count * sizeof(T)); }
  template <class U>
  bool operator==(const PoolAllocator<U>&) const {
    return true;
  }
};

// A base of classes of more than a kilobyte whose objects are made one by one.
struct Pooled {
  static void* operator new(size_t bytes) { return BlockPool::Take(bytes); }
  static void operator delete(void* block, size_t bytes) noexcept { BlockPool::Give(block, bytes); }
};

}  // namespace frametap
