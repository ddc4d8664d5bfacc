#include "frame_eval/session/self_check.h"

#include <cmath>

#include "frame_eval/checks/fault_observer.h"
#include "frame_eval/checks/self_checking.h"
#include "frame_eval/cpython/signals.h"
#include "frame_eval/replay/cached_entries.h"
#include "frame_eval/replay/run_graph.h"
#include "ir/dcheck.h"

namespace frametap {

bool self_check::on = checks::AreWanted();

Verdict Fits(Segment& segment, const Roots& roots) {
  if (reinterpret_cast<PyFunctionObject*>(roots.function)->func_globals != segment.globals.get()) return Verdict::kMiss;
  if (segment.refuted || !AreAsTheyWere(segment.kernels)) return Verdict::kMiss;
  const Verdict verdict = segment.guards->Check(roots);
  if (SelfChecking()) [[unlikely]] {
    AllocZone outside(false);
    SignalsHeld held;  // words of objects are made: a handler's exception would be lost in them
    const std::string fault = segment.guards->Recheck(roots, verdict);
    // Where a guard finds no memory (for the wrapper of a gradient, say) it is a miss, and the second look finds no reason.
    const bool lacked_memory =
        !fault.empty() && verdict == Verdict::kMiss && segment.guards->Check(roots) == Verdict::kHit;
    if (!fault.empty() && !lacked_memory) {
      PyErr_Format(PyExc_SystemError, "frametap self-check: guards of %s: %s", segment.ir.name.c_str(), fault.c_str());
      return Verdict::kError;
    }
  }
  if (verdict != Verdict::kHit) return Verdict::kMiss;
  if (fault_observer != nullptr && fault_observer->MakesMiss()) [[unlikely]]
    return Verdict::kMiss;
  return CachesAgree(segment, nullptr) && DecisionsHold(segment, nullptr) ? Verdict::kHit : Verdict::kMiss;
}

}  // namespace frametap
