"""The text form of segments and graphs: what is printed can be parsed. Grammar: docs/text_form.md."""

from __future__ import annotations

from frametap._C import parse_graph, roundtrip, verify

__all__ = ["parse_graph", "roundtrip", "verify"]
