// World: words for the state of the thread that every segment guards (WorldState in guard_recorder.h).
#pragma once

#include <string>
#include <vector>

#include "guards/guard_recorder.h"
#include "guards/guard_tree.h"

namespace frametap {

std::vector<std::string> StateWords(const WorldState& state);  // "grad_mode(on)", "autocast(off)"; others if unusual
std::string ActiveModes();                                     // what makes `modes_active` true on this thread
bool HasActiveModes();
bool IsKnown(const WorldState& state);  // false: there was no memory to look; fits nothing
bool DescribeStateMiss(const WorldState& want, const WorldState& got, MissReport* report);  // false if they are equal

}  // namespace frametap
