// OpFactsCache: facts of each op, looked up once a recording. No op is removed while one runs.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <array>

#include "ir/ops/gives_argument.h"
#include "ir/ops/op_facts.h"

namespace frametap {

class OpFactsCache {
 public:
  struct Entry {
    const void* op = nullptr;
    const OpFacts* facts = nullptr;
    GivesArgument gives = GivesArgument::kByContent;
  };

  // Returns a reference that is valid until the next call.
  const Entry& Of(const c10::OperatorHandle& op) {
    const void* const address = &op.schema();
    Entry& entry = entries_[(reinterpret_cast<uintptr_t>(address) >> 6) % entries_.size()];
    if (entry.op != address) entry = {address, &FactsOf(op), GivesArgumentOf(op)};
    return entry;
  }

 private:
  std::array<Entry, 32> entries_;  // by address; of two at one place the later one
};

}  // namespace frametap
