"""The plan for a step of which nothing is known yet: every block is given up.

No sizes are known, so the module tree has to do: the elements of lists of like modules are blocks
(the layers of a transformer, the residual blocks of a stage), and layers between them are taken
together in groups of about the square root of their number, as Chen, Xu, Zhang, Guestrin, "Training
deep nets with sublinear memory cost" (2016) do for a chain. A segment whose end never comes, as
modules need not be called in the order in which they were registered, is closed by the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import isqrt

from torch import nn

from planner.applier.manual import manual_plan
from planner.applier.runtime import EVERY_CALL
from planner.documents import Boundary, Plan, Segment

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


def recompute_all(model: nn.Module) -> Plan:
    """Return the plan that gives up everything inside each block of a model."""
    spans = list(block_spans(model)) or [("", "")]
    segments = tuple(
        Segment(Boundary(first, EVERY_CALL, "enter"), Boundary(last, EVERY_CALL, "exit"))
        for first, last in spans
    )
    return replace(manual_plan(model, []), segments=segments)


def block_spans(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the first and the last unit of each block.

    >>> layers = [nn.TransformerEncoderLayer(8, 2, 8) for _ in range(2)]
    >>> list(block_spans(nn.ModuleDict({"body": nn.Sequential(*layers), "head": nn.Linear(8, 2)})))
    [('body.0', 'body.0'), ('body.1', 'body.1')]
    >>> list(block_spans(nn.Sequential(*[nn.Linear(2, 2) for _ in range(6)])))
    [('0', '1'), ('2', '3'), ('4', '5')]
    """
    yield from _spans(model, "")


def _spans(module: nn.Module, prefix: str) -> Iterator[tuple[str, str]]:
    layers: list[str] = []  # in a row, without parts of their own
    for name, child in module.named_children():
        if not _has_parts(child):
            layers.append(prefix + name)
            continue
        yield from _groups(layers)
        layers = []
        if isinstance(child, _LISTS) or any(_repeats(part) for part in child.modules()):
            yield from _spans(child, f"{prefix}{name}.")
        else:
            yield prefix + name, prefix + name
    yield from _groups(layers)


def _groups(layers: list[str]) -> Iterator[tuple[str, str]]:
    """A layer alone keeps what it needs to run again, so there is nothing to gain from one."""
    size = isqrt(len(layers))
    for start in range(0, len(layers), max(size, 1)):
        group = layers[start : start + size]
        if len(layers) > 1:
            yield group[0], group[-1]


def _has_parts(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _repeats(module: nn.Module) -> bool:
    """Whether it is a list of modules that are alike and made of several."""
    if not isinstance(module, _LISTS):
        return False
    kinds = Counter(type(child) for child in module.children() if _has_parts(child))
    return max(kinds.values(), default=0) > 1
