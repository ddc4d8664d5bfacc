#include "ir/graph/literal.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"

namespace frametap {
namespace {

struct NamedInt {
  const char* name;
  int64_t value;
};

constexpr NamedInt kLayouts[] = {
    {"strided", static_cast<int64_t>(c10::Layout::Strided)},
    {"sparse_coo", static_cast<int64_t>(c10::Layout::Sparse)},
    {"sparse_csr", static_cast<int64_t>(c10::Layout::SparseCsr)},
    {"sparse_csc", static_cast<int64_t>(c10::Layout::SparseCsc)},
    {"sparse_bsr", static_cast<int64_t>(c10::Layout::SparseBsr)},
    {"sparse_bsc", static_cast<int64_t>(c10::Layout::SparseBsc)},
    {"mkldnn", static_cast<int64_t>(c10::Layout::Mkldnn)},
    {"jagged", static_cast<int64_t>(c10::Layout::Jagged)},
};

constexpr NamedInt kMemoryFormats[] = {
    {"contiguous", static_cast<int64_t>(c10::MemoryFormat::Contiguous)},
    {"preserve", static_cast<int64_t>(c10::MemoryFormat::Preserve)},
    {"channels_last", static_cast<int64_t>(c10::MemoryFormat::ChannelsLast)},
    {"channels_last_3d", static_cast<int64_t>(c10::MemoryFormat::ChannelsLast3d)},
};

template <size_t N>
std::string Find(const NamedInt (&rows)[N], int64_t value) {
  for (const NamedInt& row : rows) {
    if (row.value == value) return row.name;
  }
  return "";
}

template <size_t N>
std::optional<int64_t> Find(const NamedInt (&rows)[N], const std::string& name) {
  for (const NamedInt& row : rows) {
    if (name == row.name) return row.value;
  }
  return std::nullopt;
}

// Length of the UTF-8 sequence at `i`; 0 if there is none.
size_t Utf8Length(const std::string& s, size_t i) {
  const auto at = [&](size_t k) { return k < s.size() ? static_cast<unsigned char>(s[k]) : 0u; };
  const unsigned lead = at(i);
  const size_t n = lead < 0x80                   ? 1
                   : lead >= 0xc2 && lead < 0xe0 ? 2
                   : (lead & 0xf0) == 0xe0       ? 3
                   : lead >= 0xf0 && lead < 0xf5 ? 4
                                                 : 0;
  for (size_t k = 1; k < n; ++k) {
    if ((at(i + k) & 0xc0) != 0x80) return 0;
  }
  if (n == 3 && ((lead == 0xe0 && at(i + 1) < 0xa0) || (lead == 0xed && at(i + 1) >= 0xa0))) return 0;
  if (n == 4 && ((lead == 0xf0 && at(i + 1) < 0x90) || (lead == 0xf4 && at(i + 1) >= 0x90))) return 0;
  return n;
}

bool IsDefaultGenerator(const at::Generator& generator) { return generator == at::detail::getDefaultCPUGenerator(); }

}  // namespace

std::string Quoted(const std::string& text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const size_t n = Utf8Length(text, i);
    const char c = text[i];
    if (n > 1) {
      out.append(text, i, n);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (n == 0 || static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += "\\x";
      out += kHex[static_cast<unsigned char>(c) >> 4];
      out += kHex[static_cast<unsigned char>(c) & 15];
    } else {
      out += c;
    }
    i += n == 0 ? 1 : n;
  }
  return out + "\"";
}

std::string FloatText(double value) {
  if (std::isnan(value)) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    if (bits == std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN())) return "nan";
    return absl::StrCat("nan(", absl::Hex(bits, absl::kZeroPad16), ")");
  }
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string out(buffer, end);
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

std::string DottedName(const c10::OperatorName& name) {
  const size_t colons = name.name.find("::");
  std::string out = colons == std::string::npos
                        ? name.name
                        : absl::StrCat(name.name.substr(0, colons), ".", name.name.substr(colons + 2));
  if (!name.overload_name.empty()) absl::StrAppend(&out, ".", name.overload_name);
  return out;
}

const c10::Type* StripOptional(const c10::Type* type) {
  while (type != nullptr && type->kind() == c10::TypeKind::OptionalType) {
    type = type->castRaw<c10::OptionalType>()->getElementType().get();
  }
  return type;
}

std::string EnumName(c10::TypeKind kind, int64_t value) {
  if (kind == c10::TypeKind::ScalarTypeType) {
    const bool known = value >= 0 && value < static_cast<int64_t>(c10::ScalarType::NumOptions);
    return known ? DtypeName(static_cast<c10::ScalarType>(value)) : "";
  }
  if (kind == c10::TypeKind::LayoutType) return Find(kLayouts, value);
  if (kind == c10::TypeKind::MemoryFormatType) return Find(kMemoryFormats, value);
  return "";
}

std::optional<int64_t> ParseEnumName(c10::TypeKind kind, const std::string& name) {
  if (kind == c10::TypeKind::ScalarTypeType) {
    const std::optional<c10::ScalarType> dtype = ParseDtype(name);
    return dtype ? std::optional<int64_t>(static_cast<int64_t>(*dtype)) : std::nullopt;
  }
  if (kind == c10::TypeKind::LayoutType) return Find(kLayouts, name);
  if (kind == c10::TypeKind::MemoryFormatType) return Find(kMemoryFormats, name);
  return std::nullopt;
}

std::string ConstText(const c10::IValue& value, const c10::Type* real) {
  real = StripOptional(real);
  if (value.isNone()) return "None";
  if (value.isBool()) return value.toBool() ? "True" : "False";
  if (value.isInt()) {
    const std::string name = real != nullptr ? EnumName(real->kind(), value.toInt()) : "";
    return name.empty() ? absl::StrCat(value.toInt()) : name;
  }
  if (value.isDouble()) return FloatText(value.toDouble());
  if (value.isComplexDouble()) {
    const c10::complex<double> z = value.toComplexDouble();
    return absl::StrCat("complex(", FloatText(z.real()), ", ", FloatText(z.imag()), ")");
  }
  if (value.isString()) return Quoted(value.toStringRef());
  if (value.isDevice()) return value.toDevice().str();
  if (value.isGenerator()) return IsDefaultGenerator(value.toGenerator()) ? "generator(default)" : "generator(other)";
  if (value.isTensor() && !value.toTensor().defined()) return "undefined";
  if (value.isList()) {
    const c10::Type* element = nullptr;
    c10::TypePtr held;
    if (real != nullptr && real->kind() == c10::TypeKind::ListType) {
      held = real->castRaw<c10::ListType>()->getElementType();
      element = held.get();
    }
    std::string out = "[";
    for (const c10::IValue& item : value.toListRef()) {
      if (out.size() > 1) out += ", ";
      out += ConstText(item, element);
    }
    return out + "]";
  }
  return absl::StrCat("<", value.tagKind(), ">");
}

bool HasText(const c10::IValue& value, const c10::Type* real) {
  real = StripOptional(real);
  if (value.isList()) {
    const bool list = real != nullptr && real->kind() == c10::TypeKind::ListType;
    if (!list) return false;  // the elements' type is not in the text
    const c10::TypePtr element = real->castRaw<c10::ListType>()->getElementType();
    for (const c10::IValue& item : value.toListRef()) {
      if (!HasText(item, element.get())) return false;
    }
    return true;
  }
  if (value.isDevice()) return real != nullptr && real->kind() == c10::TypeKind::DeviceObjType;
  if (value.isGenerator()) return value.toGenerator().defined() && value.toGenerator().device().is_cpu();
  return value.isNone() || value.isBool() || value.isInt() || value.isDouble() || value.isComplexDouble() ||
         value.isString() || (value.isTensor() && !value.toTensor().defined());
}

bool SameConst(const c10::IValue& a, const c10::IValue& b) {
  const auto bits = [](double d) { return std::bit_cast<uint64_t>(d); };
  if (a.isNone() || b.isNone()) return a.isNone() && b.isNone();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isDouble() && b.isDouble()) return bits(a.toDouble()) == bits(b.toDouble());
  if (a.isComplexDouble() && b.isComplexDouble()) {
    const c10::complex<double> x = a.toComplexDouble();
    const c10::complex<double> y = b.toComplexDouble();
    return bits(x.real()) == bits(y.real()) && bits(x.imag()) == bits(y.imag());
  }
  if (a.isString() && b.isString()) return a.toStringRef() == b.toStringRef();
  if (a.isDevice() && b.isDevice()) return a.toDevice() == b.toDevice();
  if (a.isGenerator() && b.isGenerator()) return a.toGenerator() == b.toGenerator();
  if (a.isTensor() && b.isTensor()) return !a.toTensor().defined() && !b.toTensor().defined();
  if (a.isList() && b.isList()) {
    const auto x = a.toListRef();
    const auto y = b.toListRef();
    if (x.size() != y.size()) return false;
    for (size_t i = 0; i < x.size(); ++i) {
      if (!SameConst(x[i], y[i])) return false;
    }
    return true;
  }
  return false;
}

bool IsWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

bool IsPathWord(const std::string& word) {
  for (const char c : word) {
    if (!IsWordChar(c)) return false;
  }
  return !word.empty();
}

}  // namespace frametap
