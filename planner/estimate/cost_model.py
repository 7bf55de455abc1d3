"""How long an op would take on a device: the roofline model, op by op.

Williams, Waterman, Patterson, "Roofline: an insightful visual performance model" (2009): an op
takes as long as the scarcest resource needs for its share, here arithmetic, memory traffic,
transcendental functions and random numbers, and never less than a launch. Used where times cannot
be measured; they rank what to recompute, and are not a benchmark.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from planner.estimate.devices import DeviceSpec, device_spec, known_devices
from planner.replay.traits import traits_of
from planner.replay.trees import tensors_in

# How many exponentials one result costs, by op; read off the formulas of the functions.
_TRANSCENDENTAL = {
    "exp": 1, "exp_": 1, "expm1": 1, "log": 1, "log1p": 1, "log_": 1, "tanh": 1, "sigmoid": 1,
    "sigmoid_": 1, "erf": 1, "sin": 1, "cos": 1, "pow": 2, "softplus": 2, "logsumexp": 1,
    "gelu": 1, "gelu_backward": 2, "silu": 1, "silu_": 1, "silu_backward": 1, "mish": 2,
    "elu": 1, "_softmax": 1, "_safe_softmax": 1, "_log_softmax": 1, "_log_softmax_backward_data": 1,
}  # fmt: skip
_PRODUCTS = (1, 2)  # exponents whose power kernels multiply
_NORMS = (
    "native_layer_norm", "native_batch_norm", "_native_batch_norm_legit", "native_group_norm",
    "_fused_rms_norm", "cudnn_batch_norm", "var_mean", "mean", "sum", "var", "_softmax_backward",
    "embedding_dense_backward",
)  # fmt: skip


class CostModel:
    """Times ops on one device."""

    def __init__(self, spec: DeviceSpec) -> None:
        self.spec = spec

    def time_ns(self, func: object, arguments: object, out: object, flops: int) -> int:
        """Return the time of one op in nanoseconds.

        Args:
            func: the op overload.
            arguments: its arguments, with tensors that need no content.
            out: its result.
            flops: floating-point operations of matrix products in it.
        """
        name = func._overloadpacket.__name__ if isinstance(func, torch._ops.OpOverload) else ""
        made = list(tensors_in(out))
        traits = traits_of(func)
        if traits.blank:
            return self.spec.overhead_ns
        moved = sum(_bytes(t) for t in (*tensors_in(arguments), *made))
        elements = max((t.numel() for t in made), default=0)
        spec = self.spec
        rate = spec.norm_bytes_per_s if name.startswith(_NORMS) else spec.bandwidth_bytes_per_s
        seconds = moved / (rate * spec.bandwidth_share)
        if flops:
            seconds = max(seconds, flops / self._flops_per_s(name, made))
        else:
            seconds = max(
                seconds,
                _transcendentals(name, arguments) * elements / spec.transcendental_per_s,
                elements / spec.random_per_s if traits.random else 0.0,
            )
        return spec.overhead_ns + int(seconds * 1e9)

    def _flops_per_s(self, name: str, made: list[torch.Tensor]) -> float:
        rates = self.spec.flops_per_s
        dtype = str(made[0].dtype).removeprefix("torch.") if made else "float32"
        rate = rates.get(dtype, rates.get("float32", min(rates.values())))
        share = self.spec.matmul_share
        return rate * share * (self.spec.attention_share if "attention" in name else 1.0)


def cost_model_for(device: torch.device) -> CostModel:
    """Return the cost model of the device at hand, or of one like it."""
    return CostModel(_spec(device))


def device_name(device: torch.device) -> str:
    """Return what a device calls itself, or its kind."""
    module = torch.get_device_module(device)
    name: str = getattr(module, "get_device_name", lambda device: device.type)(device)
    return name


def _spec(device: torch.device) -> DeviceSpec:
    """The row of the table."""
    if device.type in ("cpu", "meta"):
        return device_spec("cpu")
    name = device_name(device).lower().replace(" ", "")
    known = known_devices().values()
    return next((s for s in known if re.search(rf"{s.name}(?!\d)", name)), device_spec("a100"))


def _transcendentals(name: str, arguments: Any) -> int:
    """How many exponentials one element costs; a small power is a product."""
    args = arguments[0]
    if (
        name == "pow"
        and len(args) == 2
        and isinstance(args[1], (int, float))
        and args[1] in _PRODUCTS
    ):
        return 0
    return _TRANSCENDENTAL.get(name, 0)


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes that a kernel touches of a tensor: an expanded one shows the same bytes many times."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())
