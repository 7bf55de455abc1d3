"""The plan for a step of which nothing is known yet: every block is recomputed.

No sizes are known, so the module tree has to do: the elements of lists of like modules are blocks
(the layers of a transformer, the residual blocks of a stage), and layers between them form a row.
A row is recomputed in groups of about the square root of its number of layers, as Chen, Xu, Zhang,
Guestrin, "Training deep nets with sublinear memory cost" (2016) do for a chain. A segment whose end
is never reached, as modules need not be called in the order in which they were registered, is
closed by the next one.

A GROUP BEGINS AT WEIGHTS    a segment holds its input until it is replayed. A layer with weights to
                  train saves its input anyway, so a group that begins there holds nothing beyond
                  plain. One that began at an activation would hold what plain frees, and drop
                  no more than as much: the step could peak above plain.
SMALL DRAWS STAY  a replayed random op needs the generator state that it drew from. Where that is
                  larger than its mask, the mask stays.
RECURRENT LAYERS STAY  the cells of torch's recurrent layers write into parts of memory of which
                  autograd has saved other parts. A replay copies the whole before each such write
                  and so needs more than plain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import isqrt

from torch import nn

from planner.applier.manual import manual_plan
from planner.applier.runtime import EVERY_CALL
from planner.documents import Boundary, Plan, Segment
from planner.replay.held_states import STATE_BYTES

LEAST_DRAWN_BYTES = 2 * STATE_BYTES
"""Random ops that draw less are not replayed: a state and the copy of it in passing take more."""

_LISTS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)


def recompute_all(model: nn.Module) -> Plan:
    """Return the plan that recomputes everything inside each block of a model."""
    segments = tuple(
        Segment(Boundary(first, EVERY_CALL, "enter"), Boundary(last, EVERY_CALL, "exit"))
        for first, last in block_spans(model)
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
    row: list[tuple[str, nn.Module]] = []  # layers without parts of their own
    for name, child in module.named_children():
        if _recurs(child):
            yield from _groups(row)
            row = []
            continue
        layers = _layers(child, prefix + name)
        row += layers
        if layers:
            continue
        yield from _groups(row)
        row = []
        parts = list(child.modules())
        if isinstance(child, _LISTS) or any(map(_repeats, parts)) or any(map(_recurs, parts)):
            yield from _spans(child, f"{prefix}{name}.")
        elif any(True for _ in child.parameters()):
            yield prefix + name, prefix + name
    yield from _groups(row)


def _layers(module: nn.Module, name: str) -> list[tuple[str, nn.Module]]:
    """The module if it has no parts; the parts of a `Sequential` of such; else nothing."""
    if not _has_parts(module):
        return [(name, module)]
    parts = list(module.named_children())
    whole = any(_has_parts(part) or _recurs(part) for _, part in parts)
    if whole or not isinstance(module, nn.Sequential):
        return []
    return [(f"{name}.{part}", layer) for part, layer in parts]


def _groups(row: list[tuple[str, nn.Module]]) -> Iterator[tuple[str, str]]:
    """Groups of a row, each from one layer with weights to before another.

    A layer alone keeps what it needs to run again, so there is nothing to gain from one.
    """
    starts = [i for i, (_, layer) in enumerate(row) if _trains(layer)]
    size = max(2, isqrt(len(starts)))
    borders = [*starts[::size], len(row)]
    for first, stop in pairwise(borders):
        if stop - first > 1:
            yield row[first][0], row[stop - 1][0]


def _trains(layer: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in layer.parameters(recurse=False))


def _recurs(layer: nn.Module) -> bool:
    return isinstance(layer, _RECURRENT)


def _has_parts(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _repeats(module: nn.Module) -> bool:
    """Whether it is a list of modules that are alike and made of several."""
    if not isinstance(module, _LISTS):
        return False
    kinds = Counter(type(child) for child in module.children() if _has_parts(child))
    return max(kinds.values(), default=0) > 1
