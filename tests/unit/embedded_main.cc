// Starts the interpreter of the build's virtual environment once, with torch imported, for all tests of the program.
#include <Python.h>
#include <gtest/gtest.h>

#include <cstdio>

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  PyStatus status = PyConfig_SetBytesString(&config, &config.executable, FRAMETAP_PYTHON);
  if (!PyStatus_Exception(status)) status = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(status)) Py_ExitStatusException(status);
  if (PyRun_SimpleString("import torch") != 0) {
    std::fprintf(stderr, "torch cannot be imported by %s\n", FRAMETAP_PYTHON);
    return 1;
  }
  const int result = RUN_ALL_TESTS();
  return Py_FinalizeEx() < 0 ? 1 : result;
}
