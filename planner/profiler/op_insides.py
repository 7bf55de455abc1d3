"""What a custom op's kernel does through the dispatcher: does it write memory that is not its own?

A kernel of Python or C++ that calls aten ops shows them to a dispatch mode. What it writes with its
own pointers is found by comparing its arguments (see `planner.profiler.vetting`).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch._higher_order_ops.effects import has_effects
from typing_extensions import override

from planner.replay.collectives import is_collective
from planner.replay.flow import pin
from planner.replay.record import written_tensors
from planner.replay.traits import traits_of
from planner.replay.transparent_mode import TransparentMode
from planner.replay.trees import tensors_in

WRITES_ELSEWHERE = "writes memory that it did not make"
COMMUNICATES = "communicates with other processes"
HAS_EFFECT = "calls an op with an ordered effect"

_free_weak = torch.UntypedStorage._free_weak_ref
_WRAPS = frozenset({"aten::lift_fresh"})
"""They return their argument, which is new (`torch.tensor`)."""


class Insides(TransparentMode):
    """Watches the ops that a kernel calls.

    Attributes:
        found: what speaks against a replay, in words; "" for nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found = ""
        self._own: set[int] = set()  # addresses of storages made inside

    def run(self, func: torch._ops.OpOverload, args: tuple[object, ...], kwargs: Any) -> Any:
        """Run an op's kernel with its insides watched; one without tensors is not watched."""
        tensor = next(iter(tensors_in((args, kwargs))), None)
        if tensor is None:
            return func(*args, **kwargs)
        key = getattr(torch._C.DispatchKey, torch._C._dispatch_key_for_device(tensor.device.type))
        with self:
            return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        self._look(func, args, kwargs)
        out = func(*args, **kwargs)
        given = {t.untyped_storage()._cdata for t in _plain(args, kwargs)}
        for tensor in _plain(out):
            address = tensor.untyped_storage()._cdata
            if (address not in given or _name(func) in _WRAPS) and address not in self._own:
                self._own.add(pin(tensor))  # PINNED IDENTITY
        return out

    @override
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        for address in self._own:
            _free_weak(address)
        self._own.clear()

    def _look(self, func: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if is_collective(func):
            self.found = self.found or COMMUNICATES
        elif has_effects(func):
            self.found = self.found or HAS_EFFECT
        elif any(
            t.untyped_storage()._cdata not in self._own
            for t in _plain(written_tensors(traits_of(func), args, kwargs))
        ):
            self.found = self.found or WRITES_ELSEWHERE


def _name(func: object) -> str:
    return str(getattr(getattr(func, "_schema", None), "name", ""))


def _plain(*trees: object) -> list[torch.Tensor]:
    return [t for t in tensors_in(trees) if t.layout is torch.strided and not t.is_nested]
