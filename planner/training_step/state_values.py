"""The Python values in a snapshot: attributes and the containers in them. Used by `state`."""

from __future__ import annotations

import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch

OnTensor = Callable[[torch.Tensor, str], None]

_DEPTH = 4  # containers and objects within each other below a module
_MANY = 100_000  # a longer container is kept as it is, without a look at each item
# Objects of these packages are kept as they are: they manage themselves, or are not a model's own.
_CLOSED = {*sys.stdlib_module_names, "torch", "numpy", "planner"}
_LARGE_ARRAY_BYTES = 2**24  # arrays beyond this are taken for data sets and left alone


class ValueSnapshot:
    """Remembers Python values and puts them back, as the same objects with the same content.

    Follows attributes of modules, optimizers and plain objects, dicts, lists, sets, deques, tuples,
    NumPy arrays and random generators. Tensors found are handed on. Not followed: class attributes,
    globals, slots, iterators and the inside of the standard library's and torch's own objects.

    Args:
        on_tensor: is given each tensor found, and where.
    """

    def __init__(self, on_tensor: OnTensor) -> None:
        self._on_tensor = on_tensor
        self._seen: dict[int, Any] = {}  # holds the values, so that an id stays theirs
        self._restorers: list[Callable[[], object]] = []

    def add(self, value: Any, label: str, depth: int = _DEPTH) -> None:
        """Remember a value and what it holds."""
        if isinstance(value, torch.Tensor):
            self._on_tensor(value, label)
        if depth < 0 or id(value) in self._seen or isinstance(value, _ATOMS):
            return
        self._seen[id(value)] = value
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
            depth = _DEPTH
        self._restorers += _restorers(value)
        for step, item in _items(value):
            self.add(item, label + step, depth - 1)

    def restore(self) -> None:
        """Put everything back."""
        for restore in self._restorers:
            restore()


_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, types.ModuleType)


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((_key(key), item) for key, item in _few(value.items()))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"[{index}]", item) for index, item in enumerate(_few(value)))
    if _has_attributes(value):
        yield from ((f".{name}", item) for name, item in list(vars(value).items()))


def _key(key: Any) -> str:
    return f"[{key!r}]" if isinstance(key, (str, int)) else f"[{type(key).__name__}]"


def _few(items: Any) -> Iterable[Any]:
    return list(items) if len(items) <= _MANY else ()


def _has_attributes(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)):
        return True
    own = type(value).__module__.partition(".")[0] not in _CLOSED
    own = own or isinstance(value, types.SimpleNamespace)
    return own and isinstance(getattr(value, "__dict__", None), dict)


def _restorers(value: Any) -> Iterator[Callable[[], object]]:
    """Yield functions that give a value its present content and attributes back."""
    if isinstance(value, dict):
        yield _dict_restorer(value)
    elif isinstance(value, (list, deque)):
        yield _sequence_restorer(value)
    elif isinstance(value, set):
        yield _set_restorer(value)
    else:
        yield from _generator_restorers(value)
        yield from _numpy_restorers(value)
    if _has_attributes(value):
        yield _dict_restorer(vars(value))


def _dict_restorer(value: dict[Any, Any]) -> Callable[[], object]:
    # The base's own methods: subclasses may forbid or extend theirs.
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    before = list(base.items(value))

    def restore() -> None:
        if not _identical(list(base.items(value)), before):
            base.clear(value)
            for key, item in before:
                base.__setitem__(value, key, item)

    return restore


def _identical(now: list[tuple[Any, Any]], before: list[tuple[Any, Any]]) -> bool:
    pairs = zip(now, before, strict=False)
    return len(now) == len(before) and all(
        new[0] is old[0] and new[1] is old[1] for new, old in pairs
    )


def _sequence_restorer(value: list[Any] | deque[Any]) -> Callable[[], object]:
    before = list(value)

    def restore() -> None:
        if len(value) != len(before) or any(
            new is not old for new, old in zip(value, before, strict=True)
        ):
            value.clear()
            value.extend(before)

    return restore


def _set_restorer(value: set[Any]) -> Callable[[], object]:
    before = set(value)

    def restore() -> None:
        if value != before:
            value.clear()
            value.update(before)

    return restore


def _generator_restorers(value: Any) -> Iterator[Callable[[], object]]:
    if isinstance(value, torch.Generator):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, random.Random):
        yield partial(value.setstate, value.getstate())


def _numpy_restorers(value: Any) -> Iterator[Callable[[], object]]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        yield partial(setattr, bits, "state", bits.state)
    elif isinstance(value, numpy.random.RandomState):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, numpy.ndarray):
        small = value.nbytes <= _LARGE_ARRAY_BYTES
        if small and value.flags.writeable:
            yield partial(numpy.copyto, value, value.copy())
