// IValue <-> Python objects, for graphs that Python sees and for executables that are Python.
//   C1  ToPython gives what torch.ops accepts at that place of a schema: a dtype where the schema says ScalarType,
//       though the IValue holds an int.
//   C2  FromPython takes exactly the kinds a graph value can have; a bool is never an int, an int never a float.
// Both need Python's lock.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <pybind11/pybind11.h>

#include "absl/status/statusor.h"
#include "ir/graph/type.h"

namespace frametap {

// `schema_type`: the argument's real_type(); null where the IValue's own tag is all there is.
pybind11::object ToPython(const c10::IValue& value, const c10::Type* schema_type = nullptr);

// kInvalidArgument with "a tensor expected, got str" if `object` is not of the kind; Type::Kind::kOpaque takes all
// that any other kind takes.
absl::StatusOr<c10::IValue> FromPython(pybind11::handle object, Type::Kind kind);

// ImportModule of guards/objects/import.h, as pybind11 has it: throws what Python raised.
pybind11::object Imported(const char* module);

const char* KindName(Type::Kind kind);  // "tensor", "tensors", "int", "float", "bool", "none", "opaque"

}  // namespace frametap
