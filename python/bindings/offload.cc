// offload_weights: the float weights of a quantized model, which recordings read and runs do not, in a file.
#include "backends/quant/offload.h"

#include <pybind11/pybind11.h>

#include "absl/container/flat_hash_set.h"
#include "backends/quant/quant_backend.h"
#include "frame_eval/segment/segment.h"
#include "frame_eval/session/compiled_function.h"
#include "python/bindings/bindings.h"
#include "python/bindings/errors.h"

namespace frametap {
namespace {

namespace py = pybind11;

using Storages = absl::flat_hash_set<const c10::StorageImpl*>;

void Add(const at::Tensor& tensor, Storages* storages) {
  if (tensor.defined() && tensor.has_storage()) storages->insert(tensor.storage().unsafeGetStorageImpl());
}

void AddConstants(const Graph& graph, Storages* storages) {
  for (const auto& [value, tensor] : graph.constants) Add(tensor, storages);
}

// The memory that runs of the segment read.
void AddRead(const Segment& segment, Storages* storages) {
  AddConstants(segment.ir.graph, storages);
  if (segment.decisions != nullptr) AddConstants(segment.ir.decisions.graph, storages);
  if (const auto* made = dynamic_cast<const quant::QuantExecutable*>(segment.executable.get())) {
    AddConstants(made->converted().quantized.reference, storages);
    AddConstants(made->converted().quantized.lowered, storages);
  }
  for (size_t i = 0; i < segment.weights.size(); ++i) {
    if (segment.executable->Reads(i)) Add(segment.weights[i].Get(), storages);
  }
}

int64_t OffloadWeights(const py::object& compiled, int file) {
  const std::shared_ptr<SegmentCache> store = StoreOf(compiled.ptr());
  auto* const backend = dynamic_cast<quant::QuantBackend*>(&store->backend());
  if (backend == nullptr) throw py::type_error("not a statically quantized function");
  Storages read;
  for (const std::shared_ptr<Segment>& segment : store->segments()) AddRead(*segment, &read);
  std::vector<at::Tensor> unread;
  for (const at::Tensor& tensor : backend->conversions().AllWeights()) {
    if (tensor.defined() && tensor.has_storage() && !read.contains(tensor.storage().unsafeGetStorageImpl())) {
      unread.push_back(tensor);
    }
  }
  return ValueOrThrow(quant::Offload(unread, file), "QuantizationError");
}

}  // namespace

void BindOffload(py::module_& m) {
  m.def("offload_weights", &OffloadWeights, py::arg("compiled"), py::arg("file"),
        "Moves the weights that no run of these graphs reads to a file, and returns their bytes.");
}

}  // namespace frametap
