"""The parts of a model that may change in calls: buffers, counters, lists, hidden states, hooks.

M1  After `put_back`, a call begins as if there had been none since the state was taken.
M2  A tensor, list, dict, set or object that was there stays the same object and gets its content back. Later ones are removed.

Not here: parameters and submodules, which calls do not change; C objects.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

__all__ = ["ModelState"]

_OF_TORCH = vars(torch.nn.Module()).keys()  # hooks, parameters, submodules, the mode
_HOOKS = [name for name in _OF_TORCH if "hooks" in name]
_CONTAINERS = (list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict)


class ModelState:
    """The state of a module and its submodules at this moment. `owner`: None has none.

    `own`: ids of the objects that no other model has. Other lists, dicts and objects are left alone, such as loggers and
    what a `__deepcopy__` shares.
    """

    def __init__(self, owner: torch.nn.Module | None, own: Collection[int] = ()) -> None:
        self._restores: list[Callable[[], bool]] = []
        self._owner, self._own = owner, own
        self._seen: dict[int, Any] = {}  # objects, which an id stands for as long as they live
        self._left: list[Any] = []
        if owner is not None:
            self._seen = {id(parameter): parameter for parameter in owner.parameters()}
            self._left.append(owner)
        while self._left:
            value = self._left.pop()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._take(value)
        self._seen.clear()

    def put_back(self) -> None:
        """Tensors that no call has changed so far are not looked at a second time."""
        with torch.no_grad():
            self._restores = [restore for restore in self._restores if restore()]

    def of_now(self) -> ModelState:
        return ModelState(self._owner, self._own)

    def _take(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if type(value) is torch.Tensor and value.layout is torch.strided:
                self._restores.append(_restore_of_tensor(value))
        elif isinstance(value, torch.nn.Module):
            self._take_attributes(value, _OF_TORCH)
            for (
                name
            ) in _HOOKS:  # a first call may install some, and note in an attribute that it has
                self._take_container(vars(value)[name])
            self._take_container(value._buffers)
            self._left += value._modules.values()
        elif type(value) is tuple:
            self._left += value
        elif id(value) not in self._own:
            return
        elif type(value) in _CONTAINERS:
            self._take_container(value)
        elif type(getattr(value, "__dict__", None)) is dict:
            self._take_attributes(value, ())

    def _take_container(self, container: Any) -> None:
        content = container.copy()

        def restore() -> bool:
            if not _are_same(container, content):
                container.clear()
                if isinstance(container, (dict, set)):
                    container.update(content)
                else:
                    container.extend(content)
            return True

        self._restores.append(restore)
        self._left += content.values() if isinstance(content, dict) else content

    def _take_attributes(self, holder: Any, hidden: Collection[str]) -> None:
        kind = type(holder)
        attributes = {name: value for name, value in vars(holder).items() if name not in hidden}

        def restore() -> bool:
            if type(holder) is not kind:  # a lazy module that has become another
                return False
            now = vars(holder)
            for name in [name for name in now if name not in hidden and name not in attributes]:
                del now[name]
            for name, value in attributes.items():
                if name not in now or now[name] is not value:
                    now[name] = value
            return True

        self._restores.append(restore)
        self._left += attributes.values()


def _restore_of_tensor(tensor: torch.Tensor) -> Callable[[], bool]:
    before = tensor.detach().clone()

    def restore() -> bool:
        if tensor.shape != before.shape or tensor.dtype != before.dtype:
            tensor.data = before.clone()
        elif _are_equal(tensor, before):
            return False
        else:
            with torch.inference_mode(tensor.is_inference()):
                tensor.copy_(before)
        return True

    return restore


def _are_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_floating_point() or a.is_complex():
        return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    return torch.equal(a, b)


def _are_same(a: Any, b: Any) -> bool:
    """Whether two containers hold the same objects."""
    return len(a) == len(b) and all(x is y for x, y in zip(_items(a), _items(b), strict=True))


def _items(container: Any) -> Iterator[Any]:
    if isinstance(container, dict):
        for key, value in container.items():
            yield key
            yield value
    else:
        yield from container
