// Annotation: what each node of a normalised graph becomes, and which values exist in 8 bits. Decided once; convert
// and lower follow it.
//   A1  Convolutions and linears with a frozen f32 weight are int8, and need their input in 8 bits. Later ops in the
//       same kernel (relu, a residual add and its relu, a curve) belong to them.
//   A2  Asking goes backward: an add, a pool, a reshape, a concatenation runs on bytes if its result is asked for, and
//       then asks for its own inputs. Nothing is quantized that no int8 op reads.
//   A3  Ops on bytes that cannot leave the range of their input share its parameters (union-find).
//   A4  Every node has a role and, if it stays float, a reason in words.
//   A5  A value whose memory some later op writes in place stays float. A layer may make one: bytes in, floats out.
//   A6  A recurrence with frozen weights multiplies bytes, and needs no calibration.
//   A7  A large linear layer whose input has few rows, and comes from floats, quantizes each row at each call, in two bytes
//       (dynamic_linear/D4). Its time is the time of reading its weights.
//   A8  Attention on floats multiplies bfloat16, where the processor does or the user wants it. Its mask stays as it is.
// Not here: numbers (statistics.h), graphs (convert.cc).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/quant/normalise.h"
#include "backends/quant/quantize.h"

namespace frametap::quant {

enum class Role : uint8_t {
  kFloat,
  kAnchor,     // convolution or linear
  kPart,       // part of an anchor's kernel, or a relu that is part of an add's
  kPointwise,  // a sum, a product, a curve or a mean, with a kernel of its own
  kFollows,    // bytes with the parameters of its input
  kDynamic,    // products of bytes inside; reads and gives floats
  kBfloat16,   // products of bfloat16 inside; reads and gives floats
};

struct Annotation {
  std::vector<Role> role;             // by node
  std::vector<NodeId> owner;          // kPart: the anchor or add
  std::vector<std::string> reason;    // by node
  std::vector<bool> quantized;        // by value: exists in 8 bits
  std::vector<ValueId> params_class;  // by value: representative of the values that share its parameters
  std::vector<bool> source;           // by value: its range counts for its class
  std::vector<bool> in_two_bytes;     // by node: a layer of kDynamic whose elements have two bytes (A7)

  // Whether the node reads and gives bytes.
  bool int8(NodeId n) const {
    const Role is = n.valid() ? role[n.raw()] : Role::kFloat;
    return is != Role::kFloat && is != Role::kDynamic && is != Role::kBfloat16;
  }
};

// Why the user wants the node in float; "" if he has not said so.
std::string FloatByRequest(const QuantConfig& config, const Node& node);

// 7 or 8, where the user leaves it to the processor as well.
int BitsOfActivations(const QuantConfig& config);

// A8. Whether the node, of a normalised graph, is such attention.
bool AttendsInBfloat16(const Graph& graph, const Node& node, const QuantConfig& config);
inline constexpr const char* kAttendsInBfloat16 =
    "in bfloat16: a product of two activations costs more in int8 than it saves; float_dtype=torch.float32 keeps "
    "float32";

// `excluded`: by node, why it must stay float; "" or nothing where it may be int8.
Annotation Annotate(const NormalizedGraph& normal, const QuantConfig& config,
                    const std::vector<std::string>& excluded = {});

}  // namespace frametap::quant
