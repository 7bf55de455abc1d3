"""Which saved tensors were packed inside a span.

A pack at position p happened between op p-1 and op p: either op p-1 saved what it made, or op p
saved what it is about to read. Where a span ends at p, the first is inside and the second, which
the next module saves, is outside. The profile does not tell them apart, so this does.
"""

from __future__ import annotations

from planner.documents.profile import Op, SavedTensor, Value

SAVES_ITS_RESULT = frozenset(
    {
        *("relu", "sigmoid", "tanh", "exp", "exp2", "expm1", "sqrt", "rsqrt", "reciprocal"),
        *("tan", "threshold", "hypot", "_softmax", "_log_softmax", "logsumexp"),
        *("logcumsumexp", "cumprod", "prod", "amax", "amin", "std", "norm"),
        *("linalg_vector_norm", "linalg_inv_ex", "linalg_cholesky_ex", "_cdist_forward"),
        *("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"),
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
        *("_flash_attention_forward", "_efficient_attention_forward", "_ctc_loss"),
        *("_cudnn_rnn", "mkldnn_rnn_layer"),
    }
)
"""Ops whose derivative is written in terms of their first result (PyTorch's derivatives.yaml)."""

SAVES_ITS_RESULT_IN_PLACE = frozenset(["leaky_relu", "elu", "celu", "hardtanh", "rrelu_with_noise"])
"""Ops that do so in their in-place form only, where the input is no more."""


def own_packs(
    ops: tuple[Op, ...], values: tuple[Value, ...], saved: tuple[SavedTensor, ...]
) -> tuple[bool, ...]:
    """Return, for each saved tensor, whether the op that made the value packed it."""
    seen: set[int] = set()
    own = []
    for tensor in saved:
        maker = values[tensor.value].op
        adjacent = maker >= 0 and tensor.packed_at == maker + 1
        own.append(adjacent and _is_own(ops, values, tensor.value, tensor.value in seen))
        if adjacent:
            seen.add(tensor.value)
    return tuple(own)


def _is_own(ops: tuple[Op, ...], values: tuple[Value, ...], value: int, again: bool) -> bool:
    maker = values[value].op
    following = ops[maker + 1] if maker + 1 < len(ops) else None
    if following is None or (following.phase == "forward" and value not in following.inputs):
        return True  # nobody else can have packed it there
    # An op saves a result once; whatever packs it again at this position is the next reader.
    output = ops[maker].outputs.index(value)
    if output and values[value].version == 0:
        return not again  # further fresh outputs (means, indices, masks) exist for backward
    return not again and not output and saves_result(ops[maker].name)


def saves_result(op_name: str) -> bool:
    """Return whether autograd saves the op's first result for the op's own backward."""
    parts = op_name.split(".")
    name = parts[1] if len(parts) > 1 else parts[0]
    plain = name.removesuffix("_")
    if plain in SAVES_ITS_RESULT:
        return True
    return name.endswith("_") and plain in SAVES_ITS_RESULT_IN_PLACE
