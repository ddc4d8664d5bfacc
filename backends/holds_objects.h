// HoldsObjects: a backend or an executable that owns Python objects. Python's garbage collector has to reach them, because
// a compiler that a user passes may refer to the compiled function that owns it.
#pragma once

struct _object;  // PyObject: this folder does not know Python

namespace frametap {

class HoldsObjects {
 public:
  using Visit = int (*)(_object* object, void* arg);  // Python's visitproc
  // Visits each owned object once. The caller holds Python's lock.
  virtual int Traverse(Visit visit, void* arg) const = 0;

 protected:
  ~HoldsObjects() = default;
};

}  // namespace frametap
