// DictItems: the items of a dict in its order, for a range loop.
#pragma once

#include <Python.h>

#include <iterator>

namespace frametap {

// `for (const auto [key, value] : DictItems(dict))`, both borrowed. The size of the dict must stay as it is meanwhile. Another
// object has no items.
class DictItems {
 public:
  struct Item {
    PyObject* key = nullptr;
    PyObject* value = nullptr;
  };

  class Iterator {
   public:
    explicit Iterator(PyObject* dict) : dict_(dict) { ++*this; }
    const Item& operator*() const { return item_; }
    Iterator& operator++() {
      is_at_end_ = PyDict_Next(dict_, &next_, &item_.key, &item_.value) == 0;
      return *this;
    }
    bool operator==(std::default_sentinel_t) const { return is_at_end_; }

   private:
    PyObject* dict_;
    Py_ssize_t next_ = 0;
    Item item_;
    bool is_at_end_ = false;
  };

  explicit DictItems(PyObject* dict) : dict_(dict) {}
  Iterator begin() const { return Iterator(dict_); }
  static std::default_sentinel_t end() { return {}; }

 private:
  PyObject* dict_;
};

}  // namespace frametap
