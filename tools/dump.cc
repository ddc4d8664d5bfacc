// frametap-dump: reads graphs and segments in their text form, checks them, and prints them in the canonical form.
//   usage: frametap-dump [--check] [FILE...]     without a FILE: standard input; --check: print complaints only
// Status 0: everything parses, verifies and prints to a text that parses to the same; 1: something does not; 2: usage.
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/quant/operators.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

struct Block {
  int line = 1;  // of its first line in the file, 1-based
  std::string text;
};

// A block begins with a line that has no indentation and ends with the line "}". Lines between blocks (blank lines,
// miss reports, headings of a log) belong to no block.
std::vector<Block> SplitBlocks(std::istream& in) {
  std::vector<Block> blocks;
  std::string line;
  bool inside = false;
  for (int number = 1; std::getline(in, line); ++number) {
    if (!inside && (line.rfind("segment ", 0) == 0 || line.rfind("graph ", 0) == 0)) {
      blocks.push_back({number, ""});
      inside = true;
    }
    if (!inside) continue;
    blocks.back().text += line + "\n";
    inside = line != "}";
  }
  return blocks;
}

template <class T>
absl::StatusOr<std::string> Canonical(absl::StatusOr<T> parsed, absl::StatusOr<T> (*parse)(std::string_view)) {
  if (!parsed.ok()) return parsed.status();
  if (absl::Status status = Verify(*parsed); !status.ok()) return status;
  std::string text = Print(*parsed);
  absl::StatusOr<T> again = parse(text);
  if (!again.ok()) return again.status();
  if (Print(*again) != text) return absl::InternalError("what was printed prints differently when it is parsed again");
  return text;
}

absl::StatusOr<std::string> Canonical(const std::string& text) {
  if (text.rfind("segment ", 0) == 0) return Canonical(ParseSegment(text), &ParseSegment);
  return Canonical(ParseGraph(text), &ParseGraph);
}

// The number of blocks that are not right.
int Dump(const std::string& name, std::istream& in, bool print) {
  int wrong = 0;
  std::vector<Block> blocks = SplitBlocks(in);
  if (blocks.empty()) {
    std::cerr << name << ": no graph and no segment\n";
    return 1;
  }
  for (const Block& block : blocks) {
    absl::StatusOr<std::string> text = Canonical(block.text);
    if (!text.ok()) {
      std::cerr << name << ": in the block that begins at line " << block.line << ": " << text.status().message()
                << "\n";
      ++wrong;
    } else if (print) {
      std::cout << *text << (text->empty() || text->back() != '\n' ? "\n" : "");
    }
  }
  return wrong;
}

int Main(const std::vector<std::string>& arguments) {
  bool print = true;
  int wrong = 0;
  std::vector<std::string> files;
  for (const std::string& argument : arguments) {
    if (argument == "--check") {
      print = false;
    } else if (argument.size() > 1 && argument[0] == '-') {
      std::cerr << "usage: frametap-dump [--check] [FILE...]\n";
      return 2;
    } else {
      files.push_back(argument);
    }
  }
  quant::RegisterOperators();  // so that quantized graphs parse
  if (files.empty()) wrong += Dump("standard input", std::cin, print);
  for (const std::string& name : files) {
    std::ifstream in(name);
    if (!in) {
      std::cerr << name << ": cannot be read\n";
      ++wrong;
      continue;
    }
    wrong += Dump(name, in, print);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace frametap

int main(int argc, char** argv) { return frametap::Main(std::vector<std::string>(argv + 1, argv + argc)); }
