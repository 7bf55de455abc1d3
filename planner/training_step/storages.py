"""From a tensor to the storages that hold its bytes; used by the meters and the snapshot.

A storage is the unit of memory: views share one, and it dies when the last of them dies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_COMPRESSED_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED_COLUMNS = (torch.sparse_csc, torch.sparse_bsc)


def storages_of(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """Yield every storage behind a tensor: one for a strided tensor, those of the parts otherwise.

    Sparse tensors and wrapper subclasses yield the storages of their parts. Tensors whose memory
    Python cannot reach (mkldnn blocks, tensors of a functorch transform) yield nothing.
    """
    if type(tensor) in _PLAIN and tensor.layout is torch.strided:
        storage = _storage(tensor)
        if storage is not None:
            yield storage
        return
    for part in _parts(tensor):
        if part is not tensor:
            yield from storages_of(part)
        elif (storage := _storage(tensor)) is not None:
            yield storage


def lies_on(tensor: torch.Tensor, device: torch.device | None) -> bool:
    """Return whether a tensor's memory is a device's; with None, always.

    Of a fake, only the tensor tells where it pretends to be, and not its storage.
    """
    return device is None or tensor.device == device


def tensors_in(values: Iterable[object]) -> Iterator[torch.Tensor]:
    """Yield the tensors in an op's arguments or results, through lists, tuples and dicts."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def _storage(tensor: torch.Tensor) -> torch.UntypedStorage | None:
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return None


def _parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return tuple(getattr(tensor, name) for name in names)
    try:
        return _layout_parts(tensor)
    except (NotImplementedError, RuntimeError):
        return ()


def _layout_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.strided:
        return (tensor,)
    # Under a dispatch mode these accessors are ops too; they must not be counted as the step's.
    with torch._C._DisableTorchDispatch():
        if tensor.layout is torch.sparse_coo:
            return tensor._indices(), tensor._values()
        if tensor.layout in _COMPRESSED_ROWS:
            return tensor.crow_indices(), tensor.col_indices(), tensor.values()
        if tensor.layout in _COMPRESSED_COLUMNS:
            return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    return ()
