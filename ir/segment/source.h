// Source: a path by which replay reaches an object again, as a chain of accessors from a root.
//   S1  A source's parent has a smaller id; equal (parent, accessor, key) is one source.
// Not here: following a path on real objects (guards/kinds/accessor.h).
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "ir/graph/ids.h"

namespace frametap {

enum class Accessor : uint8_t {
  kLocal,       // root: a local variable of the entry frame       L.x            index = slot, text = name
  kCell,        // root: content of a cell or free variable        C.x            index = slot, text = name
  kStack,       // root: a slot of the entry frame's value stack   S[0]           index = depth from the bottom
  kPinned,      // root: an object known by identity               torch.nn.Module (text)   index = ConstId
  kFunction,    // root: the function that the entry frame runs    F
  kAttr,        // instance attribute (its __dict__ or slot)       .weight        text = name
  kModuleAttr,  // nn.Module parameter, buffer or submodule        .weight        text = name
  kItem,        // element of a list or tuple                      [0]            index
  kKey,         // value of a dict                                 ["mask"]       text = printed key, index = ConstId
  kGlobal,      // module global of a function                     G.scale        text = name
  kBuiltin,     // name in builtins                                B.len          text = name
  kTypeOf,      // type(x)                                         type(L.x)
  kDict,        // x.__dict__                                      .__dict__
  kClosure,     // content of a cell of a function                 .<closure>[0]  index
  kDefault,     // positional default of a function                .<default>[0]  index
  kKwDefault,   // keyword-only default                            .<default>["x"] text
  kSelf,        // __self__ of a bound method                      .__self__
  kFunc,        // __func__ of a bound method; the function whose frame a generator has   .__func__
  kFrame,   // what is in a slot of the frame of a generator that is suspended: local, cell, stack   .<frame>[0]   index
  kSize,    // x.size(i) as an int                             .size(0)       index
  kStride,  // x.stride(i)                                     .stride(0)     index
  kLength,  // len(x) as an int                                .len
  kGrad,    // x.grad                                          .grad
  kDictKeyAt,  // i-th key of a dict, in order                    .keys[0]       index
  kOver,      // what an iterator takes from: a sequence, a dict, an iterator, a tuple of iterators   .<over>[0]   index
  kNext,      // the item, or value, that it gives after i others  .<next>[0]      index
  kNextKey,   // … the key                                       .<key>[0]       index
  kCount,     // … the number that it makes, as an int           .<count>[0]     index
  kLeft,      // how many items are left in it, as an int        .<left>
  kAddress,   // id(x) as an int                              .<id>
  kReferent,  // object that a weak reference refers to; None if it is gone   .<referent>
  kContextValue,  // value of a contextvars.ContextVar; NotImplemented if it is not set   .<context>
};

struct Source {
  SourceId parent;  // invalid for roots
  Accessor accessor = Accessor::kLocal;
  int64_t index = 0;
  std::string text;
};

class SourceTable {
 public:
  SourceId Add(Source source);  // S1: finds an equal one
  const Source& operator[](SourceId id) const { return sources_[id.raw()]; }
  size_t size() const { return sources_.size(); }
  SourceId root(SourceId id) const;
  std::string Name(SourceId id) const;  // "L.self.layers[0].weight"

 private:
  using Key = std::tuple<uint32_t, Accessor, int64_t, std::string>;

  std::vector<Source> sources_;
  absl::flat_hash_map<Key, SourceId> ids_;
};

bool IsPinnedPath(const std::string& text);  // `torch.nn.Linear`: can stand as a root as it is
std::string StepText(const Source& source);  // the last step of a source: ".weight", "[0]", "L.x"

}  // namespace frametap
