"""The backend that a user asks for: by its name, as a function in TorchDynamo's form, or as a backend.

Not here: how such a function is called (``_callable.py``).
"""

from __future__ import annotations

import difflib
import importlib

from frametap import _C
from frametap._callable import CompilerFn
from frametap._errors import BackendError

__all__ = ["resolve_backend"]

# Names of torch's registry that run the module as it is: nothing relies on sizes.
_RUNS_THE_MODULE = frozenset({"eager"})

_COMPILERS = {"inductor": "torch._inductor.compile_fx"}


def resolve_backend(backend: str | CompilerFn | _C.Backend) -> _C.Backend:
    """Returns the backend for the user's argument: a name, a function in TorchDynamo's form, or a
    backend.
    """
    if isinstance(backend, _C.Backend):
        return backend
    if not isinstance(backend, str):
        if not callable(backend):
            raise BackendError(
                "backend: a name or a function (GraphModule, example_inputs) -> callable expected, "
                f"got {type(backend).__name__}"
            )
        name = getattr(backend, "__name__", type(backend).__name__)
        return _C.callable_backend(backend, name)
    # "frametap" is our own entry in torch's registry.
    if backend in ("native", "frametap"):
        return _C.native_backend()
    if backend == "reference":
        return _C.reference_backend()
    function = _from_torch(backend)
    return _C.callable_backend(function, backend, static=backend not in _RUNS_THE_MODULE)


def _from_torch(name: str) -> CompilerFn:
    import torch._dynamo

    known = torch._dynamo.list_backends(exclude_tags=None)
    if name not in known:
        candidates = ["native", "reference", *(k for k in known if k != "frametap")]
        near = difflib.get_close_matches(name, candidates, n=3, cutoff=0.4)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "no name is near it."
        raise BackendError(
            f"no backend is called {name!r}; {hint} Known names: {', '.join(candidates)}"
        )
    function = torch._dynamo.lookup_backend(name)
    # The import happens now, not within the first call. The modules register classes with abstract
    # bases when they are imported, and guards of that call would see the change.
    importlib.import_module(_COMPILERS.get(name, "torch._functorch.aot_autograd"))
    return function
