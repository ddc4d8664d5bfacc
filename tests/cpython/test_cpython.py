"""The quick part of CPython's own tests, and the rules of runner.py on small inputs.

`tools/dev cpython-tests` runs all modules.
"""

from __future__ import annotations

import pytest

from cpython.runner import (
    ROOT,
    Known,
    Outcome,
    Runner,
    Verdict,
    all_modules,
    compare,
    find_extension,
    package_folder,
    read_known,
    read_quick,
    with_known,
)

pytest.importorskip("test.test_generators", reason="this Python has no test package")

KNOWN = read_known()
MOST_KNOWN = 1  # C4: this number only falls


@pytest.fixture(scope="session")
def runner() -> Runner:
    return Runner(ROOT / "build" / "cpython-tests", find_extension(), timeout=120)


@pytest.mark.parametrize("module", read_quick())
def test_same_outcome(runner: Runner, module: str) -> None:
    verdict = runner.verdict(module, KNOWN.get(module, ()))
    if verdict.kind == "skipped":
        pytest.skip(verdict.note)
    assert verdict.kind in ("same", "known"), (verdict.note, verdict.differences, verdict.details)
    assert verdict.stale == [], "these are the same now: take them out of known_differences.toml"


def test_quick_modules_exist() -> None:
    quick = read_quick()
    assert len(set(quick)) == len(quick) >= 40
    assert set(quick) <= set(all_modules(package_folder()))


def test_c4_known_differences_only_shrink() -> None:
    rows = [row for rows in KNOWN.values() for row in rows]
    assert len(rows) <= MOST_KNOWN
    assert all(len(row.reason.split()) > 5 for row in rows)
    assert {row.module for row in rows} <= set(all_modules(package_folder()))


def test_c2_a_test_that_ends_otherwise_or_not_at_all_is_a_difference() -> None:
    plain = Outcome("ran", 1, {"a": "passed", "b": "failed", "c": "passed"})
    hooked = Outcome("ran", 1, {"a": "error", "b": "failed", "d": "passed"})
    assert compare(plain, hooked) == {
        "a": ["passed", "error"],
        "c": ["passed", "not run"],
        "d": ["not run", "passed"],
    }


def test_c2_a_crash_is_a_difference_and_says_where() -> None:
    crashed = Outcome("crashed: SIGSEGV", 1, {"a": "passed"}, last="b")
    assert compare(Outcome("ran", 1, {"a": "passed"}), crashed) == {
        "(the module)": ["ran", "crashed: SIGSEGV in b"]
    }


def test_c4_known_differences_are_explained_or_stale() -> None:
    def verdict() -> Verdict:
        return Verdict("m", "different", differences={"a": ["passed", "failed"]})

    assert with_known(verdict(), [Known("m", ("a",), "why")]).kind == "known"
    assert with_known(verdict(), [Known("m", (), "why")]).kind == "known"
    assert with_known(verdict(), []).kind == "different"
    both = with_known(verdict(), [Known("m", ("a", "b"), "why")])
    assert (both.kind, both.stale) == ("known", ["b"])
    same = with_known(Verdict("m", "same"), [Known("m", (), "why")])
    assert (same.kind, same.stale) == ("same", ["(the module)"])
