"""Makes a checkout importable in the virtual environment that runs this file.

Usage: python tools/dev_install.py BUILD_DIR

  1. python/ is put on the path by a .pth file.
  2. The extension of BUILD_DIR is linked into python/frametap.
  3. python/frametap.egg-info carries the entry points of pyproject.toml, so that torch finds the
     backend "frametap" in a checkout as it does in an installation.

Each step does nothing where its result is there already.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "frametap"


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def link_extension(build: Path) -> None:
    name = f"_C.{sysconfig.get_config_var('SOABI')}.so"
    if not (build / name).exists():
        sys.exit(f"{build / name} was not built")
    link = PACKAGE / name
    target = Path("..", "..", build.resolve().relative_to(ROOT), name)
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def write_entry_points() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = []
    for group, entries in project.get("entry-points", {}).items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {target}" for name, target in entries.items()]
    folder = ROOT / "python" / "frametap.egg-info"
    code = (PACKAGE / "_version.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', code, re.MULTILINE)[1]
    write_if_changed(
        folder / "PKG-INFO",
        "\n".join(["Metadata-Version: 2.1", "Name: frametap", f"Version: {version}", ""]),
    )
    write_if_changed(folder / "entry_points.txt", "\n".join(lines) + "\n")


def main() -> None:
    site_packages = Path(sysconfig.get_path("purelib"))
    write_if_changed(site_packages / "frametap-checkout.pth", f"{ROOT / 'python'}\n")
    link_extension(Path(sys.argv[1]))
    write_entry_points()


if __name__ == "__main__":
    main()
