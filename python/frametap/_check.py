"""Conditions that must hold before the extension is loaded, each with one sentence for the user."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable

_TORCH = "2.13"
_LOG_WORDS = ("recordings", "hits", "misses", "breaks", "aborts", "faults", "all")


def _fail(sentence: str) -> None:
    raise ImportError(f"frametap: {sentence}")


def capture_possible(problem: str) -> None:
    """Raises ImportError with `problem` unless it is empty."""
    if problem:
        _fail(problem)


def int8_possible(problem: str) -> None:
    """Raises ImportError with `problem` unless it is empty."""
    if problem:
        _fail(problem)


def log_asked_for(ask: Callable[[str], str]) -> None:
    """Hands FRAMETAP_LOG to `ask`, which gives back the words that it does not understand."""
    if unknown := ask(os.environ.get("FRAMETAP_LOG", "")):
        near = difflib.get_close_matches(unknown, _LOG_WORDS, n=1)
        hint = f"did you mean {near[0]!r}? Known words: " if near else "known words: "
        _fail(f"FRAMETAP_LOG has {unknown!r}; {hint}{', '.join(_LOG_WORDS)} (commas between them).")


def fast_paths_asked_for(*switches: Callable[[bool], object]) -> None:
    """Turns off what `switches` turn on if FRAMETAP_FAST_PATHS says so."""
    asked = os.environ.get("FRAMETAP_FAST_PATHS", "on")
    if asked not in ("on", "off"):
        _fail(f"FRAMETAP_FAST_PATHS is {asked!r}; it must be 'on' or 'off'.")
    if asked == "off":
        for switch in switches:
            switch(False)


def _in_another_interpreter() -> bool:
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:  # an interpreter built without
        return False
    return bool(interpreters.get_current() != interpreters.get_main())


def _environment() -> None:
    if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
        running = f"{sys.implementation.name} {sys.version_info.major}.{sys.version_info.minor}"
        _fail(f"this build is for CPython 3.11, not for {running}.")
    if _in_another_interpreter():
        _fail("it works in the main interpreter of a process only; import it there, as torch.")
    try:
        import torch
    except ImportError as error:
        raise ImportError(
            f"frametap: torch is missing or cannot be loaded; pip install torch=={_TORCH}.0"
        ) from error
    if torch.__version__.split(".")[:2] != _TORCH.split("."):
        _fail(
            f"this build is for torch {_TORCH}, not for {torch.__version__}; "
            f"pip install torch=={_TORCH}.0"
        )


_environment()
