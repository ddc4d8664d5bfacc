"""The switch of torch's fused attention, off while an int8 model is made or called."""

from __future__ import annotations

import threading

import torch

__all__ = ["FUSED_ATTENTION_OFF"]


class _FusedAttentionOff:
    """Turns off torch's fused kernels of attention and encoder layers, which hide their linear layers.

    torch has one switch for all threads. It is as it was once no call of an int8 model is under way; what other
    threads compute meanwhile is right, by the kernels that training takes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entered = 0
        self._before = True

    def __enter__(self) -> None:
        with self._lock:
            if self._entered == 0:
                self._before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self._entered += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._entered -= 1
            if self._entered == 0:
                torch.backends.mha.set_fastpath_enabled(self._before)


FUSED_ATTENTION_OFF = _FusedAttentionOff()
