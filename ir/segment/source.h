// Source: a path by which replay reaches an object again, as a chain of accessors from a root.
//   S1  A source's parent has a smaller id; equal (parent, accessor, key) is one source.
//   S2  NameHash is HashOf of the name, and no name is made for it.
// Not here: following a path on real objects (guards/kinds/accessor.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/dcheck.h"
#include "ir/graph/ids.h"

namespace frametap {

enum class Accessor : uint8_t {
#define ACCESSOR(kind, ...) kind,
#include "ir/segment/accessors.def"
#undef ACCESSOR
};
std::string_view WordOf(Accessor accessor);

struct Source {
  SourceId parent;  // invalid for roots
  Accessor accessor = Accessor::kLocal;
  int64_t index = 0;
  std::string text;
};

class SourceTable {
 public:
  // S1: finds an equal one.
  SourceId Add(Source source);
  // Adds `source` under a text of its own: keys that print alike are marked `'`, `'2`, `'3` in their order.
  SourceId AddApart(Source source);
  const Source& operator[](SourceId id) const {
    FT_DCHECK(id.valid() && id.raw() < sources_.size());
    return sources_[id.raw()];
  }
  size_t size() const { return sources_.size(); }
  SourceId root(SourceId id) const;
  std::string Name(SourceId id) const;                                     // "L.self.layers[0].weight"
  uint64_t NameHash(SourceId id) const { return name_hashes_[id.raw()]; }  // S2

 private:
  using Key = std::tuple<uint32_t, Accessor, int64_t, std::string>;

  static Key KeyOf(const Source& source) { return {source.parent.raw(), source.accessor, source.index, source.text}; }

  // Returns the letter of a global that is shown from a root, and null for other sources.
  const char* GlobalLetter(const Source& source) const;
  std::string ShownStep(const Source& source) const;
  bool BeginsName(const Source& source) const { return !source.parent.valid() || GlobalLetter(source) != nullptr; }

  std::vector<Source> sources_;
  std::vector<uint64_t> name_hashes_;
  absl::flat_hash_map<Key, SourceId> ids_;
  absl::flat_hash_map<Key, size_t> marks_;  // the number of marks of each text
};

bool IsPinnedPath(const std::string& text);            // `torch.nn.Linear`: can stand as a root as it is
std::string LengthName(const std::string& container);  // of its length as a number: "L.x.len"
std::string StepText(const Source& source);            // the last step of a source: ".weight", "[0]", "L.x"
uint64_t HashOf(std::string_view name);
uint64_t LengthNameHash(uint64_t container);  // of LengthName, by the hash of the container's name

}  // namespace frametap
