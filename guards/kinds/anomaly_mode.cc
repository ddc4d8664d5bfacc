#include "guards/kinds/anomaly_mode.h"

#include <torch/csrc/autograd/anomaly_mode.h>

namespace frametap {

namespace {

int compilations = 0;
bool mode_before = false;

}  // namespace

bool AnomalyModeOfProgram() { return compilations > 0 ? mode_before : torch::autograd::AnomalyMode::is_enabled(); }

void BeginCompilation() {
  if (compilations == 0) mode_before = torch::autograd::AnomalyMode::is_enabled();
  ++compilations;
}

void EndCompilation() { --compilations; }

}  // namespace frametap
