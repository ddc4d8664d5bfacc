"""Switches our interpreter on in the Python processes that CPython's tests start: see worker.py."""

import importlib.util
import os

if extension := os.environ.get("FRAMETAP_INTERPRETER"):
    spec = importlib.util.spec_from_file_location("_frametap_interpreter", extension)
    interpreter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(interpreter)
    if os.environ["FRAMETAP_SWITCH"] == "hooked":
        interpreter.run_everything(None)
