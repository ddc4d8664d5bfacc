#include "guards/objects/kept_warnings.h"

#include <torch/csrc/Exceptions.h>

namespace frametap {

bool KeptWarnings::TellPython() {
  try {
    const torch::PyWarningHandler to_python;  // when it ends
    for (const c10::Warning& warning : warnings_) c10::warn(warning);
  } catch (python_error& error) {
    error.restore();
    return false;
  }
  return true;
}

}  // namespace frametap
