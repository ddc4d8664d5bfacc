#include "backends/onednn/handles.h"

namespace frametap::onednn {

dnnl_engine_t Cpu() {
  static const dnnl_engine_t engine = [] {
    dnnl_engine_t made = nullptr;
    Check(Api().engine_create(&made, dnnl_cpu, 0), "make an engine");
    return made;
  }();
  return engine;
}

dnnl_stream_t StreamOfThread() {
  thread_local const Stream stream = [] {
    dnnl_stream_t made = nullptr;
    Check(Api().stream_create(&made, Cpu(), dnnl_stream_default_flags), "make a stream");
    return Stream(made);
  }();
  return stream.get();
}

Memory MakeMemory(const_dnnl_memory_desc_t desc, void* data) {
  dnnl_memory_t made = nullptr;
  Check(Api().memory_create(&made, desc, Cpu(), data), "make a memory object");
  return Memory(made);
}

}  // namespace frametap::onednn
