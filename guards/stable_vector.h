// StableVector: a vector that grows without moving its content. The long lists of a recording are made of parts, each
// twice as long as the one before. A vector that is moved as it grows would touch twice the memory. Many small parts
// lie in as many pages, and a first call pays for each page that is in no cache.
#pragma once

#include <bit>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "ir/block_pool.h"
#include "ir/dcheck.h"

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
    for (size_t part = 0; part < parts_.size(); ++part) BlockPool::Give(parts_[part], BytesOf(part));
  }

  template <class... Args>
  T& emplace_back(Args&&... args) {
    const Place at = PlaceOf(size_);
    if (at.part == parts_.size()) AddPart();
    T* made = std::construct_at(reinterpret_cast<T*>(parts_[at.part][at.index].bytes), std::forward<Args>(args)...);
    ++size_;
    return *made;
  }
  void pop_back() {  // its part is kept
    FT_DCHECK(size_ > 0);
    std::destroy_at(&At(--size_));
  }

  T& operator[](size_t i) {
    FT_DCHECK(i < size_);
    return At(i);
  }
  const T& operator[](size_t i) const { return const_cast<StableVector&>(*this)[i]; }
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
  static constexpr size_t kFirst = 16;  // a segment of a few ops has a few elements, and keeps them
  struct Slot {
    alignas(T) std::byte bytes[sizeof(T)];
  };
  static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  struct Place {
    size_t part, index;
  };
  static size_t BytesOf(size_t part) { return (kFirst << part) * sizeof(Slot); }
  void AddPart() {
    parts_.reserve(parts_.size() + 1);
    parts_.push_back(static_cast<Slot*>(BlockPool::Take(BytesOf(parts_.size()))));
  }
  T& At(size_t i) {
    const Place at = PlaceOf(i);
    return *reinterpret_cast<T*>(parts_[at.part][at.index].bytes);
  }
  // Before part p are kFirst * (2^p - 1) elements.
  static Place PlaceOf(size_t i) {
    const auto part = static_cast<size_t>(std::bit_width(i / kFirst + 1) - 1);
    return {part, i + kFirst - (kFirst << part)};
  }

  std::vector<Slot*> parts_;
  size_t size_ = 0;
};

}  // namespace frametap
