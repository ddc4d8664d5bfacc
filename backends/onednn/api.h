// Api: the functions of oneDNN that this folder calls. Only files of this folder include it.
#pragma once

#include "backends/onednn/library.h"
#include "oneapi/dnnl/dnnl.h"

#define FRAMETAP_ONEDNN_FUNCTIONS(X)             \
  X(convolution_forward_primitive_desc_create)   \
  X(deconvolution_forward_primitive_desc_create) \
  X(engine_create)                               \
  X(get_effective_cpu_isa)                       \
  X(matmul_primitive_desc_create)                \
  X(memory_create)                               \
  X(memory_desc_create_with_strides)             \
  X(memory_desc_create_with_tag)                 \
  X(memory_desc_destroy)                         \
  X(memory_desc_equal)                           \
  X(memory_desc_get_size)                        \
  X(memory_destroy)                              \
  X(memory_get_memory_desc)                      \
  X(memory_set_data_handle)                      \
  X(post_ops_append_binary)                      \
  X(post_ops_append_eltwise)                     \
  X(post_ops_append_sum)                         \
  X(post_ops_create)                             \
  X(post_ops_destroy)                            \
  X(primitive_attr_create)                       \
  X(primitive_attr_destroy)                      \
  X(primitive_attr_set_fpmath_mode)              \
  X(primitive_attr_set_post_ops)                 \
  X(primitive_attr_set_scales_mask)              \
  X(primitive_attr_set_scratchpad_mode)          \
  X(primitive_attr_set_zero_points_mask)         \
  X(primitive_create)                            \
  X(primitive_desc_destroy)                      \
  X(primitive_desc_next_impl)                    \
  X(primitive_desc_query)                        \
  X(primitive_desc_query_md)                     \
  X(primitive_destroy)                           \
  X(primitive_execute)                           \
  X(reorder_primitive_desc_create)               \
  X(softmax_forward_primitive_desc_create)       \
  X(stream_create)                               \
  X(stream_destroy)                              \
  X(version)

namespace frametap::onednn {

struct Functions {
#define FRAMETAP_ONEDNN_MEMBER(name) decltype(&::dnnl_##name) name;
  FRAMETAP_ONEDNN_FUNCTIONS(FRAMETAP_ONEDNN_MEMBER)
#undef FRAMETAP_ONEDNN_MEMBER
};

// oneDNN's functions. Throws c10::Error where Load gives an error.
const Functions& Api();

// Throws c10::Error unless `status` is success. `action` completes "oneDNN could not …".
void Check(dnnl_status_t status, const char* action);

}  // namespace frametap::onednn
