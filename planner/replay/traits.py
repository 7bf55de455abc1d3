"""What the engine must know about an aten op: what it writes, whether it draws, whether it aliases.

Read once per op from its schema and cached by identity; the few facts that schemas do not declare
(kernels with undeclared writes) stand here as tables with their reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from planner.replay.custom_ops import ATEN_NAMESPACES, is_custom, refusal

UNDECLARED_WRITES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::batch_norm_update_stats": ((1, 2), None),
    "aten::batch_norm_gather_stats": ((3, 4), None),
    "aten::batch_norm_gather_stats_with_counts": ((3, 4), None),
}
"""Positions of running statistics that these kernels update without declaring it, and of the
argument that decides whether they do (none: always)."""

_LEAVES_UNDEFINED = ("attention", "_batch_norm", "_rnn")
"""Kernels of these names return integers that only some calls fill: the seeds of attention without
dropout, what a library reserves for itself. Autograd saves them all the same."""

_BLANK = frozenset(
    {
        "aten::empty",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::empty_permuted",
    }
)
_ALIASES_UNDECLARED = frozenset({"aten::_unsafe_view", "aten::_reshape_alias"})
_RELABELS = frozenset(
    {"aten::_conj", "aten::_neg_view", "aten::view_as_real", "aten::view_as_complex"}
)
"""Views that change what the bytes mean, as `aten::view.dtype` does. A tape notes them, and a
followed run looks at the conjugate bits of tensors only after the first of them."""
_OVERWRITES = frozenset(
    {
        "aten::copy_",
        "aten::fill_",
        "aten::zero_",
        "aten::normal_",
        "aten::uniform_",
        "aten::random_",
        "aten::bernoulli_",
        "aten::exponential_",
        "aten::geometric_",
        "aten::cauchy_",
        "aten::log_normal_",
        "aten::scatter_",
        "aten::index_copy_",
        "aten::index_fill_",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::put_",
        "aten::masked_fill_",
        "aten::masked_scatter_",
        "aten::fill_diagonal_",
        "aten::_foreach_copy_",
        "aten::_foreach_zero_",
    }
)
"""In-place ops that may be the first to write blank memory. All others read what they write."""
_CHANGES_ARGUMENT = {"aten::_cudnn_rnn": 15, "aten::miopen_rnn": 13}
"""Where recurrent layers with dropout are given the library's own generator (`dropout_state`)."""
_NO_EFFECT = frozenset({"aten::record_stream"})
"""Their schemas declare a write that does not happen: this one informs the allocator."""
_REWIRES = ("aten::set_", "aten::resize_", "aten::resize_as_", "aten::_resize_output_")


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts about one op overload.

    Attributes:
        passthrough: makes no memory and writes none (a view, a query): the tape can ignore it.
        opaque: must not be replayed; what it makes counts as coming from outside.
        writes: positions of positional arguments written in place.
        keyword_writes: names of keyword arguments written in place (`out=`).
        random: draws from a generator.
        blank: returns memory with undefined content (`empty`).
        hidden_writes: positions written without the schema declaring it (batch norm statistics).
        hidden_flag: position of the argument that decides whether they are written, if any.
        overwrites: may be the first to write blank memory; else it reads what it writes.
        relabels: returns a view that changes what the bytes mean.
        unversioned: writes without moving version counters while a dispatch mode is on.
        copies: may copy between devices without waiting.
        needs_statistics: takes the dtype of the statistics for the one to compute in.
        declares_writes: what it writes is in its schema, or in the tables here.
        changes_argument: position of a tensor in which the kernel keeps its random state.
        name: the op, as ``lib::op``.
        custom: outside aten, so that only a run, or the user, can tell whether it may be replayed.
    """

    passthrough: bool
    opaque: bool
    writes: tuple[int, ...]
    keyword_writes: tuple[str, ...]
    random: bool
    blank: bool
    hidden_writes: tuple[int, ...] = ()
    hidden_flag: int | None = None
    overwrites: bool = False
    relabels: bool = False
    unversioned: bool = False
    copies: bool = False
    needs_statistics: bool = False
    changes_argument: int | None = None
    declares_writes: bool = False
    name: str = ""
    custom: bool = False

    @property
    def may_draw(self) -> bool:
        """Whether a call may draw from a generator; kernels outside aten need not say so."""
        return self.random or self.custom


_OPAQUE = Traits(False, True, (), (), False, False)
_cache: dict[int, Traits] = {}
_alive: list[Any] = []  # keeps the ops whose ids are cache keys


def traits_of(func: Any) -> Traits:
    """Return the traits of an op overload (opaque for anything that is not one)."""
    found = _cache.get(id(func))
    if found is None:
        found = _read(func)
        _alive.append(func)
        _cache[id(func)] = found
    return found


def _read(func: Any) -> Traits:
    if not isinstance(func, torch._ops.OpOverload):
        return _OPAQUE
    schema = func._schema
    name = schema.name
    if name in _NO_EFFECT:
        return Traits(True, False, (), (), False, False)
    writes, keyword_writes = _writes(schema)
    mutable = bool(writes or keyword_writes)
    custom, declared = is_custom(func), func.namespace in ATEN_NAMESPACES
    # Writes that move no version counter: neither an in-place op nor one with `out=`.
    unmoved = bool(writes) and not name.endswith("_")
    hidden, flag = UNDECLARED_WRITES.get(name, ((), None))
    relabels = name in _RELABELS or (name == "aten::view" and schema.overload_name == "dtype")
    views = not mutable and (_only_views(schema) or name in _ALIASES_UNDECLARED)
    return Traits(
        passthrough=views and not relabels and not custom,
        opaque=bool(custom and refusal(func))
        or unmoved
        or name in (*_REWIRES, "aten::_cudnn_init_dropout_state"),
        writes=writes,
        keyword_writes=keyword_writes,
        random=torch.Tag.nondeterministic_seeded in func.tags,
        blank=name in _BLANK and not mutable,
        hidden_writes=hidden,
        hidden_flag=flag,
        overwrites=bool(keyword_writes) or name in _OVERWRITES,
        relabels=relabels,
        unversioned=mutable and name.startswith("aten::_foreach_"),
        copies=name in ("aten::_to_copy", "aten::copy_"),
        needs_statistics="gather_stats" in name,
        declares_writes=declared and name not in _REWIRES,
        changes_argument=_CHANGES_ARGUMENT.get(name),
        name=name,
        custom=custom,
    )


def _writes(schema: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions and names of the arguments that the schema says are written."""
    written = [
        (i, a)
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]
    positions = tuple(i for i, a in written if not a.kwarg_only)
    return positions, tuple(a.name for _, a in written if a.kwarg_only)


def _only_views(schema: Any) -> bool:
    """True when every tensor that the op returns aliases an argument, or none is returned."""
    return all(r.alias_info is not None or "Tensor" not in str(r.type) for r in schema.returns)


class Random(Protocol):
    """What random ops draw from."""

    def get_state(self) -> torch.Tensor:
        """Return the state from which the next op draws."""

    def set_state(self, state: torch.Tensor, /) -> Any:
        """Let the next op draw from this state."""


def may_be_undefined(func: Any, result: torch.Tensor) -> bool:
    """Whether a result of an op may be uninitialized, so that its bits mean nothing."""
    if result.is_floating_point() or result.is_complex():
        return False
    return any(part in func._schema.name for part in _LEAVES_UNDEFINED)


def generator_of(device: torch.device) -> Random:
    """Return the default generator that random ops on this device draw from."""
    if device.type == "cpu":
        return torch.default_generator
    module: Any = torch.get_device_module(device)
    if not hasattr(module, "default_generators"):
        return _StateOf(module)
    index = device.index if device.index is not None else module.current_device()
    generator: torch.Generator = module.default_generators[index]
    return generator


class _StateOf:
    """The random state of a device whose generators torch does not expose (MPS)."""

    def __init__(self, module: Any) -> None:
        self.get_state, self.set_state = module.get_rng_state, module.set_rng_state
