"""Functions that give a Python value its present content and attributes back. Used by
`state_values`.
"""

from __future__ import annotations

import array
import contextvars
import io
import random
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from planner.training_step.state_walk import has_attributes, is_users_code, named_globals, slots_of

_LARGE_ARRAY_BYTES = 2**24  # arrays beyond this are taken for data sets and left alone
_MISSING: Any = object()

Restorer = Callable[[], object]


def restorers_of(value: Any) -> Iterator[Restorer]:
    """Yield functions that give a value its present content and attributes back."""
    if type(value) in (dict, OrderedDict):
        yield _dict_restorer(value)
        return
    if isinstance(value, dict):
        yield _dict_restorer(value)
    elif isinstance(value, (list, deque)):
        yield _sequence_restorer(value)
    elif isinstance(value, set):
        yield _set_restorer(value)
    elif isinstance(value, (bytearray, array.array)):
        yield _buffer_restorer(value)
    elif isinstance(value, (io.StringIO, io.BytesIO)):
        yield from _stream_restorers(value)
    elif isinstance(value, types.FunctionType):
        yield from _function_restorers(value)
    elif isinstance(value, types.CellType):
        yield from _cell_restorers(value)
    elif isinstance(value, contextvars.ContextVar):
        yield from _context_restorers(value)
    elif isinstance(value, type):
        yield from (_class_restorer(kind) for kind in value.__mro__ if is_users_code(kind))
    else:
        yield from _generator_restorers(value)
        yield from _numpy_restorers(value)
    if isinstance(value, types.ModuleType):
        if has_attributes(value):
            yield _namespace_restorer(vars(value))
    elif has_attributes(value):
        yield _dict_restorer(vars(value))
    for name in slots_of(value):
        yield partial(object.__setattr__, value, name, getattr(value, name))


def _dict_restorer(value: dict[object, object]) -> Restorer:
    # The base's own methods: subclasses may forbid or extend theirs.
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    before = list(base.items(value))

    def restore() -> None:
        if not _identical(list(base.items(value)), before):
            base.clear(value)
            for key, item in before:
                base.__setitem__(value, key, item)

    return restore


def _identical(now: list[tuple[object, object]], before: list[tuple[object, object]]) -> bool:
    pairs = zip(now, before, strict=False)
    return len(now) == len(before) and all(
        new[0] is old[0] and new[1] is old[1] for new, old in pairs
    )


def _sequence_restorer(value: list[object] | deque[object]) -> Restorer:
    base: Any = list if isinstance(value, list) else deque
    before = list(base.__iter__(value))

    def restore() -> None:
        now = list(base.__iter__(value))
        if len(now) != len(before) or any(a is not b for a, b in zip(now, before, strict=True)):
            base.clear(value)
            base.extend(value, before)

    return restore


def _set_restorer(value: set[object]) -> Restorer:
    before = set(value)

    def restore() -> None:
        if value != before:
            value.clear()
            value.update(before)

    return restore


def _buffer_restorer(value: Any) -> Restorer:
    before = value[:]

    def restore() -> None:
        if value != before:
            value[:] = before

    return restore


def _stream_restorers(value: Any) -> Iterator[Restorer]:
    if value.closed:
        return
    content, position = value.getvalue(), value.tell()

    def restore() -> None:
        value.seek(0)
        value.truncate()
        value.write(content)
        value.seek(position)

    yield restore


def _function_restorers(function: types.FunctionType) -> Iterator[Restorer]:
    if function.__defaults__:
        yield partial(setattr, function, "__defaults__", function.__defaults__)
    names = named_globals(function)
    if names:
        yield _names_restorer(function.__globals__, names)


def _cell_restorers(cell: types.CellType) -> Iterator[Restorer]:
    try:
        yield partial(setattr, cell, "cell_contents", cell.cell_contents)
    except ValueError:  # not filled yet
        yield partial(_empty, cell)


def _context_restorers(variable: contextvars.ContextVar[object]) -> Iterator[Restorer]:
    try:
        yield partial(variable.set, variable.get())
    except LookupError:  # never set, and without a default: it cannot be emptied again
        return


def _empty(cell: types.CellType) -> None:
    if cell != types.CellType():
        del cell.cell_contents


def _names_restorer(namespace: dict[str, object], names: tuple[str, ...]) -> Restorer:
    """Put back what names of a module mean; imports made in the meantime stay."""
    before = {name: namespace.get(name, _MISSING) for name in names}

    def restore() -> None:
        for name, item in before.items():
            now = namespace.get(name, _MISSING)
            if now is item:
                continue
            if item is not _MISSING:
                namespace[name] = item
            elif not isinstance(now, types.ModuleType):
                del namespace[name]

    return restore


def _namespace_restorer(namespace: dict[str, object]) -> Restorer:
    known = tuple(namespace)
    restore_known = _names_restorer(namespace, known)

    def restore() -> None:
        restore_known()
        for name in namespace.keys() - set(known):
            if not isinstance(namespace[name], types.ModuleType):
                del namespace[name]

    return restore


def _class_restorer(kind: type) -> Restorer:
    before = dict(vars(kind))

    def restore() -> None:
        now = dict(vars(kind))
        for name in now.keys() - before.keys():
            type.__delattr__(kind, name)
        for name, item in before.items():
            if now.get(name, _MISSING) is not item:
                type.__setattr__(kind, name, item)

    return restore


def _generator_restorers(value: object) -> Iterator[Restorer]:
    if isinstance(value, torch.Generator):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        yield partial(value.setstate, value.getstate())


def _numpy_restorers(value: object) -> Iterator[Restorer]:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return
    if isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        yield partial(setattr, bits, "state", bits.state)
    elif isinstance(value, numpy.random.BitGenerator):
        yield partial(setattr, value, "state", value.state)
    elif isinstance(value, numpy.random.RandomState):
        yield partial(value.set_state, value.get_state())
    elif isinstance(value, numpy.ndarray):
        small = value.nbytes <= _LARGE_ARRAY_BYTES
        if small and value.flags.writeable:
            yield partial(numpy.copyto, value, value.copy())
