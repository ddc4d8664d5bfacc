// A Python namespace for the tests of guards: code runs in it, names are read from it.
#pragma once

#include <Python.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "guards/check/guard_tree.h"
#include "guards/collect/frozen_guards.h"
#include "guards/collect/guard_recorder.h"
#include "guards/ref.h"

namespace frametap {

class GuardsTest : public testing::Test {
 protected:
  GuardsTest() : scope_(Ref<>::Steal(PyDict_New())) {
    PyDict_SetItemString(scope_.get(), "__builtins__", PyEval_GetBuiltins());
    Exec("import torch, collections\nfrom torch import nn\nfrom collections import OrderedDict");
  }
  ~GuardsTest() override {
    EXPECT_EQ(PyErr_Occurred(), nullptr);
    PyErr_Clear();
    PyDict_Clear(scope_.get());
    PyGC_Collect();
  }

  void Exec(const std::string& code) {
    Ref<> done = Ref<>::Steal(PyRun_String(code.c_str(), Py_file_input, scope_.get(), scope_.get()));
    if (!done) PyErr_Print();
    ASSERT_TRUE(done) << code;
  }
  Ref<> Eval(const std::string& expression) {
    Ref<> value = Ref<>::Steal(PyRun_String(expression.c_str(), Py_eval_input, scope_.get(), scope_.get()));
    if (!value) PyErr_Print();
    EXPECT_TRUE(value) << expression;
    return value;
  }
  // The predicate of a line of the tree, as a segment shows it; "" if the line is only a path.
  static std::string WantAt(const GuardTree& tree, size_t line,
                            const std::vector<std::pair<SourceId, ValueId>>& inputs = {}) {
    const std::optional<Predicate> predicate = tree.Lines(inputs).at(line).predicate;
    return predicate ? ToString(*predicate, tree.Sources()) : "";
  }
  // Borrowed from the namespace.
  PyObject* Get(const char* name) {
    PyObject* value = PyDict_GetItemString(scope_.get(), name);
    EXPECT_NE(value, nullptr) << name;
    return value;
  }
  static Ref<> Str(const char* text) { return Ref<>::Steal(PyUnicode_InternFromString(text)); }
  static Ref<> Int(long number) { return Ref<>::Steal(PyLong_FromLong(number)); }

  static SourceId Attr(GuardRecorder& r, SourceId parent, const char* name, Accessor accessor = Accessor::kAttr,
                       int64_t index = 0) {
    Ref<> key = Str(name);
    Ref<> seen = Ref<>::Steal(PyObject_GetAttr(r.seen(parent), key.get()));
    EXPECT_TRUE(seen) << name;
    return r.Child(parent, accessor, index, key.get(), seen.get());
  }
  static SourceId ModuleAttr(GuardRecorder& r, SourceId parent, const char* name) {
    int64_t home = 0;
    for (; home < 2; ++home) {
      Ref<> dict = Ref<>::Steal(PyObject_GetAttr(r.seen(parent), ModuleDictName(static_cast<int>(home))));
      if (PyDict_GetItemString(dict.get(), name) != nullptr) break;
    }
    return Attr(r, parent, name, Accessor::kModuleAttr, home);
  }
  static SourceId KeyOf(GuardRecorder& r, SourceId parent, PyObject* key) {
    Ref<> seen = Ref<>::Steal(PyObject_GetItem(r.seen(parent), key));
    EXPECT_TRUE(seen);
    return r.Child(parent, Accessor::kKey, 0, key, seen.get());
  }
  static SourceId ItemOf(GuardRecorder& r, SourceId parent, int index) {
    Ref<> seen = Ref<>::Steal(PySequence_GetItem(r.seen(parent), index));
    EXPECT_TRUE(seen);
    return r.Child(parent, Accessor::kItem, index, nullptr, seen.get());
  }

  // The arguments of the entry: L.<name> is what the namespace has under that name at the moment of the check.
  SourceId Arg(GuardRecorder& r, const char* name) {
    for (size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == name) return r.Local(static_cast<int>(i), name, Get(name));
    }
    names_.emplace_back(name);
    return r.Local(static_cast<int>(names_.size() - 1), name, Get(name));
  }
  Roots Now() {
    locals_.clear();
    for (const std::string& name : names_) locals_.push_back(PyDict_GetItemString(scope_.get(), name.c_str()));
    Roots roots;
    roots.localsplus = locals_.data();
    roots.nlocalsplus = static_cast<int>(locals_.size());
    roots.function = PyDict_GetItemString(scope_.get(), "entry");
    return roots;
  }
  bool Hits(GuardTree& tree) {
    const Verdict verdict = tree.Check(Now());
    EXPECT_NE(verdict, Verdict::kError);
    // guard_tree/V2 both ways: the slow evaluation agrees with the watched one.
    const std::string why = tree.Explain(Now()).source;
    EXPECT_EQ(verdict == Verdict::kHit, why.empty()) << why;
    return verdict == Verdict::kHit;
  }
  std::string Why(GuardTree& tree) {
    EXPECT_EQ(tree.Check(Now()), Verdict::kMiss);
    const MissReport report = tree.Explain(Now());
    return report.source + ": " + report.why;
  }

  Ref<> scope_;
  std::vector<std::string> names_;
  std::vector<PyObject*> locals_;
};

}  // namespace frametap
