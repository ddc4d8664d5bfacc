// GivesArgument: whether what an op gives may be the very tensor that it was given, beyond what its schema says of memory.
//   G1  A doubt errs towards kByContent: that an op never does, or does by types alone, has been decided by its row.
// Not here: ops that write to an argument and give it back; their schema says so.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>

namespace frametap {

enum class GivesArgument : uint8_t {
  kNever,
  kByType,     // ranks, dtypes, constants of the call and switches decide (atleast_2d, resolve_conj)
  kByContent,  // sizes, strides or numbers decide (contiguous, sum_to_size, dropout)
};

GivesArgument GivesArgumentOf(const c10::OperatorHandle& op);

}  // namespace frametap
