// Literals of the text form: constants of nodes, quoted strings, words of paths.
//   L1  A literal parses to the same bits: floats are printed shortest-exact, -0.0, inf and the payload of a nan are
//       kept.
//   L2  How an int is written follows from the schema: a dtype, layout or memory format has a name.
// Not here: values and nodes (print.cc, parse.h).
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <optional>
#include <string>

#include "ir/graph/graph.h"

namespace frametap {

std::string Quoted(const std::string& text);  // "a\"b\n": escapes quotes, backslashes, control bytes, broken UTF-8
std::string FloatText(double value);
std::string DottedName(const c10::OperatorName& name);  // "aten.add.Tensor"

// A constant as an argument of type `real` (Argument::real_type); null for a scalar op's. `<Storage>` if it has no
// text.
std::string ConstText(const c10::IValue& value, const c10::Type* real);
bool HasText(const c10::IValue& value, const c10::Type* real);
// Same kind and same bits; never for two objects without a text.
bool SameConst(const c10::IValue& a, const c10::IValue& b);

const c10::Type* StripOptional(const c10::Type* type);  // the element of an optional; the type itself otherwise

// Names of ints by the kind of the schema's type; empty if the kind has no names or the number has none.
std::string EnumName(c10::TypeKind kind, int64_t value);
std::optional<int64_t> ParseEnumName(c10::TypeKind kind, const std::string& name);

bool IsWordChar(char c);                   // letters, digits, '_' and bytes of UTF-8 sequences
bool IsPathWord(const std::string& word);  // can stand after a '.' of a path

}  // namespace frametap
