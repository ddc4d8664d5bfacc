#include "backends/freeze/following.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "backends/quant/op_table.h"
#include "backends/quant/rewrite.h"
#include "ir/passes/writes.h"

namespace frametap::freeze {
namespace {

constexpr int kChangesInARow = 3;

// Elements that are compared: all of a tensor up to the first number, else as many as the second says.
constexpr int64_t kAllElements = 1024;
constexpr int64_t kSample = 64;

// Whether its memory is plain and its writes are counted.
bool CountsWrites(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && tensor.device().is_cpu() &&
         !tensor.is_inference() && !tensor.key_set().has_any(c10::python_ks) && tensor.is_non_overlapping_and_dense();
}

// Calls `f` with parts of the memory of a dense tensor, until it returns false. Returns whether it never did.
template <class F>
bool ForEachCompared(const at::Tensor& tensor, F&& f) {
  const auto* const data = static_cast<const std::byte*>(tensor.const_data_ptr());
  const auto size = static_cast<size_t>(tensor.element_size());
  const int64_t count = tensor.numel();
  if (count <= kAllElements) return f(data, static_cast<size_t>(count) * size);
  // The golden ratio of 2^32 spreads the sample over rows and columns.
  for (uint64_t i = 0; i < kSample; ++i) {
    if (!f(data + i * 0x9E3779B1 % static_cast<uint64_t>(count) * size, size)) return false;
  }
  return true;
}

bool ComputesGradients(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    const bool has_gradients = node.state.valid() && graph.states[node.state.raw()].grad_mode;
    return has_gradients && std::any_of(node.outputs.begin(), node.outputs.end(),
                                        [&](ValueId v) { return graph.value(v).type.requires_grad; });
  });
}

// A node that does something else in training, or null.
const Node* TrainingOp(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    for (const char* name : {"training", "train"}) {
      if (quant::ConstBool(quant::FindArg(node, name)) == true) return &node;
    }
  }
  return nullptr;
}

// Why the graph is not frozen; "" if it may be (W4).
std::string WhyNot(const Graph& graph) {
  if (ComputesGradients(graph)) {
    return "a graph computes gradients, and runs as it was recorded; call the model under torch.no_grad() or "
           "torch.inference_mode()";
  }
  if (const Node* const node = TrainingOp(graph)) {
    return absl::StrCat("a graph was recorded in training mode (", quant::NameWithPlace(*node),
                        "), and runs as it was recorded; call eval() on the model");
  }
  return "";
}

// Inputs whose memory the graph may write to, or hand to its caller, who may write to it.
std::vector<size_t> OpenInputs(const Graph& graph) {
  std::vector<bool> seen(graph.values.size(), false);
  absl::flat_hash_set<ValueId> inputs;
  const auto note = [&](ValueId v) { NoteWritten(graph, v, &seen, [&](ValueId in) { inputs.insert(in); }); };
  for (const Node& node : graph.nodes) {
    for (ValueId v : quant::WrittenBy(node)) note(v);
  }
  for (ValueId v : graph.outputs) note(v);
  std::vector<size_t> places;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    if (inputs.contains(graph.inputs[i])) places.push_back(i);
  }
  return places;
}

}  // namespace

SeenWeight::SeenWeight(size_t input, const at::Tensor& tensor)
    : input_(input), tensor_(tensor.getIntrusivePtr()), storage_(tensor.storage().getWeakStorageImpl()) {
  SeeAgain(tensor);
}

void SeenWeight::SeeAgain(const at::Tensor& tensor) {
  storage_ = tensor.storage().getWeakStorageImpl();
  data_ = tensor.const_data_ptr();
  version_ = tensor.unsafeGetTensorImpl()->version_counter().current_version();
  elements_.clear();
  ForEachCompared(tensor, [&](const std::byte* part, size_t size) {
    elements_.insert(elements_.end(), part, part + size);
    return true;
  });
}

bool SeenWeight::IsTensor(const at::Tensor& tensor) const {
  // A weak reference keeps the address from being another tensor's.
  return tensor_._unsafe_get_target() == tensor.unsafeGetTensorImpl();
}

bool SeenWeight::IsUnchanged(const at::Tensor& tensor) const {
  if (version_ != tensor.unsafeGetTensorImpl()->version_counter().current_version() || !CountsWrites(tensor) ||
      storage_._unsafe_get_target() != tensor.storage().unsafeGetStorageImpl() || data_ != tensor.const_data_ptr()) {
    return false;
  }
  const std::byte* seen = elements_.data();
  return ForEachCompared(tensor, [&](const std::byte* part, size_t size) {
    const bool is_equal = std::memcmp(seen, part, size) == 0;
    seen += size;
    return is_equal;
  });
}

FollowingExecutable::FollowingExecutable(const Graph& graph, Config config, std::vector<bool> is_weight,
                                         std::unique_ptr<Executable> recorded)
    : graph_(graph),
      config_(config),
      is_weight_(std::move(is_weight)),
      recorded_(std::move(recorded)),
      open_(OpenInputs(graph)) {}

std::vector<c10::IValue> FollowingExecutable::Run(const std::vector<c10::IValue>& inputs, bool* changed) {
  const std::shared_ptr<Executable> executable = ExecutableFor(inputs);
  ++runs_;
  return executable->Run(inputs, changed);
}

absl::Status FollowingExecutable::Prepare(const std::vector<c10::IValue>& inputs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Form form;
  absl::Status made = Fill(inputs, &form);
  if (made.ok()) forms_.push_back(std::move(form));
  return made;
}

size_t FollowingExecutable::forms() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return forms_.size();
}

std::shared_ptr<const FrozenGraph> FollowingExecutable::frozen() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return last_ < forms_.size() ? forms_[last_].frozen : nullptr;
}

std::shared_ptr<Executable> FollowingExecutable::ExecutableFor(const std::vector<c10::IValue>& inputs) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Form* form = Find(inputs);
  if (form == nullptr) {
    std::erase_if(forms_, [](const Form& f) {
      return std::any_of(f.weights.begin(), f.weights.end(), [](const SeenWeight& w) { return w.IsGone(); });
    });
    form = &forms_.emplace_back();
    Fill(inputs, form).IgnoreError();
  } else {
    const bool is_unchanged = std::all_of(form->weights.begin(), form->weights.end(), [&](const SeenWeight& w) {
      return w.IsUnchanged(inputs[w.input()].toTensor());
    });
    form->changes_in_a_row = is_unchanged ? 0 : form->changes_in_a_row + 1;
    if (is_unchanged ? form->executable == nullptr && form->frozen == nullptr && !form->weights.empty()
                     : form->changes_in_a_row <= kChangesInARow) {
      Fill(inputs, form).IgnoreError();
    } else if (!is_unchanged) {  // W3
      form->executable = nullptr;
      form->frozen = nullptr;
      for (SeenWeight& w : form->weights) w.SeeAgain(inputs[w.input()].toTensor());
    }
  }
  last_ = static_cast<size_t>(form - forms_.data());
  const bool runs_frozen = form->executable != nullptr && AreFinite(form->frozen->checked, inputs);
  return runs_frozen ? form->executable : recorded_;
}

FollowingExecutable::Form* FollowingExecutable::Find(const std::vector<c10::IValue>& inputs) {
  const auto is_of = [&](const Form& form) {
    return std::all_of(form.weights.begin(), form.weights.end(),
                       [&](const SeenWeight& w) { return w.IsTensor(inputs[w.input()].toTensor()); });
  };
  if (last_ < forms_.size() && is_of(forms_[last_])) return &forms_[last_];
  const auto found = std::find_if(forms_.begin(), forms_.end(), is_of);
  return found == forms_.end() ? nullptr : &*found;
}

// Whichever input reaches memory that the graph writes to or hands out, it is not a weight.
std::vector<at::Tensor> FollowingExecutable::WeightsAmong(const std::vector<c10::IValue>& inputs) const {
  absl::flat_hash_set<const c10::StorageImpl*> open;
  for (const size_t i : open_) {
    if (inputs[i].isTensor() && inputs[i].toTensor().has_storage()) {
      open.insert(inputs[i].toTensor().storage().unsafeGetStorageImpl());
    }
  }
  std::vector<at::Tensor> weights(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!is_weight_[i] || !inputs[i].isTensor() || !CountsWrites(inputs[i].toTensor())) continue;
    const at::Tensor& tensor = inputs[i].toTensor();
    if (!open.contains(tensor.storage().unsafeGetStorageImpl())) weights[i] = tensor;
  }
  return weights;
}

// Fills a form for these inputs. One that cannot be made runs the recorded ops.
absl::Status FollowingExecutable::Fill(const std::vector<c10::IValue>& inputs, Form* form) {
  const std::vector<at::Tensor> weights = WeightsAmong(inputs);
  Config config = config_;
  config.keeps_grad_mode = true;
  quant::FrozenWeights used;
  ++freezes_;
  // A write by another thread during the work shows as a change at the next call.
  std::vector<SeenWeight> seen;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].defined()) seen.emplace_back(i, weights[i]);
  }
  auto frozen = Freeze(graph_, weights, config, &used);
  form->executable = nullptr;
  form->frozen = nullptr;
  form->weights.clear();
  if (!frozen.ok()) return frozen.status();
  std::erase_if(seen, [&](const SeenWeight& w) { return !used.HasUsed(weights[w.input()]); });
  auto made = std::make_shared<const FrozenGraph>(*std::move(frozen));
  auto executable = native_->Compile(made->graph);
  if (!executable.ok()) return executable.status();
  form->weights = std::move(seen);
  form->frozen = std::move(made);
  form->executable = *std::move(executable);
  return absl::OkStatus();
}

std::vector<std::string> FollowingBackend::problems() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return problems_;
}

void FollowingBackend::Note(std::string problem) {
  const std::lock_guard<std::mutex> lock(mutex_);
  problems_.push_back(std::move(problem));
  ++problem_count_;
}

absl::StatusOr<std::unique_ptr<Executable>> FollowingBackend::CompileFor(const Graph& graph, const Examples& examples) {
  auto recorded = native_->CompileFor(graph, examples);
  if (!recorded.ok()) return recorded;
  std::string problem = WhyNot(graph);
  if (problem.empty()) {
    std::vector<bool> is_weight(examples.values.size());
    for (size_t i = 0; i < is_weight.size(); ++i) {
      is_weight[i] = examples.values[i].isTensor() && is_weight_(examples.values[i].toTensor());
    }
    auto following = std::make_unique<FollowingExecutable>(graph, config_, std::move(is_weight), *std::move(recorded));
    const absl::Status made = following->Prepare(examples.values);
    if (made.ok()) return following;
    problem = std::string(made.message());
    recorded = native_->CompileFor(graph, examples);
  }
  Note(std::move(problem));
  return recorded;
}

}  // namespace frametap::freeze
