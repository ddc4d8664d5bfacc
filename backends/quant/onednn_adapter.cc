#include "backends/quant/onednn_adapter.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace frametap::quant {
namespace {

constexpr const char* kConvPack =
    "onednn::qconv_prepack(Tensor weight, Tensor w_scales, float x_scale, int x_zp, int[] stride, int[] padding, "
    "int[] dilation, int groups, int[]? x_shape=None) -> Tensor";
constexpr const char* kConv =
    "onednn::qconv_pointwise(Tensor qx, float x_scale, int x_zero_point, Tensor qw, Tensor w_scale, Tensor "
    "w_zero_point, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups, float output_scale, int "
    "output_zero_point, ScalarType? output_dtype, str attr, Scalar?[] scalars, str? algorithm) -> Tensor";
constexpr const char* kConvSum =
    "onednn::qconv2d_pointwise.binary(Tensor qx, float x_scale, int x_zero_point, Tensor qw, Tensor w_scale, Tensor "
    "w_zero_point, Tensor(a!) qaccum, Tensor? bias, int[] stride, int[] padding, int[] dilation, int groups, float "
    "output_scale, int output_zero_point, ScalarType? output_dtype, float accum_scale, int accum_zero_point, str "
    "binary_attr, Scalar? alpha, str? unary_attr, Scalar?[] unary_scalars, str? unary_algorithm) -> Tensor";
constexpr const char* kLinearPack = "onednn::qlinear_prepack(Tensor weight, int[]? x_shape) -> Tensor";
constexpr const char* kLinear =
    "onednn::qlinear_pointwise(Tensor qx, float x_scale, int x_zero_point, Tensor qw, Tensor w_scale, Tensor "
    "w_zero_point, Tensor? bias, float output_scale, int output_zero_point, ScalarType? output_dtype, str "
    "post_op_name, Scalar?[] post_op_args, str post_op_algorithm) -> Tensor";

absl::StatusOr<c10::OperatorHandle> Find(const char* name, const char* overload, const char* expected) {
  const auto found = c10::Dispatcher::singleton().findSchema(c10::OperatorName(name, overload));
  if (!found) return absl::UnimplementedError(absl::StrCat("this torch has no operator ", name));
  std::ostringstream schema;
  schema << found->schema();
  if (schema.str() != expected) {
    return absl::UnimplementedError(absl::StrCat("the schema of ", name, " is not the one this build knows: expected ",
                                                 expected, ", found ", schema.str()));
  }
  return *found;
}

absl::StatusOr<Int8Kernels> FindAll() {
  auto conv_pack = Find("onednn::qconv_prepack", "", kConvPack);
  if (!conv_pack.ok()) return conv_pack.status();
  auto conv = Find("onednn::qconv_pointwise", "", kConv);
  if (!conv.ok()) return conv.status();
  auto conv_sum = Find("onednn::qconv2d_pointwise", "binary", kConvSum);
  if (!conv_sum.ok()) return conv_sum.status();
  auto linear_pack = Find("onednn::qlinear_prepack", "", kLinearPack);
  if (!linear_pack.ok()) return linear_pack.status();
  auto linear = Find("onednn::qlinear_pointwise", "", kLinear);
  if (!linear.ok()) return linear.status();
  return Int8Kernels{*conv_pack, *conv, *conv_sum, *linear_pack, *linear};
}

c10::IValue Numbers(const std::vector<double>& numbers) {
  c10::List<std::optional<at::Scalar>> list;
  for (double n : numbers) list.push_back(at::Scalar(n));
  return list;
}

c10::IValue OptionalSizes(c10::IntArrayRef sizes) {
  const bool known = !sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [](int64_t s) { return s > 0; });
  return known ? c10::IValue(sizes) : c10::IValue();
}

std::vector<Arg> Weighted(const KernelCall& call) {
  return {
      Arg::Of(call.x),      Arg::Const(call.x_params.scale), Arg::Const(call.x_params.zero_point), Arg::Of(call.weight),
      Arg::Of(call.scales), Arg::Of(call.zero_points)};
}

Arg Bias(const KernelCall& call) { return call.bias ? Arg::Of(*call.bias) : Arg::Const(c10::IValue()); }

void AppendShape(const ConvShape& shape, std::vector<Arg>* args) {
  args->push_back(Arg::Const(shape.stride));
  args->push_back(Arg::Const(shape.padding));
  args->push_back(Arg::Const(shape.dilation));
  args->push_back(Arg::Const(shape.groups));
}

void AppendOut(const KernelCall& call, std::vector<Arg>* args) {
  args->push_back(Arg::Const(call.out ? call.out->scale : 1.0));
  args->push_back(Arg::Const(call.out ? call.out->zero_point : int64_t{0}));
  args->push_back(Arg::Const(static_cast<int64_t>(call.out ? at::kByte : at::kFloat)));
}

void AppendPost(const PostOp& post, std::vector<Arg>* args) {
  args->push_back(Arg::Const(post.name));
  args->push_back(Arg::Const(Numbers(post.numbers)));
  args->push_back(Arg::Const(post.algorithm));
}

}  // namespace

absl::StatusOr<const Int8Kernels*> FindInt8Kernels() {
  static const auto* const kernels = new absl::StatusOr<Int8Kernels>(FindAll());
  if (!kernels->ok()) return kernels->status();
  return &**kernels;
}

namespace {

// oneDNN can be held below what the CPU has; it reads these variables, whatever their case, and the first one wins.
bool IsHeldBelowVnni() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == 0) continue;
    const std::string isa = absl::AsciiStrToLower(value);
    return isa == "sse41" || isa == "avx" || isa == "avx2" || isa == "avx512_core";
  }
  return false;
}

}  // namespace

bool CpuTakesFullRange() {
#if defined(__x86_64__)
  static const bool is_held_below_vnni = IsHeldBelowVnni();
  if (is_held_below_vnni) return false;
  return at::cpu::is_avx512_vnni_supported() || __builtin_cpu_supports("avxvnni");
#else
  return true;
#endif
}

at::Tensor PackConv(const Int8Kernels& kernels, const at::Tensor& weight, const at::Tensor& scales, const Params& x,
                    const ConvShape& shape, c10::IntArrayRef x_sizes) {
  torch::jit::Stack stack{weight,        scales,         x.scale,      x.zero_point,          shape.stride,
                          shape.padding, shape.dilation, shape.groups, OptionalSizes(x_sizes)};
  kernels.conv_pack.callBoxed(stack);
  return stack[0].toTensor();
}

at::Tensor PackLinear(const Int8Kernels& kernels, const at::Tensor& weight, c10::IntArrayRef x_sizes) {
  torch::jit::Stack stack{weight, OptionalSizes(x_sizes)};
  kernels.linear_pack.callBoxed(stack);
  return stack[0].toTensor();
}

std::vector<Arg> ConvArgs(const KernelCall& call, const ConvShape& shape) {
  std::vector<Arg> args = Weighted(call);
  args.push_back(Bias(call));
  AppendShape(shape, &args);
  AppendOut(call, &args);
  AppendPost(call.post, &args);
  return args;
}

std::vector<Arg> ConvSumArgs(const KernelCall& call, const ConvShape& shape, ValueId accumulator,
                             const Params& params) {
  std::vector<Arg> args = Weighted(call);
  args.push_back(Arg::Of(accumulator));
  args.push_back(Bias(call));
  AppendShape(shape, &args);
  AppendOut(call, &args);
  args.push_back(Arg::Const(params.scale));
  args.push_back(Arg::Const(params.zero_point));
  args.push_back(Arg::Const("sum"));
  args.push_back(Arg::Const(1.0));
  AppendPost(call.post, &args);
  return args;
}

std::vector<Arg> LinearArgs(const KernelCall& call) {
  std::vector<Arg> args = Weighted(call);
  args.push_back(Bias(call));
  AppendOut(call, &args);
  AppendPost(call.post, &args);
  return args;
}

}  // namespace frametap::quant
