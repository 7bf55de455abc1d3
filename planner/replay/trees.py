"""Argument trees: how an op's arguments are taken apart for its record, and put together again.

A recorded tree mirrors the op's own arguments: `Arg` for a tensor, `Many` for a list that holds
tensors, `Statistic` for a statistic that the kernel updates, anything else as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from planner.replay.flow import PLAIN, Arg, Key


class Many(tuple[Any, ...]):
    """A list argument with tensors inside; `kind` rebuilds the original container."""

    kind: type = list


class ManyTuple(Many):
    """The same for a tuple."""

    kind = tuple


class Statistic:
    """A statistic that the kernel would update: a replay passes None, or zeros in its place.

    Args:
        like: the statistic, for kernels that take its dtype for the one to compute in.
    """

    __slots__ = ("_make",)

    def __init__(self, like: torch.Tensor | None = None) -> None:
        self._make: Callable[[], torch.Tensor] | None = None
        if like is not None:
            size, dtype, device = like.size(), like.dtype, like.device
            self._make = lambda: torch.zeros(size, dtype=dtype, device=device)

    def substitute(self) -> torch.Tensor | None:
        """Return what a replay passes."""
        return None if self._make is None else self._make()


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of an op's arguments or results, in order."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item)


def record_tree(tree: Any, read: Callable[[torch.Tensor], Arg], reads: dict[Key, None]) -> Any:
    """Return the recorded form of one argument, adding what it reads to `reads`."""
    if isinstance(tree, torch.Tensor):
        arg = read(tree)
        reads[arg.key] = None
        return arg
    if isinstance(tree, (list, tuple)) and any(isinstance(x, torch.Tensor) for x in tree):
        kind = ManyTuple if isinstance(tree, tuple) else Many
        return kind(record_tree(x, read, reads) for x in tree)
    return list(tree) if isinstance(tree, list) else tree


def build_tree(tree: Any, tensor: Callable[[Arg], Any]) -> Any:
    """Inverse of `record_tree`: put tensors in place of `Arg`s."""
    if type(tree) is Arg:
        return tensor(tree)
    if isinstance(tree, Many):
        return tree.kind(build_tree(x, tensor) for x in tree)
    return tree.substitute() if type(tree) is Statistic else tree


def args_in(trees: Iterable[Any]) -> Iterator[Arg]:
    """Yield the `Arg`s of recorded trees, in order."""
    for tree in trees:
        if type(tree) is Arg:
            yield tree
        elif isinstance(tree, Many):
            yield from args_in(tree)


def on_tape(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a storage and a version to follow: plain, strided, no inference."""
    return (
        type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_inference()
    )


def all_on_tape(args: Any, kwargs: Any) -> bool:
    """Whether all tensors among an op's arguments are `on_tape`."""
    return all(on_tape(t) for t in tensors_in((args, kwargs)))
