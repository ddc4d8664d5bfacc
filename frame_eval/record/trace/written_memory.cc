#include "frame_eval/record/trace/written_memory.h"

#include "ir/passes/writes.h"

namespace frametap {

void WrittenMemory::AddSource(const at::Tensor& tensor) {
  if (tensor.has_storage()) new_sources_.push_back(tensor.storage().unsafeGetStorageImpl());
}

bool WrittenMemory::IsSource(c10::StorageImpl* storage) {
  sources_.insert(new_sources_.begin(), new_sources_.end());
  new_sources_.clear();
  return sources_.contains(storage);
}

void WrittenMemory::NoteTensors(const std::vector<at::Tensor>& written) {
  for (const at::Tensor& tensor : written) {
    if (!tensor.has_storage()) {
      writes_inputs_ = is_unknown_ = true;
      continue;
    }
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    if (!IsSource(storage)) continue;
    writes_inputs_ = true;
    if (storages_.insert(storage).second) bytes_ += storage->nbytes();
  }
}

void WrittenMemory::NoteValue(const Graph& graph, ValueId value, absl::FunctionRef<bool(ValueId)> is_input) {
  NoteWritten(graph, value, &values_, [&](ValueId input) { writes_inputs_ |= is_input(input); });
}

}  // namespace frametap
