#include "backends/onednn/library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "backends/onednn/api.h"

namespace frametap::onednn {
namespace {

constexpr char kFile[] = "libdnnl.so.3";
constexpr int kMinor = 2;  // the headers that this is written for

absl::Status Missing(const std::string& why) {
  return absl::UnimplementedError(absl::StrCat("oneDNN is missing: ", why,
                                               ". Install onednn-cpu-gomp 2023.2 with pip, or another oneDNN from 3.",
                                               kMinor, " up as ", kFile, " where the loader finds it"));
}

absl::StatusOr<Functions> Open() {
  int flags = RTLD_NOW | RTLD_LOCAL;
#if !defined(__SANITIZE_ADDRESS__)  // which refuses to have its hooks passed by
  flags |= RTLD_DEEPBIND;           // N1
#endif
  // The loader looks in the run path of the file that this code is in, too.
  void* const library = dlopen(kFile, flags);
  if (library == nullptr) return Missing(dlerror());  // NOLINT(concurrency-mt-unsafe): one thread is here
  Functions api{};
#define FRAMETAP_ONEDNN_FIND(name)                                                \
  api.name = reinterpret_cast<decltype(api.name)>(dlsym(library, "dnnl_" #name)); \
  if (api.name == nullptr) return Missing("the " + std::string(kFile) + " that is here has no dnnl_" #name);
  FRAMETAP_ONEDNN_FUNCTIONS(FRAMETAP_ONEDNN_FIND)
#undef FRAMETAP_ONEDNN_FIND
  const dnnl_version_t& version = *api.version();
  if (version.major != 3 || version.minor < kMinor) {
    return Missing(absl::StrCat("version ", version.major, ".", version.minor, " is here"));
  }
  if (version.cpu_runtime != DNNL_RUNTIME_OMP) {
    return Missing(absl::StrCat(kFile, " is here without OpenMP, so it would not use torch's threads"));
  }
  return api;
}

const absl::StatusOr<Functions>& Opened() {
  static const auto* const opened = new absl::StatusOr<Functions>(Open());  // N3
  return *opened;
}

}  // namespace

absl::Status Load() { return Opened().status(); }

const Functions& Api() {
  const absl::StatusOr<Functions>& opened = Opened();
  TORCH_CHECK(opened.ok(), std::string(opened.status().message()));
  return *opened;
}

std::string Version() {
  if (!Opened().ok()) return "";
  const dnnl_version_t& version = *Api().version();
  return absl::StrCat(version.major, ".", version.minor, ".", version.patch);
}

bool HasExactProducts() {
#if defined(__x86_64__)
  if (!Opened().ok()) return false;
  switch (Api().get_effective_cpu_isa()) {
    case dnnl_cpu_isa_default:
    case dnnl_cpu_isa_sse41:
    case dnnl_cpu_isa_avx:
    case dnnl_cpu_isa_avx2:
    case dnnl_cpu_isa_avx512_core:
      return false;
    default:
      return true;
  }
#else
  return true;
#endif
}

// Whether the processor has the instruction set, and oneDNN is not held below it.
static bool Has([[maybe_unused]] dnnl_cpu_isa_t isa) {
#if defined(__x86_64__)
  return Opened().ok() && Api().get_effective_cpu_isa() >= isa;
#else
  return false;
#endif
}

bool HasBfloat16Products() { return Has(dnnl_cpu_isa_avx512_core_bf16); }

bool HasWideVectors() { return Has(dnnl_cpu_isa_avx512_core); }

bool HasTiles() { return Has(dnnl_cpu_isa_avx512_core_amx); }

void Check(dnnl_status_t status, const char* action) {
  TORCH_CHECK(status == dnnl_success, "oneDNN could not ", action,
              status == dnnl_out_of_memory   ? ": out of memory"
              : status == dnnl_unimplemented ? ": it has no kernel for that on this processor"
                                             : ": status " + std::to_string(static_cast<int>(status)));
}

}  // namespace frametap::onednn
