"""Iterators while planning: the step takes from copies, or is stopped. Used by `state_values`.

An iterator cannot be moved back. So whatever holds one holds a copy of it for as long as planning
runs steps, and afterwards the iterator itself again, which never moved. Where there is no copy (a
generator function, a file, a queue, workers of a data loader) a stand-in takes its place that
raises when the step uses it: before anything was taken, and by name. In a process that is itself a
copy (`planner.isolated`) such values are used up, but for those that the copy shares.
"""

from __future__ import annotations

import copy
import functools
import gc
import io
import queue
import socket
import sys
import threading
import types
import warnings
from typing import Any, NoReturn

import torch

from planner.errors import StepError
from planner.training_step.state_walk import is_builtin_iterator, once_for_a_class
from planner.training_step.throwaway import is_throwaway

_BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_CHANNELS = (queue.Queue, queue.SimpleQueue, socket.socket)
_OTHER_CHANNELS = (
    ("multiprocessing.queues", "Queue"),
    ("multiprocessing.queues", "SimpleQueue"),
    ("multiprocessing.connection", "Connection"),
)
_FACTS_OF_A_FILE = ("name", "mode", "encoding", "closed", "isatty", "fileno")


@once_for_a_class
def may_be_exchanged(kind: type) -> bool:
    """Return whether something may have to take the place of a value of this class."""
    known = (tuple, functools.partial, *_BOUND)
    return issubclass(kind, known) or bool(_without_copy(kind)) or is_builtin_iterator(kind)


class Exchange:
    """Makes the values that stand in for iterators and channels, the same one for the same value.

    One thread plans; a step of its own that uses a stand-in is stopped. Other threads of the
    program (a prefetcher, a logger) reach the original through it.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[Any, Any]] = {}  # holds the original: an id stays its own
        self._thread = threading.get_ident()

    def __call__(self, value: object, label: str) -> Any:
        """Return what takes a value's place; the very same object where nothing has to."""
        found = self._made.get(id(value))
        if found is None:
            found = self._made[id(value)] = (value, self._make(value, label))
        return found[1]

    def _make(self, value: object, label: str) -> Any:
        if type(value) is tuple:
            return self._tuple(value, label)
        if type(value) is functools.partial:
            return self._partial(value, label)
        if isinstance(value, _BOUND) and not isinstance(value.__self__, types.ModuleType):
            return self._method(value, label)
        kind = _without_copy(type(value))
        if kind and not _is_standard_stream(value):
            return StandIn(value, label, kind, self._thread)
        return self._iterator(value, label) if is_builtin_iterator(type(value)) else value

    def _method(self, value: Any, label: str) -> Any:
        owner = self(value.__self__, label)
        if isinstance(owner, StandIn):
            return owner.standing_for(value)
        return value if owner is value.__self__ else getattr(owner, value.__name__)

    def _tuple(self, value: tuple[object, ...], label: str) -> tuple[Any, ...]:
        new = tuple(self(item, label) for item in value)
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new

    def _partial(self, value: functools.partial[object], label: str) -> Any:
        parts = (value.func, *value.args, *value.keywords.values())
        new = [self(part, label) for part in parts]
        if all(a is b for a, b in zip(new, parts, strict=True)):
            return value
        count = len(value.args) + 1
        keywords = dict(zip(value.keywords, new[count:], strict=True))
        return functools.partial(new[0], *new[1:count], **keywords)

    def _iterator(self, value: Any, label: str) -> Any:
        try:
            with warnings.catch_warnings():  # from Python 3.12 on itertools announce that this ends
                warnings.simplefilter("ignore", DeprecationWarning)
                if hasattr(value, "__copy__"):
                    return self._tee(value, label)
                make, arguments, *state = value.__reduce__()
                made = make(*(self._part(part, label) for part in arguments))
                if state and state[0] is not None:
                    made.__setstate__(self._part(state[0], label))
        except (TypeError, AttributeError):
            if is_throwaway():
                return value
            kind = f"a {type(value).__name__} cannot be copied"
            return StandIn(value, label, kind, self._thread)
        return made

    def _part(self, part: object, label: str) -> Any:
        """A part of an iterator's state: inner iterators are copied, and so is what they fill."""
        if type(part) is tuple:
            return tuple(
                list(item) if type(item) is list else self._part(item, label) for item in part
            )
        return self(part, label)

    def _tee(self, value: object, label: str) -> Any:
        """A branch of `tee`: what one branch takes from the source waits for the others."""
        for buffer in gc.get_referents(value):
            for source in gc.get_referents(buffer):
                if isinstance(self(source, label), StandIn):
                    return StandIn(value, label, "its source cannot be copied", self._thread)
        return copy.copy(value)


class StandIn:
    """Takes the place of a value that a step may not use while planning."""

    def __init__(self, original: Any, label: str, kind: str, thread: int) -> None:
        self._original = original
        self._label = label
        self._kind = kind
        self._thread = thread

    def standing_for(self, method: object) -> StandIn:
        """Return what takes the place of a method of the original."""
        return StandIn(method, self._label, self._kind, self._thread)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call a method of the original, from another thread."""
        if self._is_the_steps():
            self._refuse()
        return self._original(*args, **kwargs)

    def __iter__(self) -> Any:
        return self if self._is_the_steps() else iter(self._original)

    def __next__(self) -> Any:
        if self._is_the_steps():
            self._refuse()
        return next(self._original)

    def __enter__(self) -> NoReturn:
        self._refuse()

    def __exit__(self, *error: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name == "_original":  # of a copy that is being made
            raise AttributeError(name)
        if name.startswith("__") or (name in _FACTS_OF_A_FILE and _is_file(type(self._original))):
            return getattr(self._original, name)
        if self._is_the_steps():
            self._refuse()
        return getattr(self._original, name)

    def _is_the_steps(self) -> bool:
        """Whether this thread runs the step: the planning one, or one of backward's."""
        in_backward = torch._C._current_graph_task_id() != -1
        return in_backward or threading.get_ident() == self._thread

    def _refuse(self) -> NoReturn:
        raise StepError(
            f"the training step uses {self._label}, which cannot be put back after planning",
            f"a {type(self._original).__name__}; nothing was taken from it or written to it",
            self._kind,
            "pass inputs that are drawn before planning" + ("" if is_throwaway() else _ON_A_COPY),
        )


_ON_A_COPY = (
    "; or plan on a copy of everything, in a child process: planner.isolated(planner.plan)(model,"
    " budget_mb=..., ...)"
)


def _without_copy(kind: type) -> str:
    """Return why there is no copy of a value of a class, or an empty text."""
    if issubclass(kind, _CHANNELS) or _is_one_of(kind, _OTHER_CHANNELS):
        return "what goes through a queue or a connection cannot be undone"
    if _is_one_of(kind, (("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),)):
        return "batches that a data loader's workers have handed out cannot be given back"
    return "" if is_throwaway() else _used_up(kind)


def _used_up(kind: type) -> str:
    """Return why a value of a class has another position after a step, or an empty text."""
    if issubclass(kind, _GENERATORS):
        return "a generator function cannot be copied, and planning runs the step several times"
    if _is_file(kind):
        return "what is read from a file or written to it cannot be undone"
    if _is_one_of(kind, (("torch.utils.data.dataloader", "_BaseDataLoaderIter"),)):
        return "batches that a data loader has handed out cannot be given back"
    return ""


def _is_file(kind: type) -> bool:
    if issubclass(kind, (io.StringIO, io.BytesIO)):
        return False
    return issubclass(kind, io.IOBase) or kind.__name__ == "_TemporaryFileWrapper"


def _is_standard_stream(value: object) -> bool:
    standard = (sys.stdout, sys.stderr, sys.stdin, sys.__stdout__, sys.__stderr__, sys.__stdin__)
    return any(value is stream for stream in standard)


def _is_one_of(kind: type, names: tuple[tuple[str, str], ...]) -> bool:
    """Whether a class derives from one, given by module and name, that somebody has imported."""
    known = (getattr(sys.modules.get(module), name, None) for module, name in names)
    return any(isinstance(base, type) and issubclass(kind, base) for base in known)
