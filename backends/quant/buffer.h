// Buffer: memory of one call. A small one is the thread's, and used again by its next call: the steps of a recurrence are many
// and small.
#pragma once

#include <cstdint>
#include <memory>

namespace frametap::quant {

// Two buffers of one type that a call has at a time need different users.
template <class T, class User>
class Buffer {
 public:
  static constexpr int64_t kMostKept = 16384;

  explicit Buffer(int64_t size) {
    if (size > kMostKept) {
      own_ = std::make_unique_for_overwrite<T[]>(static_cast<size_t>(size));
      data_ = own_.get();
      return;
    }
    thread_local const std::unique_ptr<T[]> kept = std::make_unique_for_overwrite<T[]>(kMostKept);
    data_ = kept.get();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return data_; }

 private:
  std::unique_ptr<T[]> own_;
  T* data_;
};

}  // namespace frametap::quant
