// StableVector: a vector that grows without moving what is in it. The long lists of a recording are made of parts: one that
// doubles would touch twice the memory, and a first call pays for each page that is touched for the first time.
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace frametap {

template <class T>
class StableVector {
 public:
  StableVector() = default;
  StableVector(StableVector&& other) noexcept : parts_(std::move(other.parts_)), size_(std::exchange(other.size_, 0)) {}
  StableVector& operator=(StableVector&& other) noexcept {
    std::swap(parts_, other.parts_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~StableVector() {
    while (size_ > 0) pop_back();
  }

  template <class... Args>
  T& emplace_back(Args&&... args) {
    if (size_ == kPart * parts_.size()) parts_.push_back(std::make_unique_for_overwrite<Part>());
    T* made = std::construct_at(&(*this)[size_], std::forward<Args>(args)...);
    ++size_;
    return *made;
  }
  void pop_back() { std::destroy_at(&(*this)[--size_]); }  // its part is kept

  T& operator[](size_t i) { return reinterpret_cast<T*>(parts_[i / kPart]->bytes)[i % kPart]; }
  const T& operator[](size_t i) const { return reinterpret_cast<const T*>(parts_[i / kPart]->bytes)[i % kPart]; }
  T& back() { return (*this)[size_ - 1]; }
  size_t size() const { return size_; }

  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = const T*;
    using reference = const T&;

    Iterator() = default;
    Iterator(const StableVector* all, size_t at) : all_(all), at_(at) {}
    const T& operator*() const { return (*all_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    Iterator operator++(int) { return {all_, at_++}; }
    bool operator==(const Iterator& other) const { return at_ == other.at_; }

   private:
    const StableVector* all_ = nullptr;
    size_t at_ = 0;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size_}; }

 private:
  static constexpr size_t kPart = 8;  // a segment of a few ops has a few elements, and keeps them
  struct Part {
    alignas(T) std::byte bytes[kPart * sizeof(T)];
  };

  std::vector<std::unique_ptr<Part>> parts_;
  size_t size_ = 0;
};

}  // namespace frametap
