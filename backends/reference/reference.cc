// The reference backend: node by node, every value kept to the end. Slow and obvious: the others are compared with it.
#include "backends/backend.h"
#include "backends/reference/graph_interpreter.h"
#include "ir/ops/op_facts.h"
#include "ir/text/text.h"

namespace frametap {
namespace {

class ReferenceExecutable : public Executable {
 public:
  explicit ReferenceExecutable(const Graph& graph) : graph_(graph) {}

  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override {
    const std::vector<int> to_the_end(graph_.values.size(), 1);
    GraphInterpreter walk(graph_, inputs, to_the_end, GraphInterpreter::Constants::kFresh);
    while (!walk.done()) {
      const Node& node = graph_.nodes[walk.next().raw()];
      *changed = *changed || (node.op && FactsOf(*node.op).changes_what_was());
      walk.Step();
    }
    return walk.Outputs();
  }

 private:
  const Graph graph_;
};

class ReferenceBackend : public Backend {
 public:
  std::string name() const override { return "reference"; }
  bool calls_numpy() const override { return true; }

  absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) override {
    if (absl::Status valid = VerifyRunnable(graph); !valid.ok()) return valid;
    return std::make_unique<ReferenceExecutable>(graph);
  }
};

}  // namespace

std::unique_ptr<Backend> MakeReferenceBackend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace frametap
