"""The report of a break names its kind, and does not name code that is not the user's."""

from __future__ import annotations

import io
import logging
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fixtures.subject import frametap, needs_capture

pytestmark = needs_capture

log = logging.getLogger("frametap.tests.reasons")
stream = io.StringIO()


def prints(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    print("at", tuple(y.shape))
    return y * 2


def writes(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    stream.write("seen")
    return y * 2


def opens(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    with open("/dev/null", "w") as file:
        y = y * 3
        file.write("seen")
        y = y - 1
    return y * 2


def logs(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    log.error("seen %s", tuple(y.shape))
    return y * 2


def asks_the_clock(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    time.perf_counter()
    return y * 2


def draws(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y * (1 if random.random() < 2 else 0)


def counts_by_numpy(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    kinds = np.unique([1, 2, 2])
    return y * float(kinds.size)


def selects_by_a_mask(x: torch.Tensor, array: Any = np.ones(2)) -> torch.Tensor:  # noqa: B008
    y = x + 1
    array = array[array > 0]
    return y * float(array.sum())


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (prints, "input_output"),
        (writes, "input_output"),
        (opens, "input_output"),
        (logs, "input_output"),
        (asks_the_clock, "another_value_each_time"),
        (draws, "another_value_each_time"),
        (counts_by_numpy, "numpy_code"),
        (selects_by_a_mask, "numpy_code"),
    ],
)
def test_the_sort_of_a_break(
    function: Callable[[torch.Tensor], torch.Tensor],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    captured = frametap.compile(function)
    for rows in (2, 3, 2, 3):
        assert torch.equal(captured(torch.ones(rows, 2)), function(torch.ones(rows, 2)))
    report = frametap.explain(captured)
    assert {row.reason for row in report.breaks} == {reason}
    # A lock that logging takes at first puts one recording off; nothing is given up for good.
    assert {row.reason for row in report.aborts} <= {"done_once"}


def test_breaks_between_uses_of_a_file_keep_every_op() -> None:
    """A file runs code when it ends, and is watched: what is dead at the entry is left as it is."""
    captured = frametap.compile(opens)
    captured(torch.ones(2))
    captured(torch.ones(2))
    assert sum(s.text().count(" = aten.") for s in frametap.segments(captured)) == 4


def test_a_log_call_whose_level_is_off_is_no_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        log.debug("seen %s", tuple(y.shape))
        return y * 2

    captured = frametap.compile(f)
    for _ in range(3):
        captured(torch.ones(2))
    report = frametap.explain(captured)
    assert [row.reason for row in report.breaks] == []
    assert len(frametap.segments(captured)) == 1


def test_code_between_the_files_of_a_package_is_no_graph() -> None:
    """An import below the function runs module bodies and other packages' code: none of it is a graph."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        import sklearn.datasets
        import sklearn.utils.fixes  # noqa: F401

        return y * 2

    captured = frametap.compile(f)
    captured(torch.ones(2))
    captured(torch.ones(2))
    assert {s.function for s in frametap.segments(captured)} == {"f"}


def test_what_an_import_runs_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import torch\ndef twice(x):\n    print(end='')\n    return x * 2\nT = twice(torch.ones(2))\n"
    (tmp_path / "module_that_runs_much.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)

    def f(x: torch.Tensor) -> torch.Tensor:
        import module_that_runs_much  # type: ignore[import-not-found]

        return x * module_that_runs_much.T

    captured = frametap.compile(f)
    captured(torch.ones(2))
    captured(torch.ones(2))
    report = frametap.explain(captured)
    assert report.breaks == []
    assert {(row.reason, row.file) for row in report.aborts} == {("import_statement", __file__)}
    assert {s.function for s in frametap.segments(captured)} == {"f"}


def test_an_import_of_a_library_is_no_break_of_later_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer of torch imports a module at its first call with a mask. Only fullgraph refuses it."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "imports_late.py").write_text(
        "def scaled(x):\n    import imported_late\n    return x * imported_late.SCALE\n"
    )
    (packages / "imported_late.py").write_text("SCALE = 3\n")
    monkeypatch.syspath_prepend(packages)
    import imports_late  # type: ignore[import-not-found]

    def f(x: torch.Tensor) -> torch.Tensor:
        return imports_late.scaled(x + 1)  # type: ignore[no-any-return]

    for _ in range(2):
        with pytest.raises(frametap.FullGraphError, match="an import statement runs"):
            frametap.compile(f, fullgraph=True)(torch.ones(2))
    assert "imported_late" not in sys.modules
    captured = frametap.compile(f)
    for _ in range(3):
        assert torch.equal(captured(torch.ones(2)), torch.full((2,), 6.0))
    report = frametap.explain(captured)
    assert (report.graph_count, report.break_count) == (1, 0)
    for name in ("imports_late", "imported_late"):
        del sys.modules[name]


def generates(x: torch.Tensor) -> Iterator[torch.Tensor]:
    yield x + 1


def doubles(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def takes_after_writing(x: torch.Tensor, table: torch.Tensor, i: torch.Tensor) -> Any:
    try:
        x.add_(1)
        return table[i]
    except IndexError:
        return None


def only_abort(captured: Any) -> tuple[str, int]:
    rows = [row for row in frametap.explain(captured).aborts if row.reason != "done_once"]
    assert len(rows) == 1, rows  # once, not for each call
    return rows[0].reason, rows[0].line - captured.__code__.co_firstlineno


def test_what_runs_in_plain_python_is_told() -> None:
    captured = frametap.compile(generates)
    for _ in range(2):
        assert [t.tolist() for t in captured(torch.ones(2))] == [[2.0, 2.0]]
    assert only_abort(captured) == ("generator_function", 0)

    captured = frametap.compile(doubles)
    sys.setprofile(lambda *_: None)
    try:
        captured(torch.ones(2))
    finally:
        sys.setprofile(None)
    assert only_abort(captured) == ("thread_is_traced", 0)
    captured(torch.ones(2))
    assert len(frametap.segments(captured)) == 1

    captured = frametap.compile(takes_after_writing)
    many, table = torch.zeros(2 << 20), torch.arange(4.0)
    for i in (1, 2, 9, 3):
        want = None if i == 9 else [float(i)]
        got = captured(many, table, torch.tensor([i]))
        assert (got if got is None else got.tolist()) == want
    assert many[0] == 4
    assert only_abort(captured)[0] == "cannot_take_back"
