#include "frame_eval/record/trace/python_ops.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>

#include <algorithm>
#include <optional>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "frame_eval/record/trace.h"
#include "guards/objects/thread_end.h"

namespace frametap {

bool MayBeSeen(const std::vector<PendingEffect>& changes) {
  return std::any_of(changes.begin(), changes.end(),
                     [](const PendingEffect& change) { return change.nodes_before != PendingEffect::kSeenByNobody; });
}

void RunInPython(absl::FunctionRef<void()> body) {
  AtenPause below;
  const PyGILState_STATE lock = StayingAtThreadEnd(PyGILState_Ensure);
  const absl::Cleanup unlock = [lock] { PyGILState_Release(lock); };
  body();
  if (PyErr_Occurred() != nullptr) {
    python_error error;
    error.persist();
    throw error;
  }
}

void RegisterPythonOp(const std::string& schema, c10::DispatchKey key, const c10::KernelFunction& kernel) {
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>();
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  const c10::FunctionSchema parsed = torch::jit::parseSchema(schema);
  handles->push_back(dispatcher.registerDef(parsed, "frametap", {}));
  handles->push_back(dispatcher.registerImpl(parsed.operator_name(), key, kernel, std::nullopt, nullptr, "frametap"));
}

void RegisterPythonOps(const char* name, const char* writing, const char* more, const c10::KernelFunction& kernel) {
  const auto add = [&](const char* op, const char* tensors) {
    RegisterPythonOp(absl::StrCat(op, "(int function, ", tensors, " tensors", more, ") -> ", tensors),
                     c10::DispatchKey::CompositeImplicitAutograd, kernel);
  };
  add(name, "Tensor[]");
  add(writing, "Tensor(a!)[]");
}

}  // namespace frametap
