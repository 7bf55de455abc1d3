"""Runs a function in two processes that form a gloo group; nothing is left running."""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
_LIMIT_S = 120
"""A hang fails the test; the slowest machine needs a small part of this."""


def on_two_ranks(work: Callable[[int], Any], folder: Path) -> list[Any]:
    """Call `work(rank)` in each process and return the results by rank."""
    context = mp.get_context("spawn")
    results = context.Queue()
    args = (work, str(folder / "store"), results)
    processes = [context.Process(target=_run, args=(rank, *args)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    try:
        found = dict(_next(results, processes) for _ in range(RANKS))
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return [found[rank] for rank in range(RANKS)]


def _next(results: Any, processes: list[Any]) -> Any:
    stop = time.monotonic() + _LIMIT_S
    while time.monotonic() < stop:
        try:
            rank, result = results.get(timeout=1)
        except queue.Empty:
            codes = [process.exitcode for process in processes]
            assert not any(codes), f"a rank died: exit codes {codes}"
            continue
        assert not isinstance(result, str), f"rank {rank} failed:\n{result}"
        return rank, result
    raise AssertionError("no answer: the ranks wait for each other")


def _run(rank: int, work: Callable[[int], Any], store: str, results: Any) -> None:
    import torch

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=_LIMIT_S),
    )
    try:
        results.put((rank, work(rank)))
    except BaseException:
        results.put((rank, traceback.format_exc()))
        raise
    dist.barrier()
    dist.destroy_process_group()
