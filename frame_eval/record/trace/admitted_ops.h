// Whether the ops of this thread's recording may run now. Where none may (foretold_calls.h), each one raises.
#pragma once

namespace frametap::aten {

inline thread_local constinit bool admits_none = false;

}  // namespace frametap::aten
