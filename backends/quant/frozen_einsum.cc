#include "backends/quant/frozen_einsum.h"

#include <ATen/ops/einsum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "backends/quant/op_table.h"
#include "backends/quant/rewrite.h"

namespace frametap::quant {
namespace {

constexpr size_t kMostThatStay = 6;  // each may be 1 or more, and all ways are tried

bool Has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

bool AreDistinct(std::string letters) {
  std::sort(letters.begin(), letters.end());
  return std::adjacent_find(letters.begin(), letters.end()) == letters.end();
}

// The indices of both operands and of the result, one character each.
struct Terms {
  std::array<std::string, 2> operands;
  std::string result;
};

// Dots are one character. Without an arrow, the result has dots and then the letters that occur once, in order.
std::optional<Terms> TermsOf(const std::string& text) {
  const std::string plain = absl::StrReplaceAll(text, {{" ", ""}, {"...", "."}});
  const std::vector<std::string> sides = absl::StrSplit(plain, "->");
  const std::vector<std::string> operands = absl::StrSplit(sides[0], ',');
  if (sides.size() > 2 || operands.size() != 2) return std::nullopt;
  Terms terms{{operands[0], operands[1]}, sides.back()};
  if (sides.size() == 1) {
    const std::string both = operands[0] + operands[1];
    terms.result = Has(both, '.') ? "." : "";
    std::string once;
    for (const char letter : both) {
      if (letter != '.' && std::count(both.begin(), both.end(), letter) == 1) once += letter;
    }
    std::sort(once.begin(), once.end());
    terms.result += once;
  }
  return terms;
}

// Writes the dots as that many indices of their own.
std::string WithoutDots(const std::string& term, int64_t dots) {
  std::string indices;
  for (int64_t i = 0; i < dots; ++i) indices += static_cast<char>(i + 1);
  return absl::StrReplaceAll(term, {{".", indices}});
}

std::vector<int64_t> PlacesOf(const std::string& letters, const std::string& term) {
  std::vector<int64_t> places;
  for (const char letter : letters) places.push_back(static_cast<int64_t>(term.find(letter)));
  return places;
}

std::string Chosen(const std::string& from, const std::string& others, bool is_in) {
  std::string chosen;
  for (const char letter : from) {
    if (Has(others, letter) == is_in) chosen += letter;
  }
  return chosen;
}

// Returns the indices of the result by descending strides, which depend on the sizes that are 1. `stay` may have any sizes:
// returns "" if the order depends on them.
std::string InMemory(const std::string& text, const std::array<std::string, 2>& operands, const std::string& result,
                     const std::string& stay, const std::string& ones) {
  std::string order;
  for (uint64_t some = 0; some < (uint64_t{1} << stay.size()); ++some) {
    const auto size_of = [&](char letter) {
      const size_t place = stay.find(letter);
      const bool is_one = place == std::string::npos ? Has(ones, letter) : (some >> place & 1) != 0;
      return is_one ? int64_t{1} : int64_t{2};
    };
    std::vector<at::Tensor> tensors;
    for (const std::string& operand : operands) {
      std::vector<int64_t> sizes;
      for (const char letter : operand) sizes.push_back(size_of(letter));
      tensors.push_back(at::zeros(sizes, at::kFloat));
    }
    const at::Tensor made = at::einsum(text, tensors);
    const auto stride_of = [&](char letter) { return made.stride(static_cast<int64_t>(result.find(letter))); };
    std::string now = result;
    std::stable_sort(now.begin(), now.end(), [&](char a, char b) { return stride_of(a) > stride_of(b); });
    if (some == 0) order = now;
    const auto longer = [&](std::string letters) {
      std::erase_if(letters, [&](char letter) { return size_of(letter) == 1; });
      return letters;
    };
    if (longer(now) != longer(order)) return "";
  }
  return order;
}

}  // namespace

std::optional<FrozenEinsum> FrozenEinsumOf(const Graph& graph, const Node& node, const std::vector<at::Tensor>& known) {
  const Arg& text = node.args[0];
  const std::vector<Arg>& operands = node.args[1].items;
  const auto is_value = [](const Arg& arg) { return arg.kind == Arg::Kind::kValue; };
  if (text.kind != Arg::Kind::kConst || !text.constant.isString() || operands.size() != 2 ||
      !std::all_of(operands.begin(), operands.end(), is_value)) {
    return std::nullopt;
  }
  const std::optional<Terms> terms = TermsOf(text.constant.toStringRef());
  if (!terms) return std::nullopt;
  const size_t w = known[operands[1].value.raw()].defined() ? 1 : 0;
  FrozenEinsum made;
  made.input = operands[1 - w].value;
  made.weight = known[operands[w].value.raw()];
  const Type& type = graph.value(made.input).type;
  if (!made.weight.defined() || made.weight.scalar_type() != at::kFloat || made.weight.numel() == 0 ||
      known[made.input.raw()].defined() || !IsFloatTensor(type)) {
    return std::nullopt;
  }
  const std::string& weight = terms->operands[w];
  const std::string& given = terms->operands[1 - w];
  const auto rank = static_cast<int64_t>(type.sizes.size());
  const int64_t dots = Has(given, '.') ? rank - static_cast<int64_t>(given.size()) + 1 : 0;
  if (dots < 0 || Has(weight, '.')) return std::nullopt;
  const std::string input = WithoutDots(given, dots), result = WithoutDots(terms->result, dots);
  if (static_cast<int64_t>(input.size()) != rank || static_cast<int64_t>(weight.size()) != made.weight.dim() ||
      !AreDistinct(input) || !AreDistinct(weight) || !AreDistinct(result)) {
    return std::nullopt;
  }
  const std::string contracted = Chosen(input, weight, true), stay = Chosen(input, weight, false);
  const std::string outputs = Chosen(result, weight, true), all = stay + outputs;
  // F1
  const bool is_product = !contracted.empty() && !outputs.empty() && Chosen(contracted, result, true).empty() &&
                          contracted.size() + outputs.size() == weight.size() && result.size() == all.size() &&
                          Chosen(stay, result, false).empty();
  if (!is_product) return std::nullopt;
  for (const char letter : contracted) {  // F2
    if (type.sizes[input.find(letter)] != made.weight.size(static_cast<int64_t>(weight.find(letter))))
      return std::nullopt;
  }
  made.input_order = PlacesOf(stay + contracted, input);
  made.weight_order = PlacesOf(outputs + contracted, weight);
  if (stay.size() > kMostThatStay) return std::nullopt;
  std::string ones;
  for (size_t i = 0; i < weight.size(); ++i) {
    if (made.weight.size(static_cast<int64_t>(i)) == 1) ones += weight[i];
  }
  std::array<std::string, 2> both{input, input};
  both[w] = weight;
  const std::string in_memory = InMemory(text.constant.toStringRef(), both, result, stay, ones);
  if (in_memory.empty()) return std::nullopt;
  made.in_memory = PlacesOf(in_memory, all);
  made.from_memory = PlacesOf(result, in_memory);
  made.contracted = static_cast<int64_t>(contracted.size());
  made.outputs = static_cast<int64_t>(outputs.size());
  return made;
}

}  // namespace frametap::quant
