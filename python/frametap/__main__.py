"""``python -m frametap {demo,explain,bench,version}``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import platform
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m frametap",
        description="frametap: captures, explains and quantizes PyTorch programs.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    commands.add_parser("demo", help="capture, explain, quantize, save and load a small CNN")
    explain = commands.add_parser("explain", help="what is captured of a function, and why")
    explain.add_argument("target", help="FILE.py:function or package.module:function")
    explain.add_argument(
        "--example",
        action="append",
        default=[],
        metavar="ARGS",
        help="arguments of one call, as Python: 'torch.ones(2, 3), scale=2.0'; may be given several times",
    )
    explain.add_argument("--segments", action="store_true", help="print the segments, too")
    bench = commands.add_parser("bench", help="run the benchmarks of a checkout")
    bench.add_argument("names", nargs="*", help="first_call, cached_call …; all without a name")
    commands.add_parser("version", help="versions of frametap, torch and Python")
    given, rest = parser.parse_known_args(arguments)
    if rest and given.command != "bench":
        parser.error(f"unknown arguments: {' '.join(rest)}")
    if given.command == "demo":
        return _run(_tools("demo") / "demo.py")
    if given.command == "explain":
        return _explain(given.target, given.example, given.segments)
    if given.command == "bench":
        return _bench(given.names, rest)
    return _version()


def _version() -> int:
    import torch

    import frametap

    print(f"frametap {frametap.__version__}")
    print(f"torch {torch.__version__}")
    print(f"Python {platform.python_version()}")
    return 0


def _explain(target: str, examples: list[str], with_segments: bool) -> int:
    import torch

    import frametap

    if not examples:
        _stop("explain", "give at least one call: --example 'torch.ones(2, 3)'")
    function = _found(target)
    if isinstance(function, type) or not callable(function):
        _stop(
            "explain",
            f"{target} is {'a class' if isinstance(function, type) else type(function).__name__}; name a function, or "
            "a module object such as MODEL in `MODEL = Net()`",
        )
    captured = frametap.compile(function)
    names = {"torch": torch, **vars(sys.modules[_module_of(function)])}
    for example in examples:
        try:
            call = compile(f"_call({example})", "<example>", "eval")
        except SyntaxError as error:
            _stop("explain", f"the example {example!r} is not Python: {error.msg}")
        print(f">>> {target.rpartition(':')[2]}({example})")
        try:
            result = eval(call, {**names, "_call": captured})
        except Exception as error:  # noqa: BLE001 - of the program or of the example
            line = traceback.extract_tb(error.__traceback__)[-1]
            _stop(
                "explain",
                f"the call raised {type(error).__name__}: {error} ({line.filename}:{line.lineno})",
            )
        print(f"{result!r:.400}")
    print()
    if with_segments:
        for segment in frametap.segments(captured):
            print(segment.text())
    print(frametap.explain(captured))
    return 0


def _module_of(function: Any) -> str:
    module = getattr(function, "__module__", None) or type(function).__module__
    return module if module in sys.modules else "builtins"


def _found(target: str) -> Any:
    """The function that ``FILE.py:name`` or ``module:name`` means."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        _stop("explain", f"FILE.py:function or module:function expected, got {target!r}")
    if where.endswith(".py"):
        path = Path(where)
        if not path.is_file():
            _stop("explain", f"there is no file {where}")
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, "")
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            _stop("explain", f"{error}; a file is named with its suffix: {where}.py:{name}")
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            _stop("explain", f"{where} has no {name!r}")
        found = getattr(found, part)
    return found


def _bench(names: list[str], options: list[str]) -> int:
    folder = _tools("bench") / "bench"
    programs = {p.stem: p for p in sorted(folder.glob("*.py")) if "__main__" in p.read_text()}
    if unknown := [name for name in names if name not in programs]:
        _stop("bench", f"there is no {unknown[0]!r}; there is {', '.join(programs)}")
    return max(_run(programs[name], *options) for name in names or programs)


def _tools(command: str) -> Path:
    folder = Path(__file__).resolve().parents[2] / "tools"
    if not folder.is_dir():
        _stop(command, "its programs are in a checkout (tools/); there is none here")
    return folder


def _run(program: Path, *options: str) -> int:
    return subprocess.run([sys.executable, str(program), *options], check=False).returncode


def _stop(command: str, sentence: str) -> NoReturn:
    print(f"frametap {command}: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
