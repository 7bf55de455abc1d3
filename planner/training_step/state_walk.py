"""What a Python value holds: the edges along which the snapshot looks for state. Used by
`state_values`.

Everything that code of the step can reach from a module, an optimizer, a hook or a function: items,
attributes, slots, closures, defaults, bound objects, the attributes of the user's own classes, and
the globals that the user's own functions name. Objects of torch and the standard library that
manage themselves are not opened.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import io
import site
import sys
import sysconfig
import threading
import types
import weakref
from collections import ChainMap, OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

MOST_ITEMS = 100_000
"""A longer container is kept as it is, without a look at each item."""

ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
"""Values without parts and without state."""

_CLOSED = {*sys.stdlib_module_names, "torch", "numpy", "planner"}
_OPEN_TORCH = (
    "torch.amp",
    "torch.cuda.amp",
    "torch.distributions",
    "torch.nn",
    "torch.optim",
    "torch.quasirandom",
    "torch.utils.data",
)
_OPEN_CLASSES = (
    torch.Tensor,
    torch.nn.Module,
    torch.optim.Optimizer,
    types.SimpleNamespace,
    threading.local,
    UserDict,
    UserList,
    ChainMap,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    weakref.WeakSet,
)
_PLAIN = (dict, OrderedDict, list, tuple, set, frozenset)
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


Answer = TypeVar("Answer")


def once_for_a_class(question: Callable[[type], Answer]) -> Callable[[type], Answer]:
    """Remember the answers to what is asked for every value and depends on its class alone."""
    asked: Callable[[type], Answer] = functools.lru_cache(maxsize=8192)(question)
    return asked


class Held(NamedTuple):
    """A value within another.

    Attributes:
        label: where it is, to be appended to the holder's own label.
        value: the value.
        put: puts another value in its place; None where the place cannot be written.
    """

    label: str
    value: Any
    put: Callable[[Any], object] | None = None


def held_by(value: object) -> Iterator[Held]:
    """Yield the values that a value holds."""
    if type(value) in _PLAIN:
        yield from _in_container(value)
    elif isinstance(value, types.FunctionType):
        yield from _in_function(value)
    elif isinstance(value, types.MethodType):
        yield from (Held("", value.__self__), Held("", value.__func__))
    elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
        yield Held("", value.__self__)
    elif isinstance(value, (staticmethod, classmethod)):
        yield Held("", value.__func__)
    elif isinstance(value, property):
        yield from (Held("", function) for function in (value.fget, value.fset, value.fdel))
    elif isinstance(value, functools.partial):
        yield from (Held("", part) for part in (value.func, value.args, value.keywords))
    elif isinstance(value, types.CellType):
        yield from _in_cell(value)
    elif isinstance(value, type):
        yield from _in_class(value)
    elif isinstance(value, weakref.ref):
        yield Held("", value())
    elif isinstance(value, contextvars.ContextVar):
        yield from (Held("", item) for item in _in_variable(value))
    elif is_builtin_iterator(type(value)):
        yield from (Held("", part) for part in gc.get_referents(value))
    else:
        yield from _in_object(value)


def has_attributes(value: object) -> bool:
    """Return whether a value has a `__dict__` that is looked into."""
    return _is_open(value) and isinstance(getattr(value, "__dict__", None), dict)


def slots_of(value: object) -> Iterator[str]:
    """Yield the names of the `__slots__` of a value that are filled."""
    return (name for name in _slots(type(value)) if hasattr(value, name))


@once_for_a_class
def _slots(kind: type) -> tuple[str, ...]:
    found = []
    for base in kind.__mro__ if _is_open_class(kind) else ():
        if module_of(base).partition(".")[0] in _CLOSED:
            continue
        names = vars(base).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else tuple(names):
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if private else name)
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


@once_for_a_class
def is_builtin_iterator(kind: type) -> bool:
    """Return whether a class is of iterators whose position no Python code keeps."""
    step = getattr(kind, "__next__", None)
    own = step is None or isinstance(step, types.FunctionType) or issubclass(kind, io.IOBase)
    return not own


def module_of(thing: object) -> str:
    """Return the name of the module in which a class or a function was defined, if it says so."""
    name = thing.__module__
    return name if isinstance(name, str) else ""


def is_users_code(thing: type | types.FunctionType) -> bool:
    """Return whether a class or a function is the user's own: not installed, not Python's."""
    return _is_users_module(module_of(thing))


@functools.cache
def _is_users_module(name: str) -> bool:
    if not name or name.partition(".")[0] in _CLOSED:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or not str(file).startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return (*site.getsitepackages(), paths["stdlib"], paths["purelib"], paths["platlib"])


def named_globals(function: types.FunctionType) -> tuple[str, ...]:
    """Return the names of globals that a function of the user's own may read or write."""
    if not is_users_code(function):
        return ()
    return tuple(dict.fromkeys(_names_in(function.__code__)))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _is_open(value: object) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__ != "__main__" and _is_users_module(value.__name__)
    return _is_open_class(type(value))


@once_for_a_class
def _is_open_class(kind: type) -> bool:
    module = module_of(kind)
    known = issubclass(kind, _OPEN_CLASSES) or module.startswith(_OPEN_TORCH)
    return known or module.partition(".")[0] not in _CLOSED


def _in_function(function: types.FunctionType) -> Iterator[Held]:
    if module_of(function).partition(".")[0] == "planner":
        return
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield Held(f".{name}", cell)
    if function.__defaults__:
        yield Held(".__defaults__", function.__defaults__, _setter(function, "__defaults__"))
    yield Held(".__kwdefaults__", function.__kwdefaults__)
    yield Held("", function.__dict__)
    held = function.__globals__
    for name in named_globals(function):
        if name in held:
            yield Held(f".{name}", held[name], partial(dict.__setitem__, held, name))


def _in_cell(cell: types.CellType) -> Iterator[Held]:
    try:
        yield Held("", cell.cell_contents, _setter(cell, "cell_contents"))
    except ValueError:  # not filled yet
        return


def _in_variable(variable: contextvars.ContextVar[object]) -> Iterator[Any]:
    try:
        yield variable.get()
    except LookupError:  # never set, and without a default
        return


def _in_class(kind: type) -> Iterator[Held]:
    """What the user's own class and its bases keep in attributes."""
    for base in kind.__mro__:
        if is_users_code(base):
            for name, item in list(vars(base).items()):
                yield Held(f".{name}", item, partial(type.__setattr__, base, name))


def _in_object(value: object) -> Iterator[Held]:
    yield from _in_container(value)
    if isinstance(value, torch.Tensor):
        yield from (Held("", getattr(value, name, None)) for name in _TENSOR_HOOKS)
        yield from (Held("", hooks) for hooks in _accumulation_hooks(value))
    if has_attributes(value):
        held = vars(value)
        for name, item in list(held.items()):
            yield Held(f".{name}", item, partial(dict.__setitem__, held, name))
    for name in slots_of(value):
        yield Held(f".{name}", getattr(value, name), partial(object.__setattr__, value, name))
    if is_users_code(type(value)):
        yield Held("", type(value))


def _in_container(value: object) -> Iterator[Held]:
    if isinstance(value, dict):
        for key, item in _few(value.items()):
            yield Held("", key)
            yield Held(_key(key), item, partial(dict.__setitem__, value, key))
    elif isinstance(value, (list, deque)):
        base: Any = list if isinstance(value, list) else deque
        for index, item in enumerate(_few(value)):
            yield Held(f"[{index}]", item, partial(base.__setitem__, value, index))
    elif isinstance(value, (tuple, set, frozenset)):
        yield from (Held(f"[{index}]", item) for index, item in enumerate(_few(value)))


def _accumulation_hooks(tensor: torch.Tensor) -> Iterator[Any]:
    """Hooks on the node that adds up a parameter's gradient, which only the node refers to."""
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and not tensor.is_inference()
    if plain and tensor.is_leaf and tensor.requires_grad:
        with torch._C.DisableTorchFunction():  # asking makes a view, which is not the step's
            node = torch.autograd.graph.get_gradient_edge(tensor).node
        yield from gc.get_referents(node)


def _setter(holder: object, name: str) -> Callable[[Any], object]:
    return partial(setattr, holder, name)


def _key(key: object) -> str:
    return f"[{key!r}]" if isinstance(key, (str, int)) else f"[{type(key).__name__}]"


def _few(items: Any) -> Iterable[Any]:
    return list(items) if len(items) <= MOST_ITEMS else ()
