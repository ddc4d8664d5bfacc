"""The errors of `import frametap` where oneDNN is missing, of another version, or of another kind. The loader takes a library of
the test's own: LD_LIBRARY_PATH comes before the run path of the extension."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures.subject import needs_capture

pytestmark = needs_capture

API = Path(__file__).parents[2] / "backends" / "onednn" / "api.h"
OPENMP, SEQUENTIAL = 2, 1  # values of dnnl_runtime_kind_t


def _said(folder: Path) -> str:
    """Returns the last line that an import ends with, in a process of its own."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    command = [sys.executable, "-c", "import frametap"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr.strip().splitlines()[-1]


def _library(folder: Path, functions: list[str], version: tuple[int, int], runtime: int) -> None:
    """Builds a library with these functions, of which only `version` answers."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build a library with")
    major, minor = version
    code = "struct { int major, minor, patch; const char* hash; unsigned cpu, gpu; } "
    code += f'v = {{{major}, {minor}, 0, "", {runtime}u, 0u}}; void* dnnl_version(void) {{ return &v; }}\n'
    code += "".join(
        f"int dnnl_{name}(void) {{ return 1; }}\n" for name in functions if name != "version"
    )
    source = folder / "library.c"
    source.write_text(code)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", folder / "libdnnl.so.3", source], check=True
    )


def _functions() -> list[str]:
    names = re.findall(r"X\((\w+)\)", API.read_text().split("FRAMETAP_ONEDNN_FUNCTIONS(X)")[1])
    assert "version" in names
    return names


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "libdnnl.so.3").write_bytes(b"")
    said = _said(tmp_path)
    assert said.startswith("ImportError: frametap: oneDNN is missing: ")
    assert "libdnnl.so.3: file too short" in said
    assert "Install onednn-cpu-gomp 2023.2 with pip" in said


def test_a_library_without_a_function(tmp_path: Path) -> None:
    _library(tmp_path, ["engine_create"], (3, 2), OPENMP)
    assert re.search(
        r"the libdnnl.so.3 that is here has no dnnl_\w+\. Install onednn-cpu-gomp", _said(tmp_path)
    )


@pytest.mark.parametrize("version", [(2, 6), (3, 1), (4, 0)])
def test_another_version(version: tuple[int, int], tmp_path: Path) -> None:
    _library(tmp_path, _functions(), version, OPENMP)
    said = _said(tmp_path)
    assert f"version {version[0]}.{version[1]} is here" in said
    assert "another oneDNN from 3.2 up" in said


def test_a_library_with_threads_of_another_kind(tmp_path: Path) -> None:
    _library(tmp_path, _functions(), (3, 2), SEQUENTIAL)
    assert "without OpenMP, so it would not use torch's threads" in _said(tmp_path)
