#include "frame_eval/segment/error_classes.h"

namespace frametap {

ErrorClasses& Errors() {
  static ErrorClasses errors;
  return errors;
}

}  // namespace frametap
