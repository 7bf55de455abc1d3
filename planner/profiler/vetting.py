"""Finds out which ops outside aten may be replayed: runs each of their calls twice in one step.

A call passes when it leaves its arguments and all other memory as they were, draws at most from the
default generator of the device on which its results are, and gives the same bits when it runs again
from the same state of that generator, in the way of a replay. One call that fails speaks for its
op. The step needs no more memory than without: checksums are compared, and what the first run of a
call made is freed before the second.

Done in the warm-up of a profile, and in the first forward of a capped one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from typing_extensions import override

from planner.documents import CustomOp
from planner.profiler.op_insides import Insides
from planner.replay.custom_ops import is_custom, is_vouched, refusal
from planner.replay.digest import digest
from planner.replay.surroundings import Surroundings, run_below
from planner.replay.traits import generator_of
from planner.replay.transparent_mode import TransparentMode
from planner.replay.trees import all_on_tape, tensors_in

SAME_BITS = "gives the same bits when it runs again"
VOUCHED = "was registered as replayable"
OTHER_BITS = "gives other bits when it runs again"
WRITES_UNDECLARED = "writes an argument, and its schema does not say so"
RETURNS_ARGUMENT = "returns an argument, or a view of one, and its schema does not say so"
NOT_VETTED = "was not run to find out whether it repeats itself"
UNWATCHABLE = "does not run under a dispatch mode"
DRAWS_ELSEWHERE = "draws from a generator of another device than that of its results"


class Vetting(TransparentMode):
    """Vets the ops outside aten that a step's forward calls."""

    def __init__(self) -> None:
        super().__init__()
        self._faults: dict[str, str] = {}  # by op; "" where all calls passed

    @property
    def found(self) -> tuple[CustomOp, ...]:
        """The ops that were called, by name, and whether they may be replayed."""
        return tuple(
            CustomOp(name, not fault, fault or (VOUCHED if is_vouched(name) else SAME_BITS))
            for name, fault in sorted(self._faults.items())
        )

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one op, twice where that shows whether it repeats itself."""
        kwargs = kwargs or {}
        if not is_custom(func) or _in_backward():
            return func(*args, **kwargs)
        name = func._schema.name
        fault = self._faults[name] = self._faults.get(name) or refusal(func)
        if fault or types or not all_on_tape(args, kwargs):
            return func(*args, **kwargs)
        self._faults[name], out = _vet(func, args, kwargs)
        return out


def unvetted(ops: Iterable[torch._ops.OpOverload]) -> tuple[CustomOp, ...]:
    """Return what is known of ops outside aten that were not run: what the user registered."""
    return tuple(
        CustomOp(name, False, reason or NOT_VETTED)
        if (reason := refusal(op)) or not is_vouched(name)
        else CustomOp(name, True, VOUCHED)
        for name, op in sorted((op._schema.name, op) for op in ops)
    )


def _vet(func: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[str, Any]:
    """Return what speaks against replays of a call, and what the call returns."""
    given = list(tensors_in((args, kwargs)))
    before = [_memory(t) for t in given]
    states = _generator_states(given)
    insides = Insides()
    try:
        out = insides.run(func, args, kwargs)
    except Exception:  # if the op itself is at fault, it raises again
        return UNWATCHABLE, func(*args, **kwargs)
    made = list(tensors_in(out))
    if [_memory(t) for t in given] != before:
        return WRITES_UNDECLARED, out
    if {_address(t) for t in given} & {_address(t) for t in made}:
        return RETURNS_ARGUMENT, out
    moved = [device for device, state in states.items() if not _is_at(device, state)]
    soft = insides.found or (DRAWS_ELSEWHERE if moved and moved != _devices(made[:1]) else "")
    if soft and not is_vouched(func._schema.name):
        return soft, out
    first = _bits(made)
    del out, made  # before the second run, which makes it all again
    for device in moved:
        generator_of(device).set_state(states[device])
    out = run_below(Surroundings.here(), lambda: func(*args, **kwargs))
    return ("" if _bits(tensors_in(out)) == first else OTHER_BITS), out


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _memory(tensor: torch.Tensor) -> int:
    """A checksum of the whole storage behind a tensor."""
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return digest(whole.set_(tensor.untyped_storage()))


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bits(tensors: Iterable[torch.Tensor]) -> list[object]:
    return [(t.size(), t.stride(), t.dtype, t.device, digest(t)) for t in tensors]


def _devices(tensors: Iterable[torch.Tensor]) -> list[torch.device]:
    return list(dict.fromkeys(t.device for t in tensors))


def _generator_states(given: list[torch.Tensor]) -> dict[torch.device, torch.Tensor]:
    """The states of the default generators that a kernel may draw from."""
    devices = dict.fromkeys((torch.device("cpu"), *_devices(given)))
    return {d: generator_of(d).get_state() for d in devices if d.type != "meta"}


def _is_at(device: torch.device, state: torch.Tensor) -> bool:
    return torch.equal(generator_of(device).get_state(), state)
