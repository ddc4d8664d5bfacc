"""The databases of samples in torch's own tests, and the parts that comparisons of captured samples share.

The databases are in private modules of torch, which need `expecttest`. This file is the only one that imports them.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


def database(module: str, name: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(importlib.import_module(f"torch.testing._internal.{module}"), name)


def chosen(infos: Iterable[Any], part: int, parts: int) -> list[Any]:
    """Returns a part of a database. Each entry is in one of the parts, and always in the same."""
    return [one for one in infos if zlib.crc32(name_of(one).encode()) % parts == part]


def name_of(info: Any) -> str:
    return getattr(info, "formatted_name", info.name)


def on_tensors(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Returns the value with other tensors in it, which are leaves again."""

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return change(leaf.detach()).requires_grad_(leaf.requires_grad)

    return tree_map(one, value)


def copied(value: Any) -> Any:
    return on_tensors(value, torch.Tensor.clone)


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def difference(want: list[str], got: list[str]) -> str:
    return "\n".join(difflib.unified_diff(want, got, "plain", "captured", lineterm="", n=1))


def parser(
    description: str | None, kind: str, forms: Iterable[str], form: str, most: int
) -> argparse.ArgumentParser:
    """Returns a parser of the options that all files have. `form` and `most`: the defaults."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("names", nargs="*", help=f"parts of names of {kind}s; all {kind}s")
    made.add_argument("--form", choices=list(forms), default=form)
    made.add_argument("--dtype", type=dtype_of, default="float32")
    made.add_argument(
        "--most", type=int, default=most, help=f"samples of each {kind} (%(default)s)"
    )
    return made


def compared(infos: list[Any], names: list[str], fault: Callable[[Any], str], kind: str) -> int:
    """Prints the first difference of each entry whose name holds one of `names`; returns the status of the process."""
    infos = [one for one in infos if not names or any(name in name_of(one) for name in names)]
    if not infos:
        print(f"no {kind} has a name with {' or '.join(names)}", file=sys.stderr)
        return 2
    faults = 0
    for text in _with_progress(infos, fault):
        if text:
            faults += 1
            print(text, flush=True)
    print(f"{len(infos)} {kind}s, {faults} differ")
    return 1 if faults else 0


def _with_progress(infos: list[Any], fault: Callable[[Any], str]) -> Iterator[str]:
    for done, info in enumerate(infos, 1):
        yield fault(info)
        if os.isatty(sys.stderr.fileno()):
            print(f"\r{done} of {len(infos)}", end="", file=sys.stderr, flush=True)


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise argparse.ArgumentTypeError(f"torch has no dtype {name!r}")
    return dtype
