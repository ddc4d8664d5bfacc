"""The switch of torch's fused attention, off while an int8 model is made. A call of one turns it off by itself."""

from __future__ import annotations

from frametap import _C

__all__ = ["FUSED_ATTENTION_OFF"]


class _FusedAttentionOff:
    """A context that nests, and that threads may share."""

    def __enter__(self) -> None:
        _C.enter_fused_attention_off()

    def __exit__(self, *error: object) -> None:
        _C.leave_fused_attention_off()


FUSED_ATTENTION_OFF = _FusedAttentionOff()
