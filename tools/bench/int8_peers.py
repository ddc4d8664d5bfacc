"""Other ways from a float model to int8, as contestants of `int8.py`, and the environment that they are installed in.

A package that cannot be installed, or that refuses a model, gives an error in the table and no number.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_PACKAGES = (
    "torchao==0.18.0",
    "onnx==1.23.2",
    "onnxscript==0.7.2",
    "onnxruntime==1.32.0",
    "openvino==2026.4.1",
    "nncf==3.4.0",
)

Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Task:
    """A float model in eval mode, batches for calibration, and another input."""

    model: nn.Module
    batches: list[Tensor]
    x: Tensor
    transformer: bool
    threads: int


def run_among_peers(folder: Path) -> None:
    """Starts this program again in the environment of the peers, which is made if it is not there.

    The environment adds to the present one, which has torch and frametap.
    """
    if Path(sys.prefix).resolve() == folder.resolve():
        return
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder)
        paths = {"base": str(folder), "platbase": str(folder)}
        own = Path(sysconfig.get_path("purelib", "venv", vars=paths))
        present = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
        lines = [f"import site; site.addsitedir({path!r})\n" for path in present]
        (own / "present.pth").write_text("".join(lines))
    for package in _PACKAGES:  # one by one: the others do not wait for one that cannot be had
        install = [python, "-m", "pip", "install", "--quiet", package]
        if subprocess.run(install, check=False).returncode:
            print(f"{package} is not installed", file=sys.stderr)
    os.execv(python, [str(python), *sys.argv])


def torchao(task: Task) -> Call:
    from torchao.quantization.pt2e import quantizer  # noqa: F401 - torchao has cycles of imports
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    how = x86.X86InductorQuantizer()
    how.set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(torch.export.export(task.model, (task.x,)).module(), how)
    for batch in task.batches:
        prepared(batch)
    return _inductor(convert_pt2e(prepared))


def inductor(task: Task) -> Call:
    return _inductor(task.model)


def inductor_bfloat16(task: Task) -> Call:
    compiled = _inductor(task.model)

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return compiled(x)

    return call


def _inductor(model: nn.Module) -> Call:
    torch._dynamo.reset()
    compiled = torch.compile(model)

    def call(x: Tensor) -> Tensor:
        with torch._inductor.config.patch(freezing=True):
            return compiled(x)

    return call


def onnxruntime_static(task: Task) -> Call:
    from onnxruntime import quantization

    class Batches(quantization.CalibrationDataReader):
        def __init__(self, name: str) -> None:
            self.rest = iter([{name: batch.numpy()} for batch in task.batches])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.rest, None)

    def quantize(source: Path, target: Path, name: str) -> None:
        quantization.quantize_static(source, target, Batches(name), per_channel=True)

    return _onnxruntime(task, quantize)


def onnxruntime_dynamic(task: Task) -> Call:
    from onnxruntime import quantization

    def quantize(source: Path, target: Path, name: str) -> None:
        quantization.quantize_dynamic(source, target, per_channel=True)

    return _onnxruntime(task, quantize)


def _onnxruntime(task: Task, quantize: Callable[[Path, Path, str], None]) -> Call:
    import onnxruntime
    from onnxruntime.quantization import shape_inference

    with _onnx_file(task) as file:
        ready, target = file.with_name("ready.onnx"), file.with_name("int8.onnx")
        name = onnxruntime.InferenceSession(file).get_inputs()[0].name
        shape_inference.quant_pre_process(file, ready, skip_symbolic_shape=True)
        quantize(ready, target, name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = task.threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(target, options)
    return lambda x: torch.from_numpy(session.run(None, {name: x.numpy()})[0])


@contextmanager
def _onnx_file(task: Task) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(
            task.model, (task.x,), file, dynamo=True, verbose=False, external_data=False
        )
        yield file


def openvino_int8(task: Task) -> Call:
    import nncf

    kind = nncf.ModelType.TRANSFORMER if task.transformer else None
    data = nncf.Dataset([batch.numpy() for batch in task.batches])
    model = nncf.quantize(_openvino_model(task), data, model_type=kind)
    return _openvino(model, task, {})


def openvino_float32(task: Task) -> Call:
    return _openvino(_openvino_model(task), task, {"INFERENCE_PRECISION_HINT": "f32"})


def openvino_bfloat16(task: Task) -> Call:
    return _openvino(_openvino_model(task), task, {"INFERENCE_PRECISION_HINT": "bf16"})


def _openvino_model(task: Task) -> Any:
    import openvino

    try:
        model = openvino.convert_model(task.model, example_input=task.x)
    except Exception:  # noqa: BLE001 - its importer of TorchScript does not take every model
        with _onnx_file(task) as file:
            model = openvino.convert_model(file)
    model.reshape({model.input(0): list(task.x.shape)})
    return model


def _openvino(model: Any, task: Task, options: dict[str, str]) -> Call:
    import openvino

    options = {"INFERENCE_NUM_THREADS": task.threads, "PERFORMANCE_HINT": "LATENCY", **options}
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()

    def call(x: Tensor) -> Tensor:
        results = request.infer([x.numpy()], share_inputs=True, share_outputs=True)
        return torch.from_numpy(results[0])

    return call


PEERS: dict[str, dict[str, Callable[[Task], Call]]] = {
    "int8": {
        "PT2E": torchao,
        "ORT static": onnxruntime_static,
        "ORT dynamic": onnxruntime_dynamic,
        "OpenVINO int8": openvino_int8,
    },
    "float32": {"OpenVINO float32": openvino_float32, "inductor frozen": inductor},
    "bfloat16": {"OpenVINO bfloat16": openvino_bfloat16, "inductor bfloat16": inductor_bfloat16},
}
