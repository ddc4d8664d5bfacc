// The running interpreter's frames, for interpreter.cc alone: everyone else uses frame_view.h.
#pragma once

#include <Python.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#include "frame_eval/cpython/3.11/decode.h"
#include "frame_eval/cpython/3.11/raw_frame.h"
#else
#error "frametap has no frame layout for this Python: add a folder under frame_eval/cpython/"
#endif
