// The anomaly mode of autograd that the program has set.
//   A1  While a thread compiles, torch's tracer turns the mode on for the process. Other threads see the mode of before.
// Not here: the other state of a thread (world.h), and how a graph is compiled (backends/callable).
#pragma once

namespace frametap {

bool AnomalyModeOfProgram();

// Marks the begin and the end of a compilation. One thread compiles at a time; its compilations may be nested. Needs Python's
// lock, as readers do.
void BeginCompilation();
void EndCompilation();

}  // namespace frametap
