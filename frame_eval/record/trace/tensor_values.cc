#include "frame_eval/record/trace/tensor_values.h"

#include <algorithm>

#include "ir/dcheck.h"

namespace frametap {

void TensorValues::Reserve(size_t count) {
  tensors_.reserve(count);
  journal_.reserve(count);
  inputs_.reserve(count);
}

KnownTensor* TensorValues::Find(const at::Tensor& tensor) {
  auto it = tensors_.find(tensor.unsafeGetTensorImpl());
  return it == tensors_.end() ? nullptr : &it->second;
}

bool TensorValues::AddSource(const at::Tensor& tensor, SourceId source) {
  KnownTensor known{KnownTensor::Weak(tensor.getIntrusivePtr()), ValueId(), source};
  return tensors_.try_emplace(tensor.unsafeGetTensorImpl(), std::move(known)).second;
}

std::optional<ValueId> TensorValues::ValueOf(const at::Tensor& tensor) {
  KnownTensor* known = Find(tensor);
  if (known == nullptr || known->data_set) return std::nullopt;
  FT_DCHECK(!known->value.valid() || known->value.raw() < graph_->values.size());
  if (!known->value.valid()) {
    if (!known->source.valid()) return std::nullopt;
    known->value = graph_->AddInput("", Type::Of(tensor));
    journal_.emplace_back(tensor.unsafeGetTensorImpl(), ValueId());
    FT_DCHECK(inputs_.empty() || inputs_.back().second < known->value);
    inputs_.emplace_back(known->source, known->value);
  }
  return known->value;
}

bool TensorValues::IsGivenBack(const at::Tensor& tensor) {
  for (size_t i = journal_.size(); i-- > 0;) {
    if (journal_[i].first == tensor.unsafeGetTensorImpl()) return journal_[i].second.valid();
  }
  return Find(tensor)->source.valid();
}

ValueId TensorValues::ValueBefore(const at::Tensor& tensor, const Mark& mark) {
  for (size_t i = mark.journal; i < journal_.size(); ++i) {
    if (journal_[i].first == tensor.unsafeGetTensorImpl()) return journal_[i].second;
  }
  return *ValueOf(tensor);
}

void TensorValues::Bind(const at::Tensor& tensor, ValueId value) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  auto [it, is_new] =
      tensors_.try_emplace(impl, KnownTensor{KnownTensor::Weak(tensor.getIntrusivePtr()), value, SourceId()});
  journal_.emplace_back(impl, is_new ? ValueId() : it->second.value);
  it->second.value = value;
}

ValueId TensorValues::AddNumberInput(SourceId source, Type type) {
  const ValueId id = graph_->AddInput("", std::move(type));
  FT_DCHECK(inputs_.empty() || inputs_.back().second < id);
  inputs_.emplace_back(source, id);
  return id;
}

SourceId TensorValues::SourceOfInput(ValueId id) const {
  const auto found = std::lower_bound(inputs_.begin(), inputs_.end(), id,
                                      [](const auto& input, ValueId wanted) { return input.second < wanted; });
  return found != inputs_.end() && found->second == id ? found->first : SourceId();
}

std::optional<at::Tensor> TensorValues::TensorOfInput(ValueId id) {
  const SourceId source = SourceOfInput(id);
  for (auto& [impl, known] : tensors_) {
    if (!source.valid() || known.source != source) continue;
    if (auto tensor = known.weak.lock()) return at::Tensor(std::move(tensor));
  }
  return std::nullopt;
}

void TensorValues::Rewind(const Mark& mark) {
  FT_DCHECK(mark.journal <= journal_.size() && mark.inputs <= inputs_.size());
  FT_DCHECK(inputs_.size() == graph_->inputs.size());
  while (journal_.size() > mark.journal) {
    const auto [impl, before] = journal_.back();
    journal_.pop_back();
    auto it = tensors_.find(impl);
    if (it == tensors_.end()) continue;
    it->second.value = before;
    if (!before.valid() && !it->second.source.valid()) tensors_.erase(it);
  }
  inputs_.resize(mark.inputs);
  graph_->inputs.resize(mark.inputs);
}

template <typename IsUsed>
std::vector<TensorValues::Use> TensorValues::UsesOf(IsUsed is_used, bool KnownTensor::*set) const {
  std::vector<Use> uses;
  for (const auto& [impl, known] : tensors_) {
    if (known.source.valid() && is_used(known)) uses.push_back({known.source, known.*set});
  }
  std::sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.source < b.source; });
  return uses;
}

std::vector<TensorValues::Use> TensorValues::GradUses() const {
  return UsesOf([](const KnownTensor& known) { return known.grad_read || known.grad_set; }, &KnownTensor::grad_set);
}

std::vector<TensorValues::Use> TensorValues::DataUses() const {
  return UsesOf([](const KnownTensor& known) { return known.value.valid() || known.data_set; }, &KnownTensor::data_set);
}

}  // namespace frametap
