// CPython's own tables of inline caches and of specialised opcodes. libpython does not export them, and they are
// written with C array designators, which C++ refuses; so they are compiled here once, under our names.
#define Py_BUILD_CORE 1
#define NEED_OPCODE_TABLES
#define _PyOpcode_Caches frametap_opcode_caches
#define _PyOpcode_Deopt frametap_opcode_deopt
#include <Python.h>
#include <internal/pycore_opcode.h>
