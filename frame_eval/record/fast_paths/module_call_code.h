// The two functions of torch.nn.Module.__call__ that module_calls.cc crosses: a digest of each, and offsets in it.
// `python tests/python/test_module_calls.py --accept` writes this file for CPython 3.11 and torch 2.13. Before you
// accept another one, read torch's code beside module_calls.cc.
#pragma once

#include <cstdint>

namespace frametap::module_call {

// _wrapped_call_impl
constexpr uint64_t kWrappedDigest = 0x91e1c73c5bcaff31;
constexpr int kReadCompiled = 4;
constexpr int kReadCallImpl = 46;
constexpr int kMergeWrapped = 62;
constexpr int kPassOnWrapped = 64;

// _call_impl
constexpr uint64_t kCallDigest = 0x982e5918fc7d21cb;
constexpr int kCellCount = 6;
constexpr int kReadTorch = 14;
constexpr int kReadC = 26;
constexpr int kReadGetTracingState = 36;
constexpr int kGetTracingState = 62;
constexpr int kReadForward = 90;
constexpr int kReadHooks[] = {104, 118, 132, 146};
constexpr int kAskHooks[] = {114, 128, 142, 156};
constexpr int kReadGlobalHooks[] = {158, 172, 186, 200};
constexpr int kAskGlobalHooks[] = {170, 184, 198, 212};
constexpr int kMergeCall = 224;
constexpr int kPassOnCall = 226;

}  // namespace frametap::module_call
