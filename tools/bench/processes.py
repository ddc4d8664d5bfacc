"""Programs that are measured in processes of their own: each prints its numbers as JSON on its last line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import timing

# The memory of a process now, and its maximum since `forget_peak()`, in bytes.
MEMORY = """
import ctypes, gc
def _status(key):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))
def resident():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS:")
def forget_peak():
    with open("/proc/self/clear_refs", "w") as clear:
        clear.write("5")
def peak():
    return _status("VmHWM:")
"""


def numbers_of(program: str, *arguments: str) -> dict[str, Any]:
    """Runs `program` in a fresh Python; what is freed goes back to the system at once, so that peaks can be seen."""
    path = os.pathsep.join(
        [
            str(timing.ROOT / "tests"),
            str(timing.ROOT / "tools" / "bench"),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
    )
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "it failed")
    return json.loads(done.stdout.splitlines()[-1])
