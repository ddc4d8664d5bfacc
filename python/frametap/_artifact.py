"""Programs in files: ``frametap.save`` writes a zip, which ``frametap.load`` reads without running code of the file.

A1  A file is complete or absent: it is written beside its place and renamed.
A2  Data are checked before they are used: format, versions, checksums, graphs. No code is loaded.

The zip has ``manifest.json`` (versions, blocks, checksums), ``graphs/N.txt`` (text form), ``tensors.pt``
(``torch.save``, readable with ``weights_only``), ``report.json`` (the table of a converted model).

Not here: programs as data (``_program.py``), calls of a program (``_loaded_program.py``), making a program from captured
segments (``_save.py``).
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch

from frametap import _saved_objects as objects
from frametap._errors import ArtifactError
from frametap._loaded_program import LoadedProgram
from frametap._program import NODES, Block, Program, Report, dtype_name
from frametap._version import __version__

__all__ = ["FORMAT_VERSION", "load_program", "save_program"]

FORMAT = "frametap program"
FORMAT_VERSION = 2


# -- JSON --

_NODE_OF = {node.__name__: node for node in NODES}


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, tuple | list):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {"map": [[_encode(k), _encode(v)] for k, v in value.items()]}
    if isinstance(value, NODES):
        skip = ("graph_text", "constants") if isinstance(value, Block) else ()
        fields = [f.name for f in dataclasses.fields(value) if f.name not in skip]
        return {type(value).__name__: {name: _encode(getattr(value, name)) for name in fields}}
    raise ArtifactError(
        f"save: a value of type {type(value).__name__} cannot be written to a file; "
        "only None, numbers, strings, bytes, dtypes, devices and tensors can"
    )


def _decode(value: Any, **more: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    ((tag, content),) = value.items()
    if tag == "float":
        return float.fromhex(content)
    if tag == "complex":
        return complex(*map(float.fromhex, content))
    if tag == "bytes":
        return bytes.fromhex(content)
    if tag == "dtype":
        return _known_dtype(content)
    if tag == "device":
        return torch.device(content)
    if tag == "map":
        return {_decode(k): _decode(v) for k, v in content}
    fields = {name: _decode(item) for name, item in content.items()}
    return _NODE_OF[tag](**fields, **more)


def _known_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{name} is not a dtype")
    return dtype


# -- files --


def save_program(path: str | os.PathLike[str], program: Program) -> None:
    """Writes the program; an existing file is replaced only by a complete one."""
    LoadedProgram(program)  # what could not be loaded again is not written
    target = Path(path)
    graphs = {f"graphs/{i}.txt": block.graph_text for i, block in enumerate(program.blocks)}
    tensors = io.BytesIO()
    torch.save(
        {
            "weights": {name: _plain(tensor) for name, tensor in program.weights.items()},
            "constants": [[_plain(t) for t in block.constants] for block in program.blocks],
        },
        tensors,
    )
    files = {name: text.encode() for name, text in graphs.items()}
    files["tensors.pt"] = tensors.getvalue()
    files["report.json"] = json.dumps(dataclasses.asdict(program.report)).encode()
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "frametap_version": __version__,
        "torch_version": str(torch.__version__),
        "name": program.name,
        "qualname": program.qualname,
        "is_bound": program.is_bound,
        "owner_in_args": program.owner_in_args,
        "require_grad": list(program.require_grad),
        "frozen": _encode(program.frozen),
        "checks_finite": program.checks_finite,
        "parameters": _encode(program.parameters),
        "entry": list(program.entry),
        "state": _encode(program.state),
        "blocks": _encode(program.blocks),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest, indent=1, allow_nan=False))
        for name, data in files.items():
            archive.writestr(name, data)
    try:
        _write_at_once(target, content.getbuffer())
    except OSError as error:
        raise ArtifactError(f"save: {target} cannot be written: {error.strerror}") from error


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach()  # a Parameter, or a tensor with an autograd graph, is saved as its data


def _write_at_once(target: Path, content: memoryview) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def load_program(path: str | os.PathLike[str], classes: Iterable[type] = ()) -> LoadedProgram:
    """The program in the file, compiled and ready to be called. Its objects are made of `classes`."""
    known = objects.by_name(classes)
    source = Path(path)
    try:
        with zipfile.ZipFile(source) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except FileNotFoundError as error:
        raise ArtifactError(f"load: there is no file {source}") from error
    except OSError as error:
        raise ArtifactError(f"load: {source} cannot be read: {error.strerror}") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        _refuse(source, f"it is damaged, or was not written by frametap.save ({error})", error)
    manifest = _manifest(source, files)
    for name, digest in manifest["sha256"].items():
        if name not in files or hashlib.sha256(files[name]).hexdigest() != digest:
            _refuse(source, f"it is damaged: {name} is not what was written")
    try:
        tensors = torch.load(io.BytesIO(files["tensors.pt"]), weights_only=True, map_location="cpu")
        blocks = tuple(
            _decode(
                block,
                graph_text=files[f"graphs/{i}.txt"].decode(),
                constants=tuple(tensors["constants"][i]),
            )
            for i, block in enumerate(manifest["blocks"])
        )
        program = Program(
            name=manifest["name"],
            parameters=_decode(manifest["parameters"]),
            entry=tuple(manifest["entry"]),
            blocks=blocks,
            weights=tensors["weights"],
            require_grad=tuple(map(str, manifest.get("require_grad", ()))),
            state=_decode(manifest["state"]),
            qualname=str(manifest.get("qualname", "")),
            is_bound=bool(manifest.get("is_bound", False)),
            owner_in_args=bool(manifest.get("owner_in_args", False)),
            frozen=_decode(manifest.get("frozen")),
            checks_finite=bool(manifest.get("checks_finite", False)),
            report=Report(**json.loads(files.get("report.json", b"{}"))),
        )
    except Exception as error:  # noqa: BLE001  whatever a foreign manifest leads to
        _refuse(source, f"its content cannot be read ({type(error).__name__}: {error})", error)
    try:
        return LoadedProgram(program, known)
    except ArtifactError as error:
        _refuse(source, str(error), error)


def _manifest(source: Path, files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        manifest = json.loads(files["manifest.json"])
        if manifest["format"] != FORMAT:
            raise KeyError("format")
    except (KeyError, TypeError, ValueError) as error:
        _refuse(
            source,
            "it is damaged, or was not written by frametap.save (no manifest of its format)",
            error,
        )
    version = manifest.get("format_version")
    if not isinstance(version, int) or not 1 <= version <= FORMAT_VERSION:
        _refuse(
            source,
            f"its format version is {version}, this frametap ({__version__}) reads up to "
            f"{FORMAT_VERSION}; use the frametap that wrote it "
            f"({manifest.get('frametap_version')}) or a newer one",
        )
    wrote, runs = str(manifest.get("torch_version")), str(torch.__version__)
    if wrote.split(".")[:2] != runs.split(".")[:2]:
        _refuse(
            source,
            f"it was written with torch {wrote}, this is torch {runs}; operators may differ: "
            f"save the program again with torch {runs}",
        )
    missing = {"name", "parameters", "entry", "state", "blocks", "sha256"} - manifest.keys()
    if missing:
        _refuse(source, f"it is damaged: its manifest lacks {', '.join(sorted(missing))}")
    return manifest


def _refuse(source: Path, why: str, cause: BaseException | None = None) -> NoReturn:
    raise ArtifactError(f"load: {source} cannot be loaded: {why}") from cause
