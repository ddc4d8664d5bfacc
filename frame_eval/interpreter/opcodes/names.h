// Names that instructions look up, and one that a recorder looks up as a frame begins. They are interned when the extension is
// loaded, so that none of these can fail for want of one. A function-local static would stay null for good if its first use
// finds no memory.
#pragma once

#include <Python.h>

#define FRAMETAP_NAMES(NAME)           \
  NAME(aenter, "__aenter__")           \
  NAME(aexit, "__aexit__")             \
  NAME(all, "__all__")                 \
  NAME(annotations, "__annotations__") \
  NAME(build_class, "__build_class__") \
  NAME(call, "__call__")               \
  NAME(del, "__del__")                 \
  NAME(dict, "__dict__")               \
  NAME(empty, "")                      \
  NAME(enter, "__enter__")             \
  NAME(exit, "__exit__")               \
  NAME(get, "get")                     \
  NAME(import, "__import__")           \
  NAME(match_args, "__match_args__")   \
  NAME(name, "__name__")               \
  NAME(notes, "__notes__")             \
  NAME(spec, "__spec__")

namespace frametap {

struct Interned {
#define FRAMETAP_MEMBER(id, text) PyObject* id = nullptr;
  FRAMETAP_NAMES(FRAMETAP_MEMBER)
#undef FRAMETAP_MEMBER
};

extern Interned interned;

// To be called once by the extension's initialisation. Returns false if this raised.
bool InternNames();

}  // namespace frametap
