"""The tensors in a snapshot: geometry, gradients and the bytes of storages. Used by `state`.

Bytes are copied to host memory, so that an accelerator's peak is not raised by its own snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from planner.errors import StepError
from planner.training_step.storages import storages_of
from planner.units import MIB, format_bytes

# Up to this much of what a step hardly ever writes is copied all the same; beyond, only checked.
SPARE_COPY_BYTES = 256 * MIB


@contextmanager
def quietly() -> Iterator[None]:
    """Keep the snapshot's own work out of autograd, and out of the modes that count and record."""
    with (
        torch._C.DisableTorchFunction(),  # the outermost: entering `no_grad` is a function, too
        torch.inference_mode(False),
        torch.no_grad(),
        torch._C._DisableTorchDispatch(),
    ):
        yield


class TensorSnapshot:
    """Remembers tensors and puts them back, as the same objects.

    Fill it with `add`, then `take` it, both `quietly`. Of what is added with ``written=False``
    (parameters, when no optimizer runs) the smallest are copied. Of the rest only a checksum is
    kept, and `restore` refuses, naming it, if a step wrote it all the same.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, _Tensor] = {}
        self._contents: dict[int, _Content] = {}
        self._spare_bytes = 0  # of what the step is not expected to write

    def add(self, tensor: torch.Tensor, label: str, *, written: bool) -> None:
        """Remember a tensor and its gradient.

        Args:
            tensor: the tensor.
            label: how an error names it.
            written: whether the step is expected to write it.
        """
        storages = tuple(storages_of(tensor))
        for storage in storages:
            content = self._contents.setdefault(storage._cdata, _Content(storage, label))
            content.written |= written
        if id(tensor) in self._tensors:
            return
        gradient = tensor.grad if tensor.is_leaf else None
        self._tensors[id(tensor)] = _remember(tensor, gradient, storages)
        if gradient is not None:
            self.add(gradient, f"{label}.grad", written=True)

    def take(self) -> None:
        """Copy, or sum up, the bytes of everything added and not yet taken."""
        for content in sorted(self._contents.values(), key=lambda content: content.nbytes):
            if not content.written and not content.taken:
                self._spare_bytes += content.nbytes
            content.take(copy=content.written or self._spare_bytes <= SPARE_COPY_BYTES)

    def restore(self) -> None:
        """Put everything back.

        Raises:
            StepError: the step wrote a tensor of which there was only a checksum; everything else
                has been put back.
        """
        with quietly():
            for tensor in self._tensors.values():
                tensor.restore_geometry()
            lost = [content for content in self._contents.values() if not content.restore()]
            for tensor in self._tensors.values():
                tensor.restore_gradient()
        if lost:
            raise _overwritten(lost)


@dataclass(slots=True)
class _Tensor:
    tensor: torch.Tensor
    # An alias with the geometry of the time; None where the memory is not one strided storage.
    alias: torch.Tensor | None
    requires_grad: bool
    is_leaf: bool
    gradient: torch.Tensor | None
    hooks: tuple[dict[int, Any], dict[int, Any]]

    def restore_geometry(self) -> None:
        if self.alias is not None and not _same_place(self.tensor, self.alias):
            self.tensor.data = self.alias

    def restore_gradient(self) -> None:
        tensor = self.tensor
        for now, before in zip(_hooks(tensor), self.hooks, strict=True):
            if now != before:
                now.clear()
                now.update(before)
        if not self.is_leaf:
            return
        if not tensor.is_leaf and not tensor._is_view():
            tensor.detach_()  # written in place by something that requires a gradient
        if tensor.is_leaf:
            if tensor.requires_grad != self.requires_grad:
                tensor.requires_grad_(self.requires_grad)
            if tensor.grad is not self.gradient:
                tensor.grad = self.gradient


def _remember(
    tensor: torch.Tensor,
    gradient: torch.Tensor | None,
    storages: tuple[torch.UntypedStorage, ...],
) -> _Tensor:
    plain = tensor.layout is torch.strided and len(storages) == 1
    plain = plain and type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    alias = tensor.data if plain and not tensor.is_inference() else None
    one, other = _hooks(tensor)
    hooks = (dict(one), dict(other))
    return _Tensor(tensor, alias, tensor.requires_grad, tensor.is_leaf, gradient, hooks)


def _hooks(tensor: torch.Tensor) -> tuple[dict[int, Any], dict[int, Any]]:
    names = ("_backward_hooks", "_post_accumulate_grad_hooks")
    one, other = (getattr(tensor, name, None) for name in names)
    return one if one is not None else {}, other if other is not None else {}


def _same_place(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
        and one.untyped_storage()._cdata == other.untyped_storage()._cdata
    )


class _Content:
    """The bytes of one storage."""

    def __init__(self, storage: torch.UntypedStorage, label: str) -> None:
        self.storage = storage
        self.label = label
        self.nbytes = storage.nbytes()
        self.written = False
        self.taken = False
        self._copy: torch.Tensor | None = None
        self._checksum = 0

    def take(self, *, copy: bool) -> None:
        """Copy the bytes or sum them up; a sum taken before gives way to a copy that fits it."""
        if self._is_empty() or self._copy is not None or (self.taken and not copy):
            return
        if copy and not (self.taken and self._sum() != self._checksum):
            self._copy = self._bytes().to("cpu", copy=True)
        elif not self.taken:
            self._checksum = self._sum()
        self.taken = True

    def restore(self) -> bool:
        """Put the bytes back; False where they are lost."""
        if self._is_empty():
            return True
        if self.storage.nbytes() != self.nbytes:
            self.storage.resize_(self.nbytes)
        if self._copy is None:
            return self._sum() == self._checksum
        live = self._bytes()
        # Comparing on an accelerator would cost the transfer that it might save.
        if live.device.type != "cpu" or not torch.equal(live, self._copy):
            live.copy_(self._copy)
        return True

    def _is_empty(self) -> bool:
        return self.nbytes == 0 or self.storage.device.type == "meta"

    def _bytes(self) -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)

    def _sum(self) -> int:
        whole = self._bytes()
        words = whole[: self.nbytes // 8 * 8].view(torch.int64)
        return int(words.sum()) + int(whole[words.numel() * 8 :].sum())


def _overwritten(lost: list[_Content]) -> StepError:
    size = sum(content.nbytes for content in lost)
    names = ", ".join(content.label for content in lost[:8])
    return StepError(
        f"the step changed what only an optimizer should: {names}",
        f"{len(lost)} tensors of {format_bytes(size)} were not copied before and stay changed;"
        f" up to {format_bytes(SPARE_COPY_BYTES)} would have been",
        "the model's forward or loss writes its own parameters, or a hook writes large tensors",
        "pass step=fn, so that parameters are copied before the step and put back after",
    )
