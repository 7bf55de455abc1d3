"""Runs functions in two processes that form a gloo group; nothing is left running."""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2
_LIMIT_S = 120
"""A hang fails the test; the slowest machine needs a small part of this."""


class Ranks:
    """Two processes that wait for work."""

    def __init__(self, processes: list[Any], work: list[Any], results: Any) -> None:
        self._processes, self._work, self._results = processes, work, results

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Call `work(rank)` in each process and return the results by rank."""
        for queue_of_rank in self._work:
            queue_of_rank.put(work)
        found = dict(self._next() for _ in range(RANKS))
        return [found[rank] for rank in range(RANKS)]

    def _next(self) -> Any:
        stop = time.monotonic() + _LIMIT_S
        while time.monotonic() < stop:
            try:
                rank, result = self._results.get(timeout=1)
            except queue.Empty:
                codes = [process.exitcode for process in self._processes]
                assert codes == [None] * RANKS, f"a rank died: exit codes {codes}"
                continue
            assert not isinstance(result, str), f"rank {rank} failed:\n{result}"
            return rank, result
        raise AssertionError("no answer: the ranks wait for each other")


@contextmanager
def two_ranks(folder: Path) -> Iterator[Ranks]:
    """Start the processes, which meet in a file in the folder; end them however it ends."""
    context = mp.get_context("spawn")
    results, work = context.Queue(), [context.Queue() for _ in range(RANKS)]
    processes = [
        context.Process(target=_serve, args=(rank, work[rank], str(folder / "store"), results))
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    try:
        yield Ranks(processes, work, results)
        for queue_of_rank in work:
            queue_of_rank.put(None)
    finally:
        for process in processes:
            process.join(5)
            process.kill()


def _serve(rank: int, asked: Any, store: str, results: Any) -> None:
    import torch

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=_LIMIT_S),
    )
    while (work := asked.get()) is not None:
        try:
            results.put((rank, work(rank)))
        except BaseException:
            results.put((rank, traceback.format_exc()))
            raise
    dist.barrier()
    dist.destroy_process_group()
