#include "guards/objects/thread_end.h"

#include <unistd.h>

namespace frametap {

void WaitForProcessEnd() {
  for (;;) pause();
}

}  // namespace frametap
