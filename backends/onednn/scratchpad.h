// Scratchpad: memory of a thread for intermediate results of its kernels.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>

namespace frametap::onednn {

// One for each thread and user; grows to the largest need.
template <class User>
class Scratchpad {
 public:
  // The memory begins at a page. It is overwritten by the thread's next call.
  static void* OfThread(size_t bytes) {
    thread_local Scratchpad scratchpad;
    return scratchpad.AtLeast(bytes);
  }
  ~Scratchpad() { std::free(data_); }

 private:
  void* AtLeast(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      size_ = 0;
      data_ = nullptr;
      constexpr size_t kPage = 4096;
      if (posix_memalign(&data_, kPage, bytes) != 0) throw std::bad_alloc();
      size_ = bytes;
    }
    return data_;
  }

  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace frametap::onednn
