"""The states from which a segment's random ops drew, and drawing from them again.

While a segment is open its states are Python bytes; at its close those that replays need (see
`held_states`) become tensors, and the others go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from planner.replay.exposure import plain_numpy
from planner.replay.held_states import held_states
from planner.replay.traits import Random

_SMALL_BYTES = 1024
"""States under this are kept for each op: an accelerator's (16 bytes) is a seed and an offset."""

Redraw = Callable[[], Any]


class _Drawn(NamedTuple):
    """A random op that ran, and the state that it left."""

    op: int
    state: bytes


class GeneratorStates:
    """The generator states of one run of a segment, by op number."""

    def __init__(self) -> None:
        self._states: dict[int, bytes | torch.Tensor] = {}
        self._previous: dict[int, int] = {}
        self._left: dict[int, _Drawn] = {}  # by generator
        self._users: dict[int, list[int]] = {}

    def __contains__(self, op: int) -> bool:
        return op in self._states

    def before(self, op: int, generator: Random) -> None:
        """A random op is about to run."""
        state = generator.get_state()
        if state.nbytes < _SMALL_BYTES:
            self._states[op] = state
            return
        now = self._states[op] = plain_numpy(state).tobytes()
        left = self._left.get(id(generator))
        if left is not None and left.state == now:
            self._previous[op] = left.op

    def adopt(self, states: dict[int, torch.Tensor]) -> None:
        """Take states over that were kept elsewhere, each for one op."""
        self._states.update(states)

    def drew(self, op: int, generator: Random) -> bool:
        """Return whether an op that has run drew: the generator is in another state now."""
        before, now = self._states[op], generator.get_state()
        if isinstance(before, bytes):
            return before != plain_numpy(now).tobytes()
        return not torch.equal(before, now)

    def forget(self, op: int) -> None:
        """The op drew nothing."""
        del self._states[op]
        self._previous.pop(op, None)

    def after(self, op: int, generator: Random) -> None:
        """It has run."""
        if isinstance(self._states[op], bytes):
            self._left[id(generator)] = _Drawn(op, plain_numpy(generator.get_state()).tobytes())

    def close(self, groups: Sequence[Sequence[int]]) -> None:
        """Keep what the replays of these groups of random ops need."""
        self._users = held_states(groups, self._previous)
        held = {op: self._states[op] for op in self._users}
        self._states = {op: _as_tensor(state) for op, state in held.items()}
        self._left.clear()

    def release(self, op: int, group: int) -> None:
        """A group does not draw again."""
        users = self._users.get(op)
        if users is not None and group in users:
            users.remove(group)
            if not users:
                del self._states[op], self._users[op]

    def replay(self, ops: Sequence[int]) -> DrawsAgain:
        """Begin to draw again in a group of these random ops."""
        return DrawsAgain(self._states, self._previous, frozenset(ops))


class DrawsAgain:
    """One replay of a group's random ops, in order."""

    def __init__(
        self,
        states: dict[int, bytes | torch.Tensor],
        previous: dict[int, int],
        ops: frozenset[int],
    ) -> None:
        self._states = states
        self._before = {op: previous[op] for op in ops if previous.get(op) in ops}
        self._continued = frozenset(self._before.values())
        self._left: dict[int, torch.Tensor] = {}

    def draw(self, op: int, generator: Random, run: Redraw) -> Any:
        """Run a random op on the state that it drew from; the generator stays as it is."""
        previous = self._before.get(op)
        state = self._left.pop(previous) if previous is not None else _as_tensor(self._states[op])
        with _drawing:
            now, new, put = _exchange(generator, state)
            try:
                put(new)
                out = run()
                if op in self._continued:
                    self._left[op] = generator.get_state()
                return out
            finally:
                put(now)


_drawing = threading.RLock()  # devices replay in threads of their own, and may share a generator


def _exchange(generator: Random, state: torch.Tensor) -> tuple[Any, Any, Callable[[Any], object]]:
    """Return a generator's state, the state to replay with, and the function that sets one.

    CUDA's is replaced by another generator state object and put back as it was: if a state were
    set on it, cuDNN would draw new seeds for the dropout of recurrent layers.
    """
    if isinstance(generator, torch.Generator) and generator.device.type == "cuda":
        other = generator.clone_state()
        other.set_state(state)
        return generator.graphsafe_get_state(), other, generator.graphsafe_set_state
    return generator.get_state(), state, generator.set_state


def _as_tensor(state: bytes | torch.Tensor) -> torch.Tensor:
    if isinstance(state, torch.Tensor):
        return state
    with torch._C._DisableTorchDispatch():
        return torch.frombuffer(bytearray(state), dtype=torch.uint8).clone()
