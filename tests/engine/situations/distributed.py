"""Data-parallel and sharded training, with a process group of one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from .parts import Batch, Chain, FeedForward, Tower, noise, one_tensor
from .situation import Setup, situation


def _start_group() -> Callable[[], None]:
    """Start a gloo group of one process over a file; returns what takes it down again."""
    folder = tempfile.mkdtemp(prefix="situation")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)

    def stop() -> None:
        dist.destroy_process_group()
        shutil.rmtree(folder, ignore_errors=True)

    return stop


class TwiceAround(Chain):
    """Runs its blocks twice, then a detour that only every other step takes."""

    def __init__(self) -> None:
        super().__init__(FeedForward(8) for _ in range(2))
        self.detour = FeedForward(8)

    def forward(self, x: Tensor, takes_detour: bool) -> Tensor:
        x = super().forward(super().forward(x))
        return self.detour(x) if takes_detour else x


def _every_other_step(index: int) -> Batch:
    return (noise(index, 4, 8), index % 2 == 0), {}


@situation("pytorch/pytorch#24005", needs="distributed")
def data_parallel_with_unused_branch() -> Setup:
    """Blocks that are called twice, or not at all, must report each parameter ready once."""
    return Setup(
        TwiceAround(),
        _every_other_step,
        steps=3,
        wrap=lambda model: nn.parallel.DistributedDataParallel(model, find_unused_parameters=True),
        cleanup=_start_group(),
    )


def _shard_blocks(model: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@situation("Lightning-AI/pytorch-lightning#19267", may_refuse=True, needs="distributed")
def sharded_after_applying() -> Setup:
    """Parameters are gathered around each block's forward and dropped behind it, so what a
    block read is no longer there in backward (also huggingface/transformers#34928).
    """
    tower = Tower(8, 3, dropout=0.1)
    return Setup(tower, one_tensor(4, 8), wrap=_shard_blocks, cleanup=_start_group())
