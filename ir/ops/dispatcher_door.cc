#include "ir/ops/dispatcher_door.h"

#include <ATen/ops/relu_ops.h>
#include <dlfcn.h>
#include <link.h>

#include <utility>

namespace frametap {
namespace {

// An explicit instantiation may name a private member.
template <class Tag, auto member>
struct Door {
  friend constexpr auto MemberOf(Tag) { return member; }
};
#define FRAMETAP_DOOR(Tag, member)       \
  struct Tag {                           \
    friend constexpr auto MemberOf(Tag); \
  };                                     \
  template struct Door<Tag, member>
FRAMETAP_DOOR(Definition, &c10::OperatorHandle::operatorDef_);
FRAMETAP_DOOR(Table, &c10::impl::OperatorEntry::dispatchTable_);
FRAMETAP_DOOR(Boxed, &c10::KernelFunction::boxed_kernel_func_);
FRAMETAP_DOOR(Unboxed, &c10::KernelFunction::unboxed_kernel_func_);
FRAMETAP_DOOR(WithSymbols, &c10::KernelFunction::sym_unboxed_kernel_func_);
FRAMETAP_DOOR(BoxedCode, &c10::BoxedKernel::boxed_kernel_func_);
FRAMETAP_DOOR(Functor, &c10::BoxedKernel::functor_);
#undef FRAMETAP_DOOR

const auto& TableOf(const c10::OperatorHandle& op) { return (op.*MemberOf(Definition()))->op.*MemberOf(Table()); }

struct Code {
  uintptr_t begin = 0, end = 0;
};

// The memory of the library that has this function. Empty if it is unknown.
Code CodeWith(const void* function) {
  Dl_info library;
  if (dladdr(function, &library) == 0) return {};
  std::pair<const void*, Code> found(library.dli_fbase, {});
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        auto& [base, code] = *static_cast<std::pair<const void*, Code>*>(out);
        if (reinterpret_cast<const void*>(info->dlpi_addr) != base) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& part = info->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
          code = {info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz};
        }
        return 1;
      },
      &found);
  return found.second;
}

}  // namespace

void ForEachKernel(
    const c10::OperatorHandle& op,
    absl::FunctionRef<void(const c10::intrusive_ptr<c10::OperatorKernel>& functor, const void* unboxed)> seen) {
  for (const c10::KernelFunction& kernel : TableOf(op)) {
    const c10::intrusive_ptr<c10::OperatorKernel>& functor = kernel.*MemberOf(Boxed()).*MemberOf(Functor());
    const void* const unboxed = kernel.*MemberOf(Unboxed());
    if (functor || unboxed != nullptr) seen(functor, unboxed);
  }
}

bool RunsCodeOfTorch(const c10::OperatorHandle& op, c10::DispatchKey key) {
  static const Code torch = CodeWith(reinterpret_cast<const void*>(&at::_ops::relu::call));
  const int at = c10::getDispatchTableIndexForDispatchKey(key);
  if (at < 0) return false;
  const c10::KernelFunction& kernel = TableOf(op)[static_cast<size_t>(at)];
  const auto is_torchs = [](const void* code) {
    return torch.begin <= reinterpret_cast<uintptr_t>(code) && reinterpret_cast<uintptr_t>(code) < torch.end;
  };
  // A kernel has code for ints, code for symbolic sizes, or both. One without either has boxed code.
  const void* const plain = kernel.*MemberOf(Unboxed());
  const void* const symbolic = kernel.*MemberOf(WithSymbols());
  if (plain == nullptr && symbolic == nullptr) {
    const c10::BoxedKernel& boxed = kernel.*MemberOf(Boxed());
    return !(boxed.*MemberOf(Functor())) && is_torchs(reinterpret_cast<const void*>(boxed.*MemberOf(BoxedCode())));
  }
  return (plain == nullptr || is_torchs(plain)) && (symbolic == nullptr || is_torchs(symbolic));
}

std::string DispatcherProblem() {
  // One has kernels for devices, the other one is composed of other ops.
  for (const char* name : {"aten::relu", "aten::dropout"}) {
    size_t found = 0;
    if (const auto op = c10::Dispatcher::singleton().findSchema({name, ""})) {
      ForEachKernel(*op, [&](const auto&, const void*) { ++found; });
    }
    if (found > 0) continue;
    return "frametap cannot read the kernels of torch's operators: reinstall torch 2.13.0, and rebuild frametap";
  }
  return "";
}

}  // namespace frametap
