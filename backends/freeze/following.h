// FollowingBackend: freezes graphs of a model that stays the program's, as torch.compile has it.
//   W1  A run gives what the weights are at that moment. A frozen form belongs to certain tensors at certain versions; a
//       run with others makes a form for them. Some writes count no version: through `.data`, by fused optimizers, of
//       running statistics, by NumPy. Elements are compared for these, all of a small tensor and a sample of a large one.
//   W2  Each set of weights has one form, which goes when its weights go. Many layers may share one graph.
//   W3  A form is not made again at every call: after a few changes in a row it waits for a call without one.
//   W4  A graph that computes gradients or was recorded in training mode runs as it was recorded, and says why.
//   W5  Modes of grad stay as recorded; images in results are channels_last where inputs or weights are.
// Not here: what freezing does (freeze.h); frozen copies of models (freeze_backend.h).
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "backends/backend.h"
#include "backends/freeze/freeze.h"

namespace frametap::freeze {

// A dense tensor as it was when it was frozen. Its memory is not kept.
class SeenWeight {
 public:
  SeenWeight(size_t input, const at::Tensor& tensor);

  size_t input() const { return input_; }
  bool IsTensor(const at::Tensor& tensor) const;
  bool IsUnchanged(const at::Tensor& tensor) const;  // of the tensor that it is
  bool IsGone() const { return tensor_.expired(); }
  void SeeAgain(const at::Tensor& tensor);

 private:
  size_t input_;
  c10::weak_intrusive_ptr<c10::TensorImpl> tensor_;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const void* data_ = nullptr;
  uint32_t version_ = 0;
  std::vector<std::byte> elements_;
};

class FollowingExecutable : public Executable {
 public:
  // `is_weight`: by input.
  FollowingExecutable(const Graph& graph, Config config, std::vector<bool> is_weight,
                      std::unique_ptr<Executable> recorded);

  // Makes the form for these inputs.
  absl::Status Prepare(const std::vector<c10::IValue>& inputs);
  std::vector<c10::IValue> Run(const std::vector<c10::IValue>& inputs, bool* changed) override;
  bool runs_recorded_ops() const override { return false; }
  bool approximates() const override { return true; }

  uint64_t runs() const { return runs_; }
  uint64_t freezes() const { return freezes_; }
  size_t forms() const;
  // The form that ran last; null if it ran as recorded.
  std::shared_ptr<const FrozenGraph> frozen() const;

 private:
  struct Form {
    std::vector<SeenWeight> weights;  // those that are in it, or were in the form before
    std::shared_ptr<const FrozenGraph> frozen;
    std::shared_ptr<Executable> executable;  // null: the recorded ops
    int changes_in_a_row = 0;
  };

  Form* Find(const std::vector<c10::IValue>& inputs);
  absl::Status Fill(const std::vector<c10::IValue>& inputs, Form* form);
  std::shared_ptr<Executable> ExecutableFor(const std::vector<c10::IValue>& inputs);
  std::vector<at::Tensor> WeightsAmong(const std::vector<c10::IValue>& inputs) const;

  const Graph& graph_;
  const Config config_;
  const std::vector<bool> is_weight_;
  const std::unique_ptr<Backend> native_ = MakeNativeBackend();
  const std::shared_ptr<Executable> recorded_;
  const std::vector<size_t> open_;  // inputs whose memory the graph writes to or hands out
  mutable std::mutex mutex_;        // for all below
  std::vector<Form> forms_;
  size_t last_ = 0;  // the form that ran last
  std::atomic<uint64_t> runs_ = 0;
  std::atomic<uint64_t> freezes_ = 0;
};

class FollowingBackend : public Backend {
 public:
  using IsWeight = std::function<bool(const at::Tensor&)>;

  // `is_weight`: whether a tensor is expected to stay as it is from call to call.
  FollowingBackend(IsWeight is_weight, Config config) : is_weight_(std::move(is_weight)), config_(config) {}

  std::string name() const override { return "freeze"; }
  absl::StatusOr<std::unique_ptr<Executable>> Compile(const Graph& graph) override { return native_->Compile(graph); }
  absl::StatusOr<std::unique_ptr<Executable>> CompileFor(const Graph& graph, const Examples& examples) override;

  // W4, and graphs that could not be frozen.
  std::vector<std::string> problems() const;
  size_t problem_count() const { return problem_count_; }

 private:
  void Note(std::string problem);

  const std::unique_ptr<Backend> native_ = MakeNativeBackend();
  const IsWeight is_weight_;
  const Config config_;
  mutable std::mutex mutex_;
  std::vector<std::string> problems_;
  std::atomic<size_t> problem_count_ = 0;
};

}  // namespace frametap::freeze
