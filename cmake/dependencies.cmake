# What frametap needs from the machine. Each missing thing stops the configuration with one sentence that says what to do.
#   D1  CPython 3.11 with its headers, the private ones (internal/pycore_*.h) included.
#   D2  torch 2.13 of that very Python. Its headers and libraries are used directly, not through TorchConfig.cmake, which
#       asks for a CUDA toolkit where the wheel was built with CUDA, and drags in warnings of its own.
#       torch's loops over threads are templates, which run on one thread unless the compiler knows OpenMP. Our kernels share
#       the runtime that torch carries: with another one there would be two pools of threads.
#   D3  pybind11 is the copy that torch carries: another one has other internals, and does not know torch's types.
#   D4  abseil as shared libraries: the static ones cannot be linked into a Python module.
#   D5  oneDNN from 3.2 up: the one of the Python environment, else the system's. Its headers are used; the library is
#       loaded at run time (backends/onednn/library.h), through the run path.
# Gives the targets Python::Module, Python::Python (tests only), torch, torch_python, absl::*, onednn_headers, GTest::* (tests
# only).

# -- D1 --
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "frametap builds on Linux only; this is ${CMAKE_SYSTEM_NAME}.")
endif()
set(python_parts Interpreter Development.Module)
if(FRAMETAP_BUILD_TESTS)
  list(APPEND python_parts Development.Embed)
endif()
find_package(Python 3.11...<3.12 QUIET COMPONENTS ${python_parts})
# FindPython takes an explicit -DPython_EXECUTABLE of any version.
if(NOT Python_Interpreter_FOUND OR NOT Python_INTERPRETER_ID STREQUAL "Python" OR NOT Python_VERSION MATCHES "^3\\.11\\.")
  set(found "none was found")
  if(Python_EXECUTABLE)
    set(found "${Python_EXECUTABLE} is ${Python_INTERPRETER_ID} ${Python_VERSION}")
  endif()
  message(FATAL_ERROR "frametap needs CPython 3.11: ${found}. Run tools/dev build, or pass -DPython_EXECUTABLE=/path/to/python3.11.")
endif()
if(NOT Python_Development.Module_FOUND)
  message(FATAL_ERROR "${Python_EXECUTABLE} has no C headers: install python3.11-dev, or use a Python that was built with them.")
endif()
list(GET Python_INCLUDE_DIRS 0 python_include)
if(NOT EXISTS "${python_include}/internal/pycore_frame.h")
  message(FATAL_ERROR "${python_include} lacks internal/pycore_frame.h: install the complete headers of CPython 3.11 (python3.11-dev).")
endif()
if(FRAMETAP_BUILD_TESTS AND NOT Python_Development.Embed_FOUND)
  message(FATAL_ERROR "The tests embed Python, and ${Python_EXECUTABLE} has no libpython3.11: install python3.11-dev, or pass -DFRAMETAP_BUILD_TESTS=OFF.")
endif()
if(FRAMETAP_BUILD_TESTS AND Python_LIBRARIES MATCHES "\\.a$")
  # A Python without a shared library: a program that embeds it carries it whole, and torch finds it there.
  execute_process(COMMAND ${Python_EXECUTABLE} -c
    "import sysconfig as s; print(*(s.get_config_var(v) or '' for v in ('MODLIBS', 'LIBS', 'SYSLIBS')))"
    OUTPUT_VARIABLE python_needs OUTPUT_STRIP_TRAILING_WHITESPACE)
  separate_arguments(python_needs)
  target_link_options(Python::Python INTERFACE -no-pie LINKER:--export-dynamic)
  target_link_libraries(Python::Python INTERFACE ${python_needs})
endif()

# -- D2, D3 --
# torch's version and place are read without importing it: an import costs seconds at each configuration.
set(query [[
import importlib.util, pathlib
spec = importlib.util.find_spec("torch")
root = pathlib.Path(spec.origin).parent if spec and spec.origin else None
scope = {}
if root:
    exec((root / "version.py").read_text(), scope)
    print(scope["__version__"], root, sep=";")
]])
execute_process(COMMAND ${Python_EXECUTABLE} -c "${query}"
  OUTPUT_VARIABLE answer ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT answer)
  message(FATAL_ERROR "torch is not installed for ${Python_EXECUTABLE}: run tools/dev build, or pip install torch==2.13.0.")
endif()
list(GET answer 0 FRAMETAP_TORCH_VERSION)
list(GET answer 1 FRAMETAP_TORCH_ROOT)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${FRAMETAP_TORCH_ROOT}/version.py")
if(NOT FRAMETAP_TORCH_VERSION MATCHES "^2\\.13\\.")
  message(FATAL_ERROR "frametap needs torch 2.13, and ${Python_EXECUTABLE} has torch ${FRAMETAP_TORCH_VERSION}: pip install torch==2.13.0.")
endif()

foreach(name c10 torch_cpu torch torch_python)
  set(file "${FRAMETAP_TORCH_ROOT}/lib/lib${name}.so")
  if(NOT EXISTS "${file}")
    message(FATAL_ERROR "${file} is missing: install torch==2.13.0 again.")
  endif()
  add_library(frametap_${name} SHARED IMPORTED)
  set_target_properties(frametap_${name} PROPERTIES IMPORTED_LOCATION "${file}" IMPORTED_NO_SONAME OFF)
endforeach()
# The definitions are those of torch's own build: some headers look at them.
add_library(torch INTERFACE IMPORTED)
set_target_properties(torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${FRAMETAP_TORCH_ROOT}/include;${FRAMETAP_TORCH_ROOT}/include/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
  INTERFACE_LINK_LIBRARIES "frametap_torch_cpu;frametap_c10")
# A CUDA build of torch needs libraries that only the dynamic loader finds.
target_link_options(torch INTERFACE LINKER:--allow-shlib-undefined)
if(FRAMETAP_SANITIZE STREQUAL "thread")  # the sanitizer does not understand the runtime's barriers
  message(STATUS "frametap: kernels run on one thread under ThreadSanitizer")
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  file(GLOB openmp_runtimes "${FRAMETAP_TORCH_ROOT}/lib/libgomp*.so*")
  if(openmp_runtimes)
    list(GET openmp_runtimes 0 openmp_runtime)
    add_library(frametap_openmp SHARED IMPORTED)
    set_target_properties(frametap_openmp PROPERTIES IMPORTED_LOCATION "${openmp_runtime}" IMPORTED_NO_SONAME OFF)
  else()  # a torch that was built on this machine
    add_library(frametap_openmp INTERFACE IMPORTED)
    target_link_options(frametap_openmp INTERFACE -fopenmp)
  endif()
  target_compile_options(torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
  set_property(TARGET torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES frametap_openmp)
else()
  message(WARNING "Only GCC shares torch's OpenMP runtime: kernels of frametap run on one thread.")
endif()
add_library(torch_python INTERFACE IMPORTED)
set_target_properties(torch_python PROPERTIES INTERFACE_LINK_LIBRARIES "torch;frametap_torch_python")
set(FRAMETAP_TORCH_PYTHON torch_python)

# -- D4 --
find_package(absl CONFIG QUIET)
if(NOT absl_FOUND)
  message(FATAL_ERROR "abseil is missing: apt-get install libabsl-dev, or pass -Dabsl_DIR=/path/to/lib/cmake/absl.")
endif()
if(FRAMETAP_BUILD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    message(FATAL_ERROR "GoogleTest is missing: apt-get install libgtest-dev, or pass -DFRAMETAP_BUILD_TESTS=OFF.")
  endif()
endif()

# -- D5 --
execute_process(COMMAND ${Python_EXECUTABLE} -c "import sys; print(sys.prefix)"
  OUTPUT_VARIABLE python_prefix OUTPUT_STRIP_TRAILING_WHITESPACE)
set(onednn_advice "install it with: ${Python_EXECUTABLE} -m pip install onednn-devel-cpu-gomp==2023.2.0")
# Looked for at each configuration: a package may have come or gone.
unset(FRAMETAP_ONEDNN_HEADERS CACHE)
unset(FRAMETAP_ONEDNN_LIBRARY CACHE)
find_path(FRAMETAP_ONEDNN_HEADERS oneapi/dnnl/dnnl.h HINTS "${python_prefix}/include")
find_library(FRAMETAP_ONEDNN_LIBRARY NAMES libdnnl.so.3 dnnl HINTS "${python_prefix}/lib")
if(NOT FRAMETAP_ONEDNN_HEADERS OR NOT FRAMETAP_ONEDNN_LIBRARY)
  message(FATAL_ERROR "oneDNN is missing: ${onednn_advice} (or apt-get install libdnnl-dev, where that is version 3).")
endif()
file(STRINGS "${FRAMETAP_ONEDNN_HEADERS}/oneapi/dnnl/dnnl_version.h" onednn_version
  REGEX "define DNNL_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*" "\\1.\\2" onednn_version "${onednn_version}")
if(onednn_version VERSION_LESS 3.2 OR onednn_version VERSION_GREATER_EQUAL 4)
  message(FATAL_ERROR "frametap needs oneDNN 3, from 3.2 up, and ${FRAMETAP_ONEDNN_HEADERS} has ${onednn_version}: ${onednn_advice}.")
endif()
add_library(onednn_headers INTERFACE IMPORTED)
set_target_properties(onednn_headers PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${FRAMETAP_ONEDNN_HEADERS}")
get_filename_component(FRAMETAP_ONEDNN_FOLDER "${FRAMETAP_ONEDNN_LIBRARY}" DIRECTORY)
# Where pip puts the library, seen from an installed frametap/ in site-packages (and in the folder of pip's --target).
set(FRAMETAP_ONEDNN_INSTALLED "$ORIGIN/../../../../lib;$ORIGIN/../lib")
