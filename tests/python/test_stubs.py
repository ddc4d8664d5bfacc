"""The type stubs name what the extension has, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from fixtures.subject import EAGER, frametap

pytestmark = [pytest.mark.skipif(EAGER, reason="asks about the extension")]

FOLDER = Path(__file__).resolve().parents[2] / "python" / "frametap"


def is_typed_dict(node: ast.ClassDef) -> bool:
    return any(isinstance(base, ast.Name) and base.id == "TypedDict" for base in node.bases)


def test_the_package_is_typed() -> None:
    assert (FOLDER / "py.typed").exists()


def test_stubs_and_extension_agree() -> None:
    from frametap import _C

    tree = ast.parse((FOLDER / "_C.pyi").read_text())
    classes = {n.name: n for n in tree.body if isinstance(n, ast.ClassDef) and not is_typed_dict(n)}
    functions = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
    public = {name for name in vars(_C) if not name.startswith("_")}
    assert classes.keys() | functions == public
    for name, node in classes.items():
        stubbed = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        real = {member for member in vars(getattr(_C, name)) if not member.startswith("_")}
        assert {member for member in stubbed if not member.startswith("_")} == real, name
    assert frametap.segments is not _C.segments
