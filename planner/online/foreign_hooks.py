"""The user's hooks while a model that trains runs on fake tensors: their effects are undone.

They have to run, since some of them compute (weight norm, `enable_input_require_grads`). But many
only observe, and count or log what they see: what they raise about a tensor without content is
ignored, and what they wrote is restored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.optim.optimizer import (
    Optimizer,
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
)

_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OPTIMIZERS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
_GLOBAL = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
_CONTAINERS = (list, dict, set, deque)


@contextmanager
def effects_undone(model: nn.Module, updater: Optimizer | None = None) -> Iterator[None]:
    """Let hooks on a model's units run without a trace, and those of optimizers not at all.

    Taken back are the contents of lists, dicts, sets and deques, and values that are replaced,
    where a hook reaches them in one step: by its closure, its globals, its arguments or its object.
    """
    tables = [vars(m)[name] for m in model.modules() for name in _TABLES if vars(m).get(name)]
    set_aside = [*_GLOBAL, *(vars(updater)[name] for name in _OPTIMIZERS if updater is not None)]
    before = [dict(table) for table in (*tables, *set_aside)]
    restorers: list[Callable[[], object]] = []
    for table in tables:
        for key, hook in table.items():
            restorers += _restorers(hook)
            table[key] = _Tolerant(hook)
    for table in set_aside:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip((*tables, *set_aside), before, strict=True):
            table.update(hooks)
        for restore in restorers:
            restore()


class _Tolerant:
    """A hook that changes nothing where it fails."""

    def __init__(self, hook: Callable[..., object]) -> None:
        self._hook = hook

    def __call__(self, *args: object, **kwargs: object) -> Any:
        try:
            return self._hook(*args, **kwargs)
        except Exception:
            return None


def _restorers(hook: Any) -> Iterator[Callable[[], object]]:
    while isinstance(hook, partial):
        for value in (*hook.args, *hook.keywords.values()):
            yield from _content(value)
        hook = hook.func
    owner = getattr(hook, "__self__", None if hasattr(hook, "__code__") else hook)
    if owner is not None and not isinstance(owner, nn.Module):  # a module's state is put back
        yield from _bindings(getattr(owner, "__dict__", {}))
    code = getattr(hook, "__code__", None)
    if code is None:
        return
    for cell in hook.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # empty
            continue
        yield partial(setattr, cell, "cell_contents", value)
        yield from _content(value)
    names = {*code.co_names} & hook.__globals__.keys()
    yield from _bindings(hook.__globals__, names)


def _bindings(table: Any, names: Any = None) -> Iterator[Callable[[], object]]:
    for name in list(table) if names is None else names:
        value = table[name]
        if isinstance(value, (*_CONTAINERS, int, float, str, type(None))):
            yield partial(table.__setitem__, name, value)
            yield from _content(value)


def _content(value: Any) -> Iterator[Callable[[], object]]:
    """Yield what gives a container its present content again, if it has lost it."""
    kind = type(value)
    if kind in _CONTAINERS:
        before = kind(value)
        yield partial(_refill, value, before)


def _refill(value: Any, before: Any) -> None:
    now, then = _items(value), _items(before)
    if len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True)):
        return
    value.clear()
    if isinstance(value, (list, deque)):
        value.extend(before)
    else:
        value.update(before)


def _items(value: Any) -> list[Any]:
    return [*value, *value.values()] if isinstance(value, dict) else [*value]
