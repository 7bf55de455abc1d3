"""The kernels that torch picks on a CUDA device, for a fake step of a model that is not on one.

Without CUDA in the build no tensor can claim to be on a CUDA device and have gradients, so the
step's tensors claim to be on the CPU, and calls for which torch would pick another kernel on CUDA
are sent to that kernel here. Used by `planner.estimate.device_profile`.

ATTENTION   flash for half precision without a mask, memory-efficient otherwise, as torch's own
            choice does for head sizes up to 256 (`sdp_utils.cpp`); on the CPU it has one kernel.
            On compute capability 9.0 and 10.0 torch may prefer cuDNN's kernel in half precision,
            by its version of cuDNN and the head's size. A profile for such a device names flash,
            too: cuDNN's keeps as much without a mask, and with one a little less. Nor is the
            padding of heads to a multiple of 8 counted.
DROPOUT     `native_dropout` keeps a mask of one byte an element; the CPU keeps the scaled mask.
AUTOCAST    CUDA's list computes norms, softmax and losses in float32; the CPU's does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_HALF = (torch.float16, torch.bfloat16)
_FLASH_HEAD = 256
_BIAS_ALIGNMENT = 16  # `pad_bias` in the memory-efficient kernel's preparation
_FLOAT32 = frozenset(
    {
        F.softmax, F.log_softmax, F.layer_norm, F.group_norm, F.rms_norm, F.cross_entropy,
        F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.binary_cross_entropy_with_logits,
        F.kl_div, torch.softmax, torch.Tensor.softmax, torch.log_softmax, torch.Tensor.log_softmax,
    }
)  # fmt: skip


class CudaKernels(TorchFunctionMode):
    """Sends calls to the kernels of CUDA devices."""

    def __torch_function__(
        self, func: Any, types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run one call."""
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _attention(*args, **kwargs)
        if func is F.dropout and not kwargs.get("inplace", len(args) > 3 and args[3]):
            return _dropout(*args, **kwargs)
        if func in _FLOAT32 and torch.is_autocast_enabled("cpu"):
            args, kwargs = _float32(args), _float32(kwargs)
        return func(*args, **kwargs)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query.dim() != 4 or query.shape[-1] > _FLASH_HEAD:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    out: torch.Tensor
    if query.dtype in _HALF and attn_mask is None:
        flash: Callable[..., Any] = torch.ops.aten._scaled_dot_product_flash_attention
        out = flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (t.repeat_interleave(groups, 1) for t in (key, value))
    efficient: Callable[..., Any] = torch.ops.aten._scaled_dot_product_efficient_attention
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    log_sums = any(t.requires_grad for t in (query, key, value))
    out = efficient(query, key, value, bias, log_sums, dropout_p, is_causal, scale=scale)[0]
    return out


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    if mask.dtype is torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    length = mask.shape[-1]
    if length % _BIAS_ALIGNMENT:
        mask = F.pad(mask, (0, _BIAS_ALIGNMENT - length % _BIAS_ALIGNMENT))[..., :length]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])


def _dropout(
    input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> torch.Tensor:
    if not training or p == 0.0 or p == 1.0 or input.numel() == 0:
        return F.dropout(input, p, training)
    out: torch.Tensor = torch.ops.aten.native_dropout(input, p, True)[0]
    return out


def _float32(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.float() if tree.dtype in _HALF else tree
    if isinstance(tree, dict):
        return {key: _float32(item) for key, item in tree.items()}
    return type(tree)(map(_float32, tree)) if type(tree) in (tuple, list) else tree
