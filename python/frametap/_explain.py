"""``frametap.explain``: what was captured, where it ended and why, what missed and why."""

from __future__ import annotations

import linecache
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from frametap import _C
from frametap._compile import compiled_of, guard_of, root_name_of
from frametap._guards import Guard, expected_of
from frametap._records import MissText, counted

__all__ = ["BreakReport", "Explanation", "FaultReport", "MissText", "explain"]

# Steps to a number that a call passes within lists, dicts and tensors.
_STEPS_FROM_CALL = ("item", "key", "size", "length")


@dataclass(frozen=True)
class BreakReport:
    """Why a segment ended, or why a recording was given up."""

    segment: str
    reason: str
    text: str
    advice: str
    position: str
    file: str
    line: int
    given_up: bool = False
    inside: str = ""
    """The callable that frametap does not know, where a library calls it for the line of the user."""

    @property
    def source_line(self) -> str:
        return linecache.getline(self.file, self.line).strip() if self.file else ""

    def __str__(self) -> str:
        head = "given up" if self.given_up else "break"
        lines = [f"{head} at {self.position}: {self.text}"]
        if self.source_line:
            lines.append(f"    {self.source_line}")
        if self.inside:
            lines.append(f"  inside  {self.inside}")
        lines.append(f"  advice  {self.advice}")
        return "\n".join(lines)


@dataclass(frozen=True)
class FaultReport:
    """A replay raised where the program's own ops do not: a fault of the backend, or of frametap."""

    segment: str
    text: str
    position: str

    def __str__(self) -> str:
        return f"{self.segment} at {self.position}: {self.text}"


@dataclass
class Explanation:
    """The answer of :func:`explain`; ``str()`` of it is a page to read."""

    name: str
    segments: list[_C.Segment]
    breaks: list[BreakReport]
    aborts: list[BreakReport]
    miss_texts: list[MissText]
    recordings: int
    hits: int
    misses: int
    recording_seconds: float
    """The time of all recordings, given-up ones included. Each segment has its own."""
    faults: int = 0
    """Replays that raised where the program's own ops do not; plain Python ran these calls."""
    fault_reports: list[FaultReport] = field(default_factory=list)

    @property
    def int8_kernels(self) -> dict[str, int]:
        """For a quantized function: its ``layers`` in int8 and the input ``sizes`` that they are
        ready for. ``made`` counts how often one was made ready for a size, and ``dropped`` how many
        of these were dropped for others.
        """
        made = [_C.quant_of(segment.executable) for segment in self.segments]
        return _C.quant_kernels([m["quantized"] for m in made if m is not None and m["is_int8"]])

    @property
    def graph_count(self) -> int:
        return len(self.segments)

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    @property
    def fixed_numbers(self) -> list[Guard]:
        """Guards that serve only one size or number: any other is recorded again."""
        return [
            guard_of(segment, row)
            for segment in self.segments
            for row in segment.guard_rows
            if row["predicate"] and _fixes_number(segment, row)
        ]

    @property
    def ops_without_size_rule(self) -> list[tuple[str, str]]:
        """Op and position where the size of a result is known only once the op has run."""
        found = []
        for segment in self.segments:
            found += [(node.op, node.position) for node in segment.graph.nodes_with_fresh_sizes]
        return list(dict.fromkeys(found))

    def __str__(self) -> str:
        out = [
            (
                f"{self.name}: {counted(self.graph_count, 'graph')}, {counted(self.break_count, 'break')}; "
                f"{self.recordings} recorded in {_milliseconds(self.recording_seconds)}, "
                f"{counted(self.hits, 'hit')}, {counted(self.misses, 'miss', 'misses')}"
                + (f", {counted(self.faults, 'fault')}" if self.faults else "")
            )
        ]
        for segment in self.segments:
            nodes = len(segment.graph.nodes)
            exit = segment.exit
            end = (
                "returns" if exit["kind"] == "return" else f"resumes at {exit['position']['text']}"
            )
            count = sum(1 for row in segment.guard_rows if row["predicate"])
            out.append(
                f"  {segment.name}: from {segment.entry}, {counted(nodes, 'op')}, "
                f"{counted(count, 'guard')}, {end}; recorded in "
                f"{_milliseconds(segment.recording_seconds)}, {counted(segment.hits, 'hit')}"
            )
        misses = Counter(map(str, self.miss_texts))
        faults = Counter(map(str, self.fault_reports))
        for title, texts in (
            ("breaks", map(str, self.breaks)),
            ("given up", map(str, self.aborts)),
            ("faults", (_repeated(text, times) for text, times in faults.items())),
            ("misses", (_repeated(text, times) for text, times in misses.items())),
            ("fixed numbers (another number makes a new recording)", map(str, self.fixed_numbers)),
            (
                "sizes known only once the op has run",
                (f"{op}  @ {position}" for op, position in self.ops_without_size_rule),
            ),
        ):
            lines = [line for text in texts for line in text.splitlines()]
            if lines:
                out.append(f"{title}:")
                out += ["  " + line for line in lines]
        if (kernels := self.int8_kernels)["layers"]:
            out.append(
                f"int8 kernels: {counted(kernels['layers'], 'layer')}, made ready {counted(kernels['made'], 'time')}, "
                f"each for one size of its input; {kernels['dropped']} dropped again"
            )
        if not self.segments and not self.breaks and not self.aborts:
            out.append("  nothing was captured yet: call it once")
        if fallbacks := _C.fallbacks():
            out.append("done without, in this process:")
            out += ["  " + line for line in fallbacks]
        return "\n".join(out)


def _fixes_number(segment: _C.Segment, row: _C.GuardRow) -> bool:
    root, step = row["root"][0], row["step"][0]
    if row["kind"] == "tensor":
        # The shape of a parameter or buffer is expected to stay.
        shape = row["argument"]["shape"]
        return step != "module_attr" and any(size is not None for size in shape)
    if row["kind"] not in ("==", "len") or type(expected_of(row)) not in (int, float):
        return False
    if root not in ("local", "stack") or step not in (root, *_STEPS_FROM_CALL):
        return False
    # The whole path: it may have as many steps as a linked list has nodes.
    return all(one in _STEPS_FROM_CALL for one, _ in segment.guard_path(row["number"])[1:])


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def _repeated(text: str, times: int) -> str:
    if times == 1:
        return text
    first, *rest = text.splitlines()
    return "\n".join([f"{first}, {times} times", *rest])


def explain(f: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Explains the captured parts of `f`, and their causes.

    `f`: what :func:`compile` returned. With arguments, it is called with them first.
    """
    compiled = compiled_of(f, "explain")
    if args or kwargs:
        f(*args, **kwargs)
    breaks: list[BreakReport] = []
    aborts: list[BreakReport] = []
    misses: list[MissText] = []
    faults: list[FaultReport] = []
    names = {
        (segment.name, segment.guard_source(row["number"])): root_name_of(segment, row)
        for segment in _C.segments(compiled)
        for row in segment.guard_rows
        if row["root"][0] == "stack"
    }
    for row in _C.log(compiled):
        position = row["position"]
        if row["kind"] in ("break", "abort"):
            report = BreakReport(
                row["segment"],
                row["reason"],
                row["text"],
                row["advice"],
                position["text"],
                position["file"],
                position["line"],
                row["kind"] == "abort",
                row["inside"],
            )
            known = aborts if row["kind"] == "abort" else breaks
            if not any(b.position == report.position and b.text == report.text for b in known):
                known.append(report)
        elif row["kind"] == "fault":
            faults.append(FaultReport(row["segment"], row["text"], position["text"]))
        elif row["kind"] == "miss":
            misses.append(
                MissText(
                    row["segment"],
                    row["source"],
                    row["want"],
                    row["got"],
                    row["why"],
                    position["text"],
                    names.get((row["segment"], row["source"]), ""),
                )
            )
    counts = _C.counts(compiled)
    target = compiled.__self__ if compiled.__self__ is not None else compiled._original
    name = getattr(target, "__qualname__", type(target).__name__)
    return Explanation(
        name,
        _C.segments(compiled),
        breaks,
        aborts,
        misses,
        counts["recordings"],
        counts["hits"],
        counts["misses"],
        counts["recording_seconds"],
        counts["faults"],
        faults,
    )
