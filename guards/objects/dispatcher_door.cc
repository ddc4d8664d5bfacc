#include "guards/objects/dispatcher_door.h"

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
FRAMETAP_DOOR(Functor, &c10::BoxedKernel::functor_);
#undef FRAMETAP_DOOR

}  // namespace

void ForEachKernel(
    const c10::OperatorHandle& op,
    absl::FunctionRef<void(const c10::intrusive_ptr<c10::OperatorKernel>& functor, const void* unboxed)> seen) {
  for (const c10::KernelFunction& kernel : (op.*MemberOf(Definition()))->op.*MemberOf(Table())) {
    const c10::intrusive_ptr<c10::OperatorKernel>& functor = kernel.*MemberOf(Boxed()).*MemberOf(Functor());
    const void* const unboxed = kernel.*MemberOf(Unboxed());
    if (functor || unboxed != nullptr) seen(functor, unboxed);
  }
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
