// Plan: a graph made ready to run. It has the origin of every argument and the last use of every value.
//   P1  A value that the run made is moved out of its register by its last use, so that it dies as soon as in eager. An
//       unused value is never kept. Inputs belong to the caller.
//   P2  Values that never change are boxed once: constants, wrapped numbers, lists of constants.
//   P3  A plan is immutable: runs share nothing but it.
//   P4  A number that an op would convert to float32 at each run is converted once if the difference cannot be
//       observed. The op and the run must fit ir/ops/below_autograd.h, the other operand is float32, and no bit
//       depends on the time of the conversion.
//   P5  A constant of the graph is shared by all runs if no run can write to it or return it. Otherwise a step makes a
//       copy before its first use.
//   P6  An elementwise op whose first operand is a result of this run that dies here may write over it, if the
//       difference cannot be observed (ir/ops/in_place.h).
//   P7  A node that repeats an earlier one is not a step (ir/passes/repeats.h): numbers in any plan, tensors in one for runs
//       that are not observed. P1 and P6 hold for the nodes that are left.
// Not here: running (executor.cc).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "backends/reference/boxing.h"
#include "ir/graph/graph.h"
#include "ir/ops/below_autograd.h"
#include "ir/passes/repeats.h"

namespace frametap {

struct PlannedArg {
  enum class From : uint8_t { kPool, kNumber, kInput, kCopy, kMove, kList };

  From from = From::kPool;
  Boxing boxing = Boxing::kAsIs;  // kInput, kCopy, kMove
  uint32_t index = 0;  // into Plan::pool (of kNumber: and after it as float32), inputs, registers, Plan::lists
};

struct PlannedList {
  c10::TypePtr element;
  std::vector<PlannedArg> items;
};

struct PlannedStep {
  enum class Kind : uint8_t { kOp, kFactory, kScalar, kCopyConstant };

  Kind kind = Kind::kOp;
  bool changes = false;                                    // what existed before
  BelowAutograd below_autograd = BelowAutograd::kDiffers;  // in this step's state
  BuiltinOp builtin_op = BuiltinOp::kNone;
  uint32_t state = 0;
  uint32_t args_begin = 0, args_end = 0;        // into Plan::args
  uint32_t results_begin = 0, results_end = 0;  // into Plan::results
  std::optional<c10::OperatorHandle> op;
  std::optional<c10::OperatorHandle> in_place;  // P6
};

struct Plan {
  static constexpr uint32_t kDropped = 0xffffffffu;  // an unused result

  size_t inputs = 0;
  std::vector<uint32_t> inputs_read;  // ascending
  size_t registers = 0;
  size_t widest = 0;  // the most arguments or results of a step
  std::vector<PlannedStep> steps;
  std::vector<PlannedArg> args;
  std::vector<uint32_t> results;  // registers, or kDropped
  std::vector<PlannedList> lists;
  std::vector<c10::IValue> pool;
  std::vector<EagerState> states;
  std::vector<std::pair<c10::OperatorHandle, OpVerdict>> judged;  // ops by which steps leave something out
  uint64_t kernels_noted = 0;                                     // when they were judged
  std::vector<PlannedArg> outputs;
};

Plan MakePlan(const Graph& graph, const Repeats& repeats, bool share_tensors);  // P7

}  // namespace frametap
