"""Torch's own samples of its modules, captured and plainly. Torch keeps them for its tests of modules (ModuleInfo).

    python tests/stress/module_samples.py [NAMES] [--form function] [--dtype float32] [--eval] [--gradients] [--most 14]

A sample makes a module and calls it with its own inputs, with a batch of twice the size, and with inputs of other samples.
A module may refuse those. Results, the module (parameters, buffers, gradients, attributes), arguments, sharing and strides
must be as in plain Python. So must exceptions and random state, and no graph may raise where the module does not.

`--form` is a name in USES, or
    module   the module itself is captured
    made     the captured function makes the module
    changed  something of the module is changed before each call (CHANGES)
    saved    the module is captured, saved and loaded; results alone are compared
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fixtures.subject import EAGER, frametap, own_faults
from same.describe import Describer, normalized
from stress import samples

Sent = tuple[tuple[Any, ...], dict[str, Any]]


def _function(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return module(*args, **kwargs)


def _twice(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return module(*args, **kwargs), module(*args, **kwargs)


def _other_weights(module: nn.Module, args: Any, kwargs: Any) -> Any:
    weights = {name: 2 * one for name, one in module.named_parameters()}
    return torch.func.functional_call(module, weights, args, kwargs)


def _copied(module: nn.Module, args: Any, kwargs: Any) -> Any:
    other = copy.deepcopy(module)
    return other(*args, **kwargs), other


def _loaded(module: nn.Module, args: Any, kwargs: Any) -> Any:
    kept = {name: one.clone() for name, one in module.state_dict().items()}
    result = module(*args, **kwargs)
    module.load_state_dict(kept)
    return result, list(kept)


def _toggled(module: nn.Module, args: Any, kwargs: Any) -> Any:
    trains = module.training
    module.train(not trains)
    other = module(*args, **kwargs)
    module.train(trains)
    return other, module(*args, **kwargs)


def _frozen(module: nn.Module, args: Any, kwargs: Any) -> Any:
    module.requires_grad_(False)
    result = module(*args, **kwargs)
    module.requires_grad_(True)
    return result


def _hooked(module: nn.Module, args: Any, kwargs: Any) -> Any:
    seen: list[Any] = []
    before = module.register_forward_pre_hook(lambda _, given: seen.append(len(given)))
    after = module.register_forward_hook(lambda *_: seen.append("after"))
    result = module(*args, **kwargs)
    before.remove()
    after.remove()
    return result, seen


def _autocast(module: nn.Module, args: Any, kwargs: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return module(*args, **kwargs)


def _inference(module: nn.Module, args: Any, kwargs: Any) -> Any:
    with torch.inference_mode():
        return module(*args, **kwargs)


def _checkpoint(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return checkpoint(module, *args, use_reentrant=False, **kwargs)


def _trained(module: nn.Module, args: Any, kwargs: Any) -> Any:
    result = module(*args, **kwargs)
    _gradients(result)
    with torch.no_grad():
        for one in module.parameters():
            if one.grad is not None:
                one.sub_(0.01 * one.grad)
                one.grad = None
    return result


USES: dict[str, Callable[[nn.Module, Any, Any], Any]] = {
    use.__name__[1:]: use
    for use in (
        _function,
        _twice,
        _other_weights,
        _copied,
        _loaded,
        _toggled,
        _frozen,
        _hooked,
        _autocast,
        _inference,
        _checkpoint,
        _trained,
    )
}
FORMS = ("module", "made", "changed", "saved", *USES)
OTHERS = 6  # as many inputs of other samples are tried


def _on_attributes(kind: type, change: Callable[[Any], Any], module: nn.Module) -> None:
    for one in module.modules():
        for name, value in list(vars(one).items()):
            if type(value) is kind and name != "training" and not name.startswith("_"):
                setattr(one, name, change(value))


def _other_parameters(module: nn.Module) -> None:
    for one in module.modules():
        for name, value in list(one._parameters.items()):
            if value is not None:
                setattr(one, name, nn.Parameter(0.5 * value.detach()))


def _other_data(module: nn.Module) -> None:
    for one in module.parameters():
        one.data = 1.5 * one.data


def _other_buffers(module: nn.Module) -> None:
    for one in module.modules():
        for name, value in list(one._buffers.items()):
            if value is not None:
                setattr(one, name, value.clone())


def _tied_parameters(module: nn.Module) -> None:
    first: dict[Any, nn.Parameter] = {}
    for one in module.modules():
        for name, value in list(one._parameters.items()):
            if value is not None:
                setattr(one, name, first.setdefault(value.shape, value))


def _without_bias(module: nn.Module) -> None:
    for one in module.modules():
        if one._parameters.get("bias") is not None:
            one.bias = None


def _own_forward(module: nn.Module) -> None:
    module.forward = functools.partial(type(module).forward, module)


def _parametrized(module: nn.Module) -> None:
    for one in list(module.modules()):
        if isinstance(getattr(one, "weight", None), nn.Parameter):
            nn.utils.parametrizations.weight_norm(one)


# The order matters: each change stays. The last ones leave modules that refuse their inputs.
CHANGES: tuple[Callable[[nn.Module], Any], ...] = (
    lambda _: None,
    lambda module: module.eval(),
    lambda module: module.train(),
    _other_data,
    lambda module: module.requires_grad_(False),
    lambda module: module.requires_grad_(True),
    _other_parameters,
    _tied_parameters,
    _other_buffers,
    functools.partial(_on_attributes, float, lambda value: 0.5 * value),
    functools.partial(_on_attributes, bool, lambda value: not value),
    lambda module: module.register_forward_hook(lambda *_: None),
    lambda module: module.to(memory_format=torch.channels_last),
    _own_forward,
    _without_bias,
    functools.partial(_on_attributes, int, lambda value: value + 1),
    lambda module: module.double(),
    lambda module: module.float(),
    _parametrized,
)


def all_modules() -> list[Any]:
    return samples.database("common_modules", "module_db")


def _gradients(result: Any) -> None:
    made = [one for one in samples.tensors_of(result) if one.requires_grad]
    if made:
        sum(one.sum().abs() for one in made).backward()


def _seen(
    call: Callable[..., Any], sent: Sent, module: nn.Module | None, *, gradients: bool
) -> list[str]:
    """Returns what a call leaves for a program to see."""
    torch.manual_seed(7)
    args, kwargs = samples.copied(sent)
    describer = Describer()
    try:
        result = call(*args, **kwargs)
        describer.add("result", result)
        if gradients:
            _gradients(result)
    except Exception as error:  # noqa: BLE001 - it is what the module gives
        describer.lines.append(f"raises {type(error).__name__} {normalized(str(error))}")
    describer.add("args", args)
    describer.add("kwargs", kwargs)
    if module is not None and not any(map(is_lazy, module.parameters())):
        describer.add("module", module)
    describer.add("random", torch.get_rng_state())
    return describer.lines


class _Case:
    """One sample of a module, in one form."""

    def __init__(self, info: Any, sample: Any, form: str, dtype: torch.dtype, *, training: bool):
        self.info, self.given, self.form = info, sample.constructor_input, form
        self.dtype, self.training = dtype, training
        self.own = (sample.forward_input.args, sample.forward_input.kwargs)

    def __str__(self) -> str:
        return f"{self.info.name} of {self.given.args} {self.given.kwargs}"

    def make(self) -> nn.Module:
        torch.manual_seed(5)
        args, kwargs = samples.copied((self.given.args, self.given.kwargs))
        return self.info.module_cls(*args, **kwargs).to(self.dtype).train(self.training)

    def made(self, args: Any, kwargs: Any) -> Any:
        module = self.info.module_cls(*self.given.args, **self.given.kwargs)
        return module.to(self.dtype).train(self.training)(*args, **kwargs), module

    def turns(self, others: list[Sent]) -> Iterator[tuple[Callable[[nn.Module], Any], Sent]]:
        """Yields what is done to the module before a call, and the inputs of the call."""
        if self.form == "changed":
            yield from ((each, self.own) for change in CHANGES for each in (change, CHANGES[0]))
            return
        longer = samples.on_tensors(self.own, _longer)
        if self.form in ("saved", "made"):
            others = []
        for sent in (self.own, self.own, longer, *others, self.own):
            yield CHANGES[0], sent


def _longer(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor]) if tensor.dim() else tensor.clone()


def _difference(case: _Case, calls: list[Any], others: list[Sent], *, gradients: bool) -> str:
    """`calls` are three: plain, plain again and captured, each with its own module."""
    for change, sent in case.turns(others):
        seen = []
        for call, module in calls:
            with contextlib.suppress(Exception):  # a change that a module refuses
                if module is not None:
                    change(module)
            seen.append(_seen(call, sent, module, gradients=gradients))
        want, again, got = seen
        if want != again:
            return ""  # plain Python itself gives other bits
        if got != want:
            shapes = [list(one.shape) for one in samples.tensors_of(sent)]
            return f"{case} differs for {shapes}\n{samples.difference(want, got)}"
    return ""


def _fault_of_module(case: _Case, others: list[Sent], *, gradients: bool) -> str:
    module, again, model = case.make(), case.make(), case.make()
    captured = frametap.compile(model)
    calls = [(module, module), (again, again), (captured, model)]
    text = _difference(case, calls, others, gradients=gradients)
    raised = own_faults(captured)
    frametap.reset(captured)
    return text or "; ".join(raised)


def _fault_of_file(case: _Case) -> str:
    """Compares results, since a loaded program has neither gradients nor a module."""
    if EAGER:
        return ""
    module, model = case.make().eval(), case.make().eval()
    captured = frametap.compile(model)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        try:
            for _ in range(2):
                _seen(captured, case.own, None, gradients=False)
            frametap.save(captured, Path(folder) / "module")
            loaded = frametap.load(Path(folder) / "module")
        except frametap.ArtifactError:
            return ""  # a program that no file can hold is refused
        finally:
            frametap.reset(captured)
        for _ in range(2):
            want, again, got = (
                _seen(call, case.own, None, gradients=False) for call in (module, module, loaded)
            )
            if want == again and got != want:
                return f"{case} differs when it is loaded\n{samples.difference(want, got)}"
    return ""


def fault(
    info: Any,
    *,
    form: str = "function",
    dtype: torch.dtype = torch.float32,
    training: bool = True,
    gradients: bool = False,
    most: int = 14,
) -> str:
    """Returns "", or the first difference of a module."""
    if dtype not in info.dtypes:
        return ""
    torch.manual_seed(1)
    found = info.module_inputs_func(
        info, device="cpu", dtype=dtype, requires_grad=gradients, training=training
    )
    cases = [
        _Case(info, sample, form, dtype, training=training)
        for sample in list(found)[:most]
        if sample.forward_input is not None
    ]
    others = [case.own for case in cases[:OTHERS]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if form == "module":
            texts = (_fault_of_module(case, others, gradients=gradients) for case in cases)
            return next(filter(None, texts), "")
        if form == "saved":
            return next(filter(None, map(_fault_of_file, cases)), "")
        return _fault_of_function(cases, form, others, gradients=gradients)


def _fault_of_function(
    cases: list[_Case], form: str, others: list[Sent], *, gradients: bool
) -> str:
    """One captured function calls the modules of all cases."""

    def made(case: _Case, args: Any, kwargs: Any) -> Any:
        return case.made(args, kwargs)

    plain: Callable[..., Any] = made if form == "made" else USES.get(form, _function)
    captured = frametap.compile(plain)
    try:
        for case in cases:
            calls = []
            for f in (plain, plain, captured):
                module = None if form == "made" else case.make()
                calls.append((_on(f, case if module is None else module), module))
            if text := _difference(case, calls, others, gradients=gradients):
                return text
        return "; ".join(own_faults(captured))
    finally:
        frametap.reset(captured)


def _on(f: Callable[..., Any], first: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: f(first, args, kwargs)


def main() -> int:
    parser = samples.parser(__doc__, "module", FORMS, "function", 14)
    parser.add_argument("--eval", action="store_true", help="modules are in eval mode")
    parser.add_argument("--gradients", action="store_true", help="inputs require gradients")
    options = parser.parse_args()
    return samples.compared(
        all_modules(),
        options.names,
        lambda info: fault(
            info,
            form=options.form,
            dtype=options.dtype,
            training=not options.eval,
            gradients=options.gradients,
            most=options.most,
        ),
        "module",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
