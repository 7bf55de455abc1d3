"""Measures a device in a few seconds, as a row for the cost model.

Each rate is the best of a few runs of one kernel that is bound by it, at sizes that small training
steps have. Used by `planner calibrate`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from planner.estimate.devices import DeviceSpec
from planner.profiler.timing import synchronize

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_LEAST_RUNS, _SECONDS = 3, 0.15
_TINY_RUNS = 200


class _Sizes(NamedTuple):
    side: int  # of the matrices
    elements: int  # of the vectors: beyond a core's own caches
    tokens: int


_CPU, _ACCELERATOR = _Sizes(384, 2**18, 128), _Sizes(4096, 2**26, 2048)


def calibrate(device: torch.device | str | None = None, name: str = "") -> DeviceSpec:
    """Return the rates of a device, by default the accelerator's if there is one.

    >>> calibrate("cpu").kind
    'cpu'
    """
    where = torch.device(device or torch.accelerator.current_accelerator(True) or "cpu")
    with torch.no_grad():
        return _measured(where, name)


def _sizes(device: torch.device) -> _Sizes:
    return _CPU if device.type == "cpu" else _ACCELERATOR


def _measured(device: torch.device, name: str) -> DeviceSpec:
    n = _sizes(device).elements
    x, y = (torch.rand(n, device=device) for _ in range(2))
    rows = x.view(-1, 256)
    seconds = {
        "add": best_s(lambda: torch.add(x, y), device),
        "norm": best_s(lambda: torch.nn.functional.layer_norm(rows, (256,)), device),
        "tanh": best_s(lambda: torch.tanh(x), device),
        "random": best_s(lambda: torch.empty_like(x).bernoulli_(0.9), device),
    }
    size = x.element_size()
    rates = {dtype: matmul_flops_per_s(device, kind) for dtype, kind in _DTYPES.items()}
    return DeviceSpec(
        name=name or device.type,
        kind=device.type,
        flops_per_s=rates,
        bandwidth_bytes_per_s=round(3 * n * size / seconds["add"]),
        norm_bytes_per_s=round(2 * n * size / seconds["norm"]),
        transcendental_per_s=round(n / seconds["tanh"]),
        random_per_s=round(n / seconds["random"]),
        overhead_ns=overhead_ns(device),
        attention_share=_attention_share(device, rates["float32"]),
        source=f"measured by planner calibrate, torch {torch.__version__}, "
        f"{platform.machine()}, {torch.get_num_threads()} threads",
    )


def best_s(run: Callable[[], object], device: torch.device) -> float:
    """Return the least seconds of one run."""
    run()
    best, end = float("inf"), time.perf_counter() + _SECONDS
    runs = 0
    while runs < _LEAST_RUNS or time.perf_counter() < end:
        synchronize(device)
        start = time.perf_counter()
        run()
        synchronize(device)
        best, runs = min(best, time.perf_counter() - start), runs + 1
    return best


def matmul_flops_per_s(device: torch.device, dtype: torch.dtype) -> float:
    """Return the rate of a square matrix product in operations a second."""
    side = _sizes(device).side
    a, b = (torch.rand(side, side, device=device).to(dtype) for _ in range(2))
    return round(2 * side**3 / best_s(lambda: a @ b, device))


def overhead_ns(device: torch.device) -> int:
    """Return the time of an op on one element, in nanoseconds."""
    x = torch.rand(1, device=device)
    add: Callable[[torch.Tensor, torch.Tensor], object] = torch.ops.aten.add.Tensor

    def many() -> None:
        for _ in range(_TINY_RUNS):
            add(x, x)

    return int(best_s(many, device) / _TINY_RUNS * 1e9)


def _attention_share(device: torch.device, flops_per_s: float) -> float:
    """Share of the matrix rate that fused attention reaches."""
    tokens = _sizes(device).tokens
    q = torch.rand(2, 8, tokens, 64, device=device)
    attention = torch.nn.functional.scaled_dot_product_attention
    seconds = best_s(lambda: attention(q, q, q), device)
    flops = 4 * 2 * 8 * tokens**2 * 64
    return min(1.0, round(flops / seconds / flops_per_s, 3))
