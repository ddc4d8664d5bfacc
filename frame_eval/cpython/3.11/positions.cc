// Positions from co_linetable, in the form that Objects/locations.md of CPython 3.11 describes: entries of some code
// units each, the line as a difference from the entry before.
#include <algorithm>
#include <iterator>
#include <string>

#include "frame_eval/cpython/3.11/decode.h"
#include "frame_eval/cpython/3.11/raw_frame.h"
#include "frame_eval/cpython/frame_view.h"

namespace frametap {
namespace {

enum : int { kShortForms = 10, kOneLineForms = 13, kNoColumns = 13, kLong = 14 };  // 15 means no position

class Reader {
 public:
  explicit Reader(PyObject* bytes)
      : at_(reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes))), end_(at_ + PyBytes_GET_SIZE(bytes)) {}
  bool more() const { return at_ < end_; }
  int Byte() { return more() ? *at_++ : 0; }
  int Number() {  // six bits a byte, the lowest first; bit 6: more follows
    int byte = Byte(), number = byte & 63;
    for (int shift = 6; (byte & 64) != 0 && shift < 30; shift += 6) number |= ((byte = Byte()) & 63) << shift;
    return number;
  }
  int Signed() {
    const int number = Number();
    return (number & 1) != 0 ? -(number >> 1) : number >> 1;
  }

 private:
  const unsigned char* at_;
  const unsigned char* end_;
};

// Returns co_qualname without the part before the innermost function that is not a method of a local class, and the
// file.
Position NamesOf(PyCodeObject* code) {
  Position position;
  const char* name = PyUnicode_AsUTF8(code->co_qualname);
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (name == nullptr || file == nullptr) PyErr_Clear();
  std::string function = name == nullptr ? "?" : name;
  constexpr char kOwner[] = "<locals>.";
  size_t owner = function.rfind(kOwner);
  if (owner != std::string::npos) function.erase(0, owner + sizeof(kOwner) - 1);
  position.function = std::move(function);
  position.file = file == nullptr ? "?" : file;
  return position;
}

const bool told = (tell_position = PositionAt, true);

}  // namespace

PositionTable::PositionTable(PyCodeObject* code) : code_(code), names_(NamesOf(code)) {
  places_.reserve(static_cast<size_t>(Py_SIZE(code)) / 2);
  int line = code->co_firstlineno, start = 0;
  for (Reader table(code->co_linetable); table.more();) {
    const int first = table.Byte(), form = first >> 3 & 15, units = (first & 7) + 1;
    Place place = {start, 0, -1};
    if (form < kShortForms) {
      place = {start, line, form << 3 | table.Byte() >> 4};
    } else if (form < kOneLineForms) {
      line += form - kShortForms;
      place = {start, line, table.Byte()};
      table.Byte();  // the end
    } else if (form == kNoColumns) {
      line += table.Signed();
      place.line = line;
    } else if (form == kLong) {
      line += table.Signed();
      table.Number();  // lines to the end
      place = {start, line, table.Number() - 1};
      table.Number();  // the end
    }
    places_.push_back(place);
    start += units;
  }
}

Position PositionTable::At(int offset) const {
  const int index = Acting(_PyCode_CODE(code_), offset / 2);
  Position position = names_;
  const auto next = std::upper_bound(places_.begin(), places_.end(), index,
                                     [](int unit, const Place& place) { return unit < place.start; });
  if (next == places_.begin()) return position;
  auto place = std::prev(next);
  // An exception leaves a handler at an instruction without a line. The handler ends before it.
  while (place->line <= 0 && place != places_.begin()) --place;
  if (place->line <= 0) return position;
  position.line = place->line;
  position.col = place->col;
  return position;
}

Position PositionAt(PyCodeObject* code, int offset) { return PositionTable(code).At(offset); }

}  // namespace frametap
