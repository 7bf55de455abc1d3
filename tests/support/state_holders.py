"""Models whose training depends on state in all kinds of places beside the parameters."""

from __future__ import annotations

import contextvars
import functools
import io
import itertools
import random
import threading
import weakref
from collections import Counter, UserDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

Draw = Callable[[], float]
"""Gives the next of the numbers that a model's output is scaled with."""

Parts = dict[str, Any]
"""What a `planner.plan` of the model is made with, besides the model and the budget."""


def x() -> torch.Tensor:
    """Return the input of all the models."""
    return torch.linspace(-1, 1, 128 * 16).view(128, 16)


class Scaled(nn.Module):
    """Two blocks, the output scaled by what `draw` gives in each forward."""

    def __init__(self, draw: Draw = lambda: 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = (nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(2))
        self.blocks = nn.Sequential(*blocks)
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.blocks(x) * self.draw()
        return found


def losses(model: nn.Module, steps: int = 3) -> list[float]:
    """Train a model and return the loss of each step; its own hooks may update it besides."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x()).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


# -- iterators ------------------------------------------------------------------------------------


def numbers() -> list[float]:
    """Return numbers of which no two that are near are equal."""
    return [1 + (7 * i % 11) / 10 for i in range(200)]


ITERATORS: dict[str, Callable[[], Iterator[Any]]] = {
    "list": lambda: iter(numbers()),
    "tuple": lambda: iter(tuple(numbers())),
    "reversed": lambda: reversed(numbers()),
    "range": lambda: iter(range(1, 100)),
    "dict": lambda: iter(dict(enumerate(numbers())).values()),
    "count": lambda: itertools.count(1),
    "cycle": lambda: itertools.cycle([1, 2, 3, 5, 8, 13]),
    "chain": lambda: itertools.chain([1, 2, 3], numbers()),
    "islice": lambda: itertools.islice(itertools.count(1), 3, 90, 2),
    "accumulate": lambda: itertools.accumulate(numbers()),
    "map": lambda: map(
        lambda pair: pair[0] + pair[1], zip(numbers(), itertools.count(), strict=False)
    ),
    "enumerate": lambda: enumerate(numbers(), 1),
    "tee": lambda: itertools.tee(numbers())[0],
}


def drawing(iterator: Iterator[Any]) -> Draw:
    """Return a function that takes the next number from an iterator, or the sum of its tuple."""

    def draw() -> float:
        item = next(iterator)
        return float(sum(item)) if isinstance(item, tuple) else float(item)

    return draw


# -- other holders --------------------------------------------------------------------------------


class WithSlots:
    """Counts in a slot."""

    __slots__ = ("count", "log")

    def __init__(self) -> None:
        self.count, self.log = 0, deque([0.0], maxlen=3)

    def __call__(self) -> float:
        self.count += 1
        self.log.append(self.count / 10)
        return 1 + sum(self.log)


@dataclass
class Meter:
    """A metric: counts, sums up, and keeps what it saw."""

    total: torch.Tensor = field(default_factory=lambda: torch.zeros(()))
    seen: list[float] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def __call__(self) -> float:
        self.total += 0.1
        self.names["calls"] += 1
        self.seen.append(self.total.item())
        return 1 + self.total.item() + self.names["calls"] + len(self.seen)


class CountsInItsClass(Scaled):
    """Counts its forward passes in an attribute of the class."""

    passes = 0
    ids = itertools.count()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CountsInItsClass.passes += 1
        return super().forward(x) * (self.passes + next(self.ids))


passes = 0


def draw_from_global() -> float:
    """Count in a global of this module."""
    global passes  # noqa: PLW0603
    passes += 1
    return float(passes)


def counting() -> Draw:
    """Return a function that counts in its closure."""
    count = 0

    def draw() -> float:
        nonlocal count
        count += 1
        return 1.0 + count

    return draw


def with_default(seen: list[float] | None = None) -> Draw:
    """Return a function that keeps what it knows in a default argument."""

    def draw(memory: list[float] = [1.0]) -> float:  # noqa: B006
        memory.append(memory[-1] * 1.1)
        return memory[-1]

    return draw


def deep() -> Draw:
    """Return a function whose state is eight containers below it."""
    inner = [0]
    outer: Any = inner
    for _ in range(8):
        outer = {"in": [outer]}
    return functools.partial(_count_within, outer)


def _count_within(outer: Any) -> float:
    while isinstance(outer, dict):
        outer = outer["in"][0]
    outer[0] += 1
    return float(outer[0])


def thread_local() -> Draw:
    """Return a function that counts in the attributes of this thread."""
    own = threading.local()
    own.count = 0

    def draw() -> float:
        own.count += 1
        return float(own.count)

    return draw


def written_to(stream: io.StringIO) -> Draw:
    """Return a function that writes into memory and gives the length of the text."""
    return lambda: 1.0 + stream.write("a") + stream.tell()


def user_dict() -> Draw:
    """Return a function that counts in a `UserDict`."""
    held: UserDict[str, int] = UserDict(n=0)

    def draw() -> float:
        held["n"] += 1
        return float(held["n"])

    return draw


def buffer() -> Draw:
    """Return a function that counts in a bytearray and in an array of NumPy."""
    held, array = bytearray(1), np.zeros(1)

    def draw() -> float:
        held[0] += 1
        array[0] += 0.5
        return float(held[0] + array[0])

    return draw


def torch_generator() -> Draw:
    """Draw from a generator of torch."""
    generator = torch.Generator().manual_seed(1)
    return lambda: 1 + torch.rand((), generator=generator).item()


def context_variable() -> Draw:
    """Count in a context variable."""
    number = contextvars.ContextVar("number", default=1.0)

    def draw() -> float:
        number.set(number.get() + 1)
        return number.get()

    return draw


def sobol() -> Draw:
    """Draw from a sequence that torch keeps in tensors."""
    engine = torch.quasirandom.SobolEngine(1, scramble=True, seed=1)
    return lambda: engine.draw().item()


_kept_alive: list[Any] = []


def weakly_held() -> Draw:
    """Count in an object that is reached through a weak reference alone."""
    holder = Meter()
    _kept_alive.append(holder)
    found = weakref.ref(holder)

    def draw() -> float:
        held = found()
        assert held is not None
        return held()

    return draw


HOLDERS: dict[str, Callable[[], Draw]] = {
    "slots": WithSlots,
    "dataclass": Meter,
    "global": lambda: draw_from_global,
    "closure": counting,
    "default": with_default,
    "deep": deep,
    "thread local": thread_local,
    "stream": lambda: written_to(io.StringIO()),
    "user dict": user_dict,
    "buffers": buffer,
    "bound iterator": lambda: itertools.count(1).__next__,
    "partial": lambda: functools.partial(next, itertools.count(1)),
    "context variable": context_variable,
    "weak reference": weakly_held,
    "Sobol sequence": sobol,
    "torch.Generator": torch_generator,
    "random.Random": lambda: random.Random(1).random,
    "numpy.Generator": lambda: np.random.default_rng(1).random,
    "numpy.RandomState": lambda: np.random.RandomState(1).rand,
}


# -- what runs in backward, or beside the model ---------------------------------------------------


def optimizers_in_backward(model: nn.Module) -> None:
    """Update each parameter by an Adam of its own as soon as its gradient is there."""
    optimizers = {p: torch.optim.Adam([p], 1e-2) for p in model.parameters()}

    def update(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)


def optimizers_at_the_nodes(model: nn.Module) -> None:
    """The same from hooks on the nodes that add up the gradients, as wrappers do."""
    model.nodes = []
    for parameter in model.parameters():
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        optimizer = torch.optim.Adam([parameter], 1e-2)

        def update(*args: Any, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()

        node.register_hook(update)
        model.nodes.append(node)


def hidden_optimizer(model: nn.Module) -> None:
    """Update from an optimizer that only a compiled object refers to."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    step = functools.lru_cache(None)(lambda: optimizer)

    class Update:
        __slots__ = ()

        def __call__(self, *args: Any) -> None:
            _hidden[id(model)]().step()

    _hidden[id(model)] = step
    model.register_full_backward_hook(Update())


_hidden: dict[int, Any] = {}


def gradients_counted(model: nn.Module) -> None:
    """Scale every gradient by how many were seen, in hooks on tensors and on modules."""
    seen: list[int] = [0]

    def scale(gradient: torch.Tensor) -> torch.Tensor:
        seen[0] += 1
        return gradient * (1 + seen[0] / 10)

    def count(*args: Any) -> None:
        seen[0] += 1

    for parameter in model.parameters():
        parameter.register_hook(scale)
    model.register_forward_hook(count)


HOOKS: dict[str, Callable[[nn.Module], None]] = {
    "optimizers in backward": optimizers_in_backward,
    "optimizers at the nodes": optimizers_at_the_nodes,
    "hidden optimizer": hidden_optimizer,
    "counting hooks": gradients_counted,
}
