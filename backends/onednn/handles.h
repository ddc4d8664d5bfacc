// Handles: oneDNN's objects, each with one owner.
#pragma once

#include <memory>

#include "backends/onednn/api.h"

namespace frametap::onednn {

template <class T, dnnl_status_t (*Functions::*destroy)(T*)>
struct Destroy {
  void operator()(T* object) const { (Api().*destroy)(object); }
};

using MemoryDesc = std::unique_ptr<dnnl_memory_desc, Destroy<dnnl_memory_desc, &Functions::memory_desc_destroy>>;
using Memory = std::unique_ptr<dnnl_memory, Destroy<dnnl_memory, &Functions::memory_destroy>>;
using PostOps = std::unique_ptr<dnnl_post_ops, Destroy<dnnl_post_ops, &Functions::post_ops_destroy>>;
using Attributes =
    std::unique_ptr<dnnl_primitive_attr, Destroy<dnnl_primitive_attr, &Functions::primitive_attr_destroy>>;
using PrimitiveDesc =
    std::unique_ptr<dnnl_primitive_desc, Destroy<dnnl_primitive_desc, &Functions::primitive_desc_destroy>>;
using Primitive = std::unique_ptr<dnnl_primitive, Destroy<dnnl_primitive, &Functions::primitive_destroy>>;
using Stream = std::unique_ptr<dnnl_stream, Destroy<dnnl_stream, &Functions::stream_destroy>>;

dnnl_engine_t Cpu();
dnnl_stream_t StreamOfThread();

// `data`: the memory to use, or DNNL_MEMORY_ALLOCATE.
Memory MakeMemory(const_dnnl_memory_desc_t desc, void* data);

}  // namespace frametap::onednn
