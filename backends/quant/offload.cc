#include "backends/quant/offload.h"

#include <c10/core/StorageImpl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

namespace frametap::quant {
namespace {

// Pages of the file, as the memory of a storage.
struct Mapping {
  void* pages;
  size_t bytes;

  ~Mapping() { munmap(pages, bytes); }
};

void Unmap(void* mapping) { delete static_cast<Mapping*>(mapping); }

absl::Status Failed(const char* what) { return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno))); }

absl::Status Write(int file, const char* bytes, size_t size, off_t at) {
  while (size > 0) {
    const ssize_t written = pwrite(file, bytes, size, at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed("the weights could not be written to a file");
    bytes += written;
    at += written;
    size -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

bool IsMapped(const c10::StorageImpl& storage) { return storage.data_ptr().get_deleter() == &Unmap; }

}  // namespace

absl::StatusOr<int64_t> Offload(const std::vector<at::Tensor>& tensors, int file) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  absl::flat_hash_set<c10::StorageImpl*> met;
  std::vector<std::pair<c10::StorageImpl*, c10::DataPtr>> moved;
  off_t end = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.has_storage() || !tensor.is_cpu()) continue;
    c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
    const size_t size = storage->nbytes();
    if (size < kLeastOffloaded || storage->data() == nullptr || !met.insert(storage).second) continue;
    if (IsMapped(*storage)) {
#ifdef MADV_PAGEOUT
      madvise(storage->mutable_data(), size, MADV_PAGEOUT);  // a hint: an older kernel refuses it
#endif
      continue;
    }
    if (auto status = Write(file, static_cast<const char*>(storage->data()), size, end); !status.ok()) return status;
    void* const pages = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, end);
    if (pages == MAP_FAILED) return Failed("the file of the weights could not be mapped");
    auto* const mapping = new Mapping{pages, size};
    moved.emplace_back(storage, c10::DataPtr(pages, mapping, &Unmap, c10::Device(c10::DeviceType::CPU)));
    end += static_cast<off_t>((size + page - 1) / page * page);
  }
  int64_t bytes = 0;
  for (auto& [storage, data] : moved) {  // O2
    storage->set_data_ptr_noswap(std::move(data));
    bytes += static_cast<int64_t>(storage->nbytes());
  }
  return bytes;
}

}  // namespace frametap::quant
