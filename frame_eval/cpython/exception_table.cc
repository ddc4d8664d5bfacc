#include "frame_eval/cpython/exception_table.h"

#include <cstddef>

namespace frametap {
namespace {

// An entry is four numbers; each is a row of bytes with six bits, the highest first. Bit 7 marks the first byte of an
// entry, bit 6 marks a number that continues.
class Reader {
 public:
  explicit Reader(PyCodeObject* code)
      : at_(reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(code->co_exceptiontable))),
        end_(at_ + PyBytes_GET_SIZE(code->co_exceptiontable)) {}

  bool Next(ExceptionHandler* entry) {
    if (at_ >= end_) return false;
    entry->start = Number();
    entry->end = entry->start + Number();
    entry->target = Number();
    int depth_and_last = Number();
    entry->depth = depth_and_last >> 1;
    entry->push_last = depth_and_last & 1;
    return true;
  }

  // In long tables: goes to the last entry that starts at or before `index` by halving. Entries are sorted by start.
  void Seek(int index) {
    constexpr std::ptrdiff_t kShort = 48;
    const unsigned char* low = at_;
    const unsigned char* high = end_;
    while (high - low > kShort) {
      const unsigned char* middle = low + (high - low) / 2;
      while (middle > low && (*middle & 0x80) == 0) --middle;
      if (middle == low) break;
      at_ = middle;
      if (Number() > index) {
        high = middle;
      } else {
        low = middle;
      }
    }
    at_ = low;
  }

 private:
  int Number() {
    int value = *at_ & 0x3f;
    while (*at_++ & 0x40) value = value << 6 | (*at_ & 0x3f);
    return value;
  }

  const unsigned char* at_;
  const unsigned char* end_;
};

}  // namespace

bool FindHandler(PyCodeObject* code, int index, ExceptionHandler* found) {
  Reader reader(code);
  reader.Seek(index);
  while (reader.Next(found) && found->start <= index) {
    if (index < found->end) return true;
  }
  return false;
}

std::vector<ExceptionHandler> AllHandlers(PyCodeObject* code) {
  std::vector<ExceptionHandler> all;
  Reader reader(code);
  for (ExceptionHandler entry; reader.Next(&entry);) all.push_back(entry);
  return all;
}

}  // namespace frametap
