// Position: `function:line:col` of the expression acted on. Where: the position of a node with the stack above it.
// Not here: how a running frame gives its position (frame_eval/cpython).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace frametap {

// The name of a function, file or module, shared by all places in it: a recording copies thousands of them.
class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}

  const std::string& str() const {
    static const std::string kEmpty;
    return text_ ? *text_ : kEmpty;
  }
  operator const std::string&() const { return str(); }
  bool empty() const { return str().empty(); }
  friend bool operator==(const SharedText& a, const SharedText& b) { return a.text_ == b.text_ || a.str() == b.str(); }

 private:
  std::shared_ptr<const std::string> text_;
};

struct Position {
  SharedText function;  // co_qualname without the "<locals>" prefix of its owner: `Linear.forward`
  int line = 0;         // 1-based; 0 = unknown
  int col = -1;         // 0-based, in characters; -1 = unknown
  SharedText file;      // never printed in the stable text form

  bool known() const { return line > 0; }
  friend bool operator==(const Position& a, const Position& b) {
    return a.function == b.function && a.line == b.line && a.col == b.col;
  }
};

// One entry of the stack of nn.Modules that are running: `layers.0` and `Linear`.
struct ModuleScope {
  SharedText path;   // dotted path from the outermost module of the trace; "" for that module itself
  SharedText klass;  // qualified class name, `torch.nn.modules.linear.Linear`
};

struct Where {
  Position position;               // innermost user-visible expression
  std::vector<Position> callers;   // innermost first, without `position`
  std::vector<ModuleScope> scope;  // outermost first
};

using WherePtr = std::shared_ptr<const Where>;

std::string ToString(const Position& position);  // "forward:12:7", "forward:12" without a column, "?" if unknown

}  // namespace frametap
