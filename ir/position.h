// Position: `function:line:col` of the expression acted on; Where: the position of a node with the stack above it.
// Not here: how a running frame tells its position (frame_eval/cpython).
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace frametap {

struct Position {
  std::string function;  // co_qualname without the "<locals>" prefix of its owner: `Linear.forward`
  int line = 0;          // 1-based; 0 = unknown
  int col = -1;          // 0-based, in characters; -1 = unknown
  std::string file;      // never printed in the stable text form

  bool known() const { return line > 0; }
  friend bool operator==(const Position& a, const Position& b) {
    return a.function == b.function && a.line == b.line && a.col == b.col;
  }
};

// One entry of the stack of nn.Modules that are running: `layers.0` and `Linear`.
struct ModuleScope {
  std::string path;   // dotted path from the outermost module of the trace; "" for that module itself
  std::string klass;  // qualified class name, `torch.nn.modules.linear.Linear`
};

struct Where {
  Position position;               // innermost user-visible expression
  std::vector<Position> callers;   // innermost first, without `position`
  std::vector<ModuleScope> scope;  // outermost first
};

using WherePtr = std::shared_ptr<const Where>;

std::string ToString(const Position& position);  // "forward:12:7", "forward:12" without a column, "?" if unknown

}  // namespace frametap
