// HashProbe: the entries of a dict that a look-up by one hash passes, without comparing their keys.
#pragma once

#include <Python.h>

#include <cstddef>

namespace frametap {

class HashProbe {
 public:
  // Returns whether the dict can be probed. Dicts that have only strings for keys cannot.
  static bool Serves(PyObject* dict);

  // `dict` is one that Serves, and does not change meanwhile.
  HashProbe(PyObject* dict, Py_hash_t hash);

  // Moves to the next entry and gives its place for _PyDict_Next. Returns false after the last one. Entries of other
  // hashes may be among them.
  bool Next(Py_ssize_t* place);

 private:
  PyObject* dict_;
  size_t slot_, perturbation_, steps_left_;
};

}  // namespace frametap
