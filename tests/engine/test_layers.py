"""Every common layer and op of torch, given up entirely, trains bit for bit as without a plan.

Four steps each: the first is recorded, the second followed, the third comes with another batch
size, the fourth with the first size again. The block around a layer makes backward need the
layer's own output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from engine_runs import assert_clean, assert_same, give_up, train
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils._pytree import tree_map

BATCHES = (2, 2, 3, 2)


@dataclass(frozen=True)
class Case:
    """A layer and what it takes."""

    name: str
    layer: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Any, ...]]
    drops: bool = True


class Fn(nn.Module):
    """A function as a layer, with a weight so that something trains."""

    def __init__(self, function: Callable[..., Any], *shape: int) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.rand(*shape) + 0.5)

    def forward(self, *args: Any) -> Any:
        return self.function(self.weight, *args)


class Block(nn.Module):
    """Something before the layer and something after it whose backward needs the layer's output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any) -> Any:
        output = self.layer(*(bent(a, 1.25) for a in args))
        return tree_map(lambda leaf: bent(leaf, 0.5), output)


def bent(leaf: Any, by: float) -> Any:
    """An op whose backward needs its input."""
    if not isinstance(leaf, Tensor) or not (leaf.is_floating_point() or leaf.is_complex()):
        return leaf
    return leaf * by + leaf.sin()


class Model(nn.Module):
    """The block, and a layer behind it."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.block = Block(layer)

    def forward(self, *args: Any) -> Any:
        return tree_map(lambda leaf: bent(leaf, 2.0), self.block(*args))


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[int], tuple[Tensor]]:
    def make(batch: int) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(batch)
        x = torch.randn(batch, *shape, generator=generator).to(dtype)
        return (x.requires_grad_(),)

    return make


def two(*shape: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    return lambda batch: (
        *floats(*shape)(batch),
        (floats(*shape)(batch)[0].detach() * 0.7 + 0.1).requires_grad_(),
    )


def ids(length: int, most: int) -> Callable[[int], tuple[Tensor]]:
    def make(batch: int) -> tuple[Tensor]:
        generator = torch.Generator().manual_seed(batch)
        return (torch.randint(0, most, (batch, length), generator=generator),)

    return make


def labels(*shape: int, classes: int) -> Callable[[int], tuple[Tensor, Tensor]]:
    def make(batch: int) -> tuple[Tensor, Tensor]:
        return floats(*shape)(batch)[0], torch.arange(batch) % classes

    return make


CONVOLUTIONS = [
    Case("conv1d", lambda: nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"), floats(4, 8)),
    Case("conv2d", lambda: nn.Conv2d(4, 6, 3, stride=2, groups=2), floats(4, 8, 8)),
    Case("conv2d_dilated", lambda: nn.Conv2d(4, 4, 3, dilation=2, bias=False), floats(4, 9, 9)),
    Case(
        "conv2d_reflect",
        lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        floats(4, 6, 6),
    ),
    Case("conv3d", lambda: nn.Conv3d(2, 3, 2), floats(2, 4, 4, 4)),
    Case("conv_transpose1d", lambda: nn.ConvTranspose1d(4, 4, 3), floats(4, 6)),
    Case(
        "conv_transpose2d",
        lambda: nn.ConvTranspose2d(4, 2, 3, 2, output_padding=1),
        floats(4, 5, 5),
    ),
    Case("conv_transpose3d", lambda: nn.ConvTranspose3d(2, 2, 2), floats(2, 3, 3, 3)),
    Case(
        "channels_last",
        lambda: nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last),
        lambda b: (
            floats(4, 6, 6)(b)[0].detach().to(memory_format=torch.channels_last).requires_grad_(),
        ),
    ),
    Case("unfold", lambda: nn.Sequential(nn.Unfold(2), nn.Fold((5, 5), 2)), floats(2, 5, 5)),
    Case("linear", lambda: nn.Linear(6, 5), floats(6)),
    Case("bilinear", lambda: nn.Bilinear(6, 6, 4), two(6)),
    Case("identity", nn.Identity, floats(6)),
    Case("flatten", lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (2, 6))), floats(3, 4)),
]
NORMS = [
    Case("batch_norm1d", lambda: nn.BatchNorm1d(4), floats(4, 6)),
    Case("batch_norm2d", lambda: nn.BatchNorm2d(4), floats(4, 5, 5)),
    Case("batch_norm3d", lambda: nn.BatchNorm3d(3), floats(3, 2, 3, 3)),
    Case("batch_norm_average", lambda: nn.BatchNorm1d(4, momentum=None), floats(4, 6)),
    Case("batch_norm_no_stats", lambda: nn.BatchNorm1d(4, track_running_stats=False), floats(4, 6)),
    Case("batch_norm_eval", lambda: nn.BatchNorm1d(4).eval(), floats(4, 6)),
    Case("batch_norm_plain", lambda: nn.BatchNorm2d(4, affine=False), floats(4, 5, 5)),
    Case("instance_norm", lambda: nn.InstanceNorm2d(4, affine=True), floats(4, 5, 5)),
    Case(
        "instance_norm_stats", lambda: nn.InstanceNorm1d(4, track_running_stats=True), floats(4, 6)
    ),
    Case("layer_norm", lambda: nn.LayerNorm((4, 6)), floats(4, 6)),
    Case("rms_norm", lambda: nn.RMSNorm(6), floats(4, 6)),
    Case("group_norm", lambda: nn.GroupNorm(2, 4), floats(4, 5)),
    Case("local_response_norm", lambda: nn.LocalResponseNorm(2), floats(4, 5, 5)),
    Case("lp_normalize", lambda: Fn(lambda w, x: F.normalize(x * w, dim=1), 6), floats(6)),
    Case("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), floats(6)),
    Case(
        "spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), floats(6)
    ),
    Case("orthogonal", lambda: nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)), floats(6)),
    Case("old_spectral_norm", lambda: nn.utils.spectral_norm(nn.Linear(6, 6)), floats(6)),
]


class Packed(nn.Module):
    """An LSTM over sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 4, num_layers=2, bidirectional=True, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        lengths = torch.tensor([6, 4, 3][: len(x)])
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        output, state = self.lstm(packed)
        return pad_packed_sequence(output, batch_first=True)[0], state


_frozen = nn.LSTM(5, 4, batch_first=True)


@torch.no_grad()
def frozen_lstm(x: Tensor) -> Any:
    return _frozen(x)[0]


RECURRENT = [
    Case("rnn", lambda: nn.RNN(5, 4, 2, nonlinearity="relu", batch_first=True), floats(6, 5)),
    Case("rnn_tanh", lambda: nn.RNN(5, 4, dropout=0.0, batch_first=True), floats(6, 5)),
    Case("lstm", lambda: nn.LSTM(5, 4, 2, dropout=0.4, batch_first=True), floats(6, 5)),
    Case("lstm_no_grad", lambda: Fn(lambda w, x: frozen_lstm(x) * w, 4), floats(6, 5)),
    Case("lstm_projected", lambda: nn.LSTM(5, 4, proj_size=3, batch_first=True), floats(6, 5)),
    Case(
        "gru",
        lambda: nn.GRU(5, 4, 2, dropout=0.4, bidirectional=True, batch_first=True),
        floats(6, 5),
    ),
    Case("packed", Packed, floats(6, 5)),
    Case("cells", lambda: nn.LSTMCell(5, 4), floats(5)),
    Case("gru_cell", lambda: nn.GRUCell(5, 4), floats(5)),
    Case("rnn_cell", lambda: nn.RNNCell(5, 4), floats(5)),
]


def attend(dropout: float) -> Case:
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, dropout=dropout, batch_first=True)

        def forward(self, x: Tensor) -> Any:
            mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            output, weights = self.attention(x, x, x, attn_mask=mask, average_attn_weights=False)
            return output, weights

    return Case(f"multihead_{dropout}", Attend, floats(5, 8))


TRANSFORMERS = [
    attend(0.0),
    attend(0.2),
    Case(
        "multihead_fused",
        lambda: Fn(lambda w, x: F.scaled_dot_product_attention(x * w, x, x, is_causal=True), 8),
        floats(2, 5, 8),
    ),
    Case(
        "multihead_dropped",
        lambda: Fn(lambda w, x: F.scaled_dot_product_attention(x * w, x, x, dropout_p=0.3), 8),
        floats(2, 5, 8),
    ),
    Case(
        "encoder_layer",
        lambda: nn.TransformerEncoderLayer(8, 2, 12, batch_first=True),
        floats(5, 8),
    ),
    Case(
        "encoder",
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 12, norm_first=True, batch_first=True), 2
        ),
        floats(5, 8),
    ),
    Case("transformer", lambda: nn.Transformer(8, 2, 1, 1, 12, batch_first=True), two(4, 8)),
]
EMBEDDINGS = [
    Case("embedding", lambda: nn.Embedding(9, 4, padding_idx=0), ids(5, 9)),
    Case("embedding_max_norm", lambda: nn.Embedding(9, 4, max_norm=1.0), ids(5, 9)),
    Case("embedding_scaled", lambda: nn.Embedding(9, 4, scale_grad_by_freq=True), ids(5, 9)),
    Case("embedding_sparse", lambda: nn.Embedding(9, 4, sparse=True), ids(5, 9)),
    Case("bag_mean", lambda: nn.EmbeddingBag(9, 4), ids(5, 9)),
    Case("bag_max", lambda: nn.EmbeddingBag(9, 4, mode="max"), ids(5, 9)),
    Case("bag_sum", lambda: nn.EmbeddingBag(9, 4, mode="sum", max_norm=0.8), ids(5, 9)),
    Case("bag_sparse", lambda: nn.EmbeddingBag(9, 4, mode="sum", sparse=True), ids(5, 9)),
    Case("one_hot", lambda: Fn(lambda w, i: F.one_hot(i, 9).float() @ w, 9, 4), ids(5, 9)),
]
ACTIVATION_CLASSES = [
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardshrink,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.PReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.RReLU,
    nn.SELU,
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softshrink,
    nn.Softsign,
    nn.Tanh,
    nn.Tanhshrink,
]
IN_PLACE_CLASSES = [
    nn.CELU,
    nn.ELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.LeakyReLU,
    nn.Mish,
    nn.ReLU,
    nn.ReLU6,
    nn.RReLU,
    nn.SELU,
    nn.SiLU,
]
ACTIVATIONS = [
    *(
        Case(c.__name__, lambda c=c: nn.Sequential(c(), nn.Linear(6, 6), c()), floats(6))
        for c in ACTIVATION_CLASSES
    ),
    *(
        Case(
            f"{c.__name__}_in_place",
            lambda c=c: nn.Sequential(nn.Linear(6, 6), c(inplace=True), nn.Linear(6, 6)),
            floats(6),
        )
        for c in IN_PLACE_CLASSES
    ),
    Case("threshold", lambda: nn.Threshold(0.1, 20.0), floats(6)),
    Case("gelu_tanh", lambda: nn.GELU(approximate="tanh"), floats(6)),
    Case("glu", nn.GLU, floats(6)),
    Case("softmax", lambda: nn.Softmax(-1), floats(6)),
    Case("softmin", lambda: nn.Softmin(-1), floats(6)),
    Case("log_softmax", lambda: nn.LogSoftmax(-1), floats(6)),
    Case("softmax2d", nn.Softmax2d, floats(3, 4, 4)),
    Case("gumbel", lambda: Fn(lambda w, x: F.gumbel_softmax(x * w, hard=True), 6), floats(6)),
    Case(
        "adaptive_softmax",
        lambda: nn.AdaptiveLogSoftmaxWithLoss(6, 9, [3, 6]),
        labels(6, classes=9),
    ),
]
POOLINGS = [
    Case("max_pool1d", lambda: nn.MaxPool1d(2), floats(3, 8)),
    Case("max_pool2d", lambda: nn.MaxPool2d(3, 2, 1, return_indices=True), floats(3, 8, 8)),
    Case("max_pool3d", lambda: nn.MaxPool3d(2), floats(2, 4, 4, 4)),
    Case("avg_pool1d", lambda: nn.AvgPool1d(2), floats(3, 8)),
    Case("avg_pool2d", lambda: nn.AvgPool2d(2, ceil_mode=True), floats(3, 7, 7)),
    Case("avg_pool3d", lambda: nn.AvgPool3d(2), floats(2, 4, 4, 4)),
    Case("lp_pool1d", lambda: nn.LPPool1d(2, 2), floats(3, 8)),
    Case("lp_pool2d", lambda: nn.LPPool2d(2, 2), floats(3, 8, 8)),
    Case("fractional2d", lambda: nn.FractionalMaxPool2d(2, output_size=3), floats(3, 8, 8)),
    Case("fractional3d", lambda: nn.FractionalMaxPool3d(2, output_size=2), floats(2, 5, 5, 5)),
    Case("adaptive_avg1d", lambda: nn.AdaptiveAvgPool1d(3), floats(3, 8)),
    Case("adaptive_avg2d", lambda: nn.AdaptiveAvgPool2d((2, 3)), floats(3, 7, 8)),
    Case("adaptive_avg3d", lambda: nn.AdaptiveAvgPool3d(2), floats(2, 5, 5, 5)),
    Case("adaptive_max1d", lambda: nn.AdaptiveMaxPool1d(3), floats(3, 8)),
    Case("adaptive_max2d", lambda: nn.AdaptiveMaxPool2d(2), floats(3, 7, 7)),
    Case("adaptive_max3d", lambda: nn.AdaptiveMaxPool3d(2), floats(2, 5, 5, 5)),
    Case(
        "max_unpool",
        lambda: Fn(lambda w, x: F.max_unpool2d(*F.max_pool2d(x * w, 2, return_indices=True), 2), 6),
        floats(2, 6, 6),
    ),
]
DROPOUTS = [
    Case("dropout", lambda: nn.Dropout(0.4), floats(6)),
    Case(
        "dropout_in_place",
        lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4, inplace=True)),
        floats(6),
    ),
    Case("dropout1d", lambda: nn.Dropout1d(0.4), floats(4, 6)),
    Case("dropout2d", lambda: nn.Dropout2d(0.4), floats(4, 3, 3)),
    Case("dropout3d", lambda: nn.Dropout3d(0.4), floats(4, 2, 2, 2)),
    Case("alpha_dropout", lambda: nn.AlphaDropout(0.4), floats(6)),
    Case("feature_alpha", lambda: nn.FeatureAlphaDropout(0.4), floats(4, 6)),
    Case("noise", lambda: Fn(lambda w, x: x * w + torch.randn_like(x) * w.exp(), 6), floats(6)),
    Case(
        "bernoulli", lambda: Fn(lambda w, x: x * torch.bernoulli(w.detach() / 3) * w, 6), floats(6)
    ),
    Case("permutation", lambda: Fn(lambda w, x: (x * w)[:, torch.randperm(6)], 6), floats(6)),
    Case(
        "own_generator",
        lambda: Fn(
            lambda w, x: x * w * torch.rand(6, generator=torch.Generator().manual_seed(len(x))), 6
        ),
        floats(6),
    ),
    Case(
        "multinomial",
        lambda: Fn(lambda w, x: (x * w)[:, torch.multinomial(w.detach(), 3)], 6),
        floats(6),
    ),
]
SHAPES = [
    *(
        Case(c.__name__, lambda c=c, p=p: c(p), floats(2, *s))
        for c, p, s in [
            (nn.ReflectionPad1d, 2, (6,)),
            (nn.ReflectionPad2d, 1, (4, 4)),
            (nn.ReflectionPad3d, 1, (3, 3, 3)),
            (nn.ReplicationPad1d, 2, (6,)),
            (nn.ReplicationPad2d, 1, (4, 4)),
            (nn.ReplicationPad3d, 1, (3, 3, 3)),
            (nn.ZeroPad1d, 1, (6,)),
            (nn.ZeroPad2d, 1, (4, 4)),
            (nn.CircularPad1d, 2, (6,)),
            (nn.CircularPad2d, 1, (4, 4)),
            (nn.CircularPad3d, 1, (3, 3, 3)),
        ]
    ),
    Case("constant_pad", lambda: nn.ConstantPad2d(1, 3.5), floats(2, 4, 4)),
    Case("pixel_shuffle", lambda: nn.PixelShuffle(2), floats(4, 3, 3)),
    Case("pixel_unshuffle", lambda: nn.PixelUnshuffle(2), floats(2, 4, 4)),
    Case("channel_shuffle", lambda: nn.ChannelShuffle(2), floats(4, 3, 3)),
    *(
        Case(
            f"upsample_{mode}",
            lambda m=mode: nn.Upsample(scale_factor=1.5, mode=m),
            floats(2, *[4] * dims),
        )
        for mode, dims in [
            ("nearest", 1),
            ("nearest", 2),
            ("nearest", 3),
            ("linear", 1),
            ("bilinear", 2),
            ("bicubic", 2),
            ("trilinear", 3),
            ("area", 2),
            ("nearest-exact", 2),
        ]
    ),
    Case(
        "antialias",
        lambda: Fn(lambda w, x: F.interpolate(x * w, size=3, mode="bilinear", antialias=True), 6),
        floats(2, 6, 6),
    ),
    Case(
        "grid_sample",
        lambda: Fn(
            lambda w, x: F.grid_sample(
                x,
                F.affine_grid(w.expand(len(x), 2, 3), [*x.shape], align_corners=False),
                align_corners=False,
            ),
            2,
            3,
        ),
        floats(2, 5, 5),
    ),
    Case(
        "roll_flip",
        lambda: Fn(lambda w, x: (x * w).roll(1, 1).flip(0).rot90(1, (0, 1)), 6),
        floats(6),
    ),
    Case(
        "split_in_place",
        lambda: Fn(lambda w, x: [part.mul_(2) for part in (x * w).unsafe_chunk(2, 1)], 6),
        floats(6),
    ),
    Case(
        "stack_views",
        lambda: Fn(lambda w, x: torch.stack((x * w).unbind(1)).t().diag(), 6),
        floats(6),
    ),
]


def filled(weight: Tensor, x: Tensor) -> Tensor:
    """Writes into slices of a fresh tensor."""
    out = torch.zeros_like(x)
    out[:, ::2] = x[:, ::2] * weight[::2]
    out[:, 1] = x[:, 0].sin()
    return out.exp()


def picked(weight: Tensor, x: Tensor) -> Tensor:
    """Sizes that depend on data."""
    y = x * weight
    rows, columns = (y > 0).nonzero(as_tuple=True)
    return y[rows, columns].cumsum(0).exp().sum() + y.masked_select(y < 0).exp().sum()


INDEXING = [
    Case("filled", lambda: Fn(filled, 6), floats(6)),
    Case("picked", lambda: Fn(picked, 6), floats(6)),
    Case("gather", lambda: Fn(lambda w, x: (x * w).gather(1, x.argsort(1)), 6), floats(6)),
    Case(
        "scatter",
        lambda: Fn(lambda w, x: (x * w).scatter(1, x.argsort(1)[:, :2], 3.0), 6),
        floats(6),
    ),
    Case(
        "scatter_add",
        lambda: Fn(lambda w, x: torch.zeros_like(x).scatter_add(1, x.argsort(1) % 3, x * w), 6),
        floats(6),
    ),
    Case(
        "scatter_reduce",
        lambda: Fn(
            lambda w, x: torch.ones_like(x).scatter_reduce(1, x.argsort(1) % 3, x * w, "prod"), 6
        ),
        floats(6),
    ),
    Case(
        "index_add",
        lambda: Fn(lambda w, x: (x * w).index_add(1, torch.tensor([0, 2]), x[:, :2].exp()), 6),
        floats(6),
    ),
    Case(
        "index_put",
        lambda: Fn(
            lambda w, x: (x * w).index_put((torch.tensor([0, 0, 1]),), w.exp(), accumulate=True), 6
        ),
        floats(6),
    ),
    Case(
        "index_copy",
        lambda: Fn(lambda w, x: (x * w).index_copy(1, torch.tensor([1]), x[:, :1].exp()), 6),
        floats(6),
    ),
    Case(
        "index_select",
        lambda: Fn(lambda w, x: (x * w).index_select(1, torch.tensor([3, 3])), 6),
        floats(6),
    ),
    Case(
        "take_along", lambda: Fn(lambda w, x: (x * w).take_along_dim(x.argsort(1), 1), 6), floats(6)
    ),
    Case("where", lambda: Fn(lambda w, x: torch.where(x > 0, x * w, w.exp()), 6), floats(6)),
    Case(
        "masked_fill", lambda: Fn(lambda w, x: (x * w).masked_fill_(x > 0, 0.5).exp(), 6), floats(6)
    ),
    Case("sort", lambda: Fn(lambda w, x: (x * w).sort(1).values, 6), floats(6)),
    Case("topk", lambda: Fn(lambda w, x: (x * w).topk(2).values, 6), floats(6)),
    Case("kthvalue", lambda: Fn(lambda w, x: (x * w).kthvalue(2).values, 6), floats(6)),
    Case(
        "unique",
        lambda: Fn(lambda w, x: w[torch.unique(x.mul(2).long().clamp(0, 5))] * x.sum(), 6),
        floats(6),
    ),
    Case(
        "cumulative",
        lambda: Fn(
            lambda w, x: (
                (x * w).cumsum(1)
                + (x * w).cumprod(0)
                + (x * w).cummax(1).values
                + (x * w).logcumsumexp(1)
            ),
            6,
        ),
        floats(6),
    ),
    Case(
        "quantile",
        lambda: Fn(lambda w, x: (x * w).quantile(torch.tensor([0.3, 0.6]), dim=1), 6),
        floats(6),
    ),
    Case(
        "reductions",
        lambda: Fn(
            lambda w, x: (
                (x * w).std(1)
                + (x * w).logsumexp(1)
                + (x * w).amax(1)
                + (x * w).prod(1)
                + (x * w).median()
            ),
            6,
        ),
        floats(6),
    ),
    Case(
        "bucketize",
        lambda: Fn(
            lambda w, x: w[torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0]))] * x, 6
        ),
        floats(6),
    ),
    Case("item", lambda: Fn(lambda w, x: x * w * float(x.detach().abs().max()), 6), floats(6)),
]
ALGEBRA = [
    Case(
        "einsum",
        lambda: Fn(lambda w, x: torch.einsum("bij,jk,bkl->bil", x, w, x), 4, 4),
        floats(4, 4),
    ),
    Case("cdist", lambda: Fn(lambda w, x: torch.cdist(x * w, x, p=1.5), 4), floats(4)),
    Case("pdist", lambda: Fn(lambda w, x: F.pdist(x * w), 4), floats(4)),
    Case("cosine", lambda: Fn(lambda w, x: F.cosine_similarity(x * w, w[None]), 4), floats(4)),
    Case("pairwise", lambda: Fn(lambda w, x: F.pairwise_distance(x * w, x), 4), floats(4)),
    Case("qr", lambda: Fn(lambda w, x: torch.linalg.qr(x * w), 4), floats(4, 4)),
    Case("svd", lambda: Fn(lambda w, x: torch.linalg.svdvals(x * w), 4), floats(4, 4)),
    Case("svd_full", lambda: Fn(lambda w, x: torch.linalg.svd(x * w)[1], 4), floats(4, 4)),
    Case(
        "cholesky",
        lambda: Fn(
            lambda w, x: torch.linalg.cholesky(x @ x.mT * w.abs().sum() + 4 * torch.eye(4)), 4
        ),
        floats(4, 4),
    ),
    Case(
        "solve",
        lambda: Fn(lambda w, x: torch.linalg.solve(x + 5 * torch.eye(4), w), 4, 4),
        floats(4, 4),
    ),
    Case(
        "inverse_det",
        lambda: Fn(
            lambda w, x: (x + 5 * torch.eye(4)).inverse() * w + (x * w).det()[:, None, None], 4
        ),
        floats(4, 4),
    ),
    Case(
        "eigh",
        lambda: Fn(lambda w, x: torch.linalg.eigvalsh((x + x.mT) * w.sum()), 4),
        floats(4, 4),
    ),
    Case("matrix_exp", lambda: Fn(lambda w, x: torch.matrix_exp(x * w * 0.1), 4), floats(4, 4)),
    Case("tensordot", lambda: Fn(lambda w, x: torch.tensordot(x, w, dims=2), 4, 4), floats(4, 4)),
    Case(
        "kron_addbmm",
        lambda: Fn(lambda w, x: torch.kron(w, x[0]).sum() + torch.addbmm(w, x, x), 4, 4),
        floats(4, 4),
    ),
]


def spectrum(weight: Tensor, x: Tensor) -> Tensor:
    """Conjugate and negative views in a saved place."""
    y = torch.fft.rfft(x * weight)
    z = y.conj() * y.exp()
    return torch.fft.irfft(z.conj() * torch.view_as_complex(torch.view_as_real(z)), n=6) + (
        z.imag[:, :1] * z.conj().imag[:, :1].sin()
    )


class ComplexLinear(nn.Module):
    """Complex weights, and their conjugate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.complex(x, x.sin()) @ self.weight.mH
        return (y.conj() @ self.weight).tanh() * y.abs() + y.angle()


COMPLEX = [
    Case("fft", lambda: Fn(spectrum, 6), floats(6)),
    Case(
        "fft2", lambda: Fn(lambda w, x: torch.fft.fft2(x * w).conj().exp().mean(0), 6), floats(6, 6)
    ),
    Case("complex_linear", ComplexLinear, floats(6)),
    Case(
        "polar",
        lambda: Fn(lambda w, x: torch.polar(w.abs(), x).conj_physical().sgn(), 6),
        floats(6),
    ),
    Case(
        "stft",
        lambda: Fn(
            lambda w, x: torch.stft(
                x * w, 8, window=torch.hann_window(8), return_complex=True
            ).abs(),
            32,
        ),
        floats(32),
    ),
]
LOSSES = [
    Case(
        "cross_entropy",
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=1),
        labels(5, classes=5),
    ),
    Case(
        "cross_entropy2d",
        nn.CrossEntropyLoss,
        lambda b: (floats(5, 3, 3)(b)[0], torch.arange(b * 9).view(b, 3, 3) % 5),
    ),
    Case("nll", nn.NLLLoss, labels(5, classes=5)),
    Case("multi_margin", nn.MultiMarginLoss, labels(5, classes=5)),
    Case(
        "ctc",
        nn.CTCLoss,
        lambda b: (
            floats(7, 5)(b)[0].log_softmax(-1).transpose(0, 1).detach().requires_grad_(),
            torch.arange(b * 3).view(b, 3) % 4 + 1,
            torch.full((b,), 7),
            torch.full((b,), 3),
        ),
    ),
    *(
        Case(c.__name__, c, two(5))
        for c in [
            nn.MSELoss,
            nn.L1Loss,
            nn.SmoothL1Loss,
            nn.HuberLoss,
            nn.BCEWithLogitsLoss,
            nn.KLDivLoss,
            nn.PoissonNLLLoss,
        ]
    ),
    Case("soft_margin", nn.SoftMarginLoss, lambda b: (floats(5)(b)[0], torch.ones(b, 5))),
    Case(
        "bce",
        lambda: Fn(lambda w, x: F.binary_cross_entropy((x * w).sigmoid(), x.gt(0).float()), 5),
        floats(5),
    ),
    Case(
        "gaussian_nll",
        lambda: Fn(lambda w, x: F.gaussian_nll_loss(x, w * x, (w * x).exp()), 5),
        floats(5),
    ),
    Case(
        "cosine_embedding",
        lambda: Fn(lambda w, x: F.cosine_embedding_loss(x * w, x.sin(), torch.ones(len(x))), 5),
        floats(5),
    ),
    Case(
        "triplet",
        lambda: Fn(lambda w, x: F.triplet_margin_loss(x, x * w, x.roll(1, 0)), 5),
        floats(5),
    ),
    Case(
        "margin_ranking",
        lambda: Fn(lambda w, x: F.margin_ranking_loss(x * w, x.sin(), torch.ones_like(x)), 5),
        floats(5),
    ),
    Case(
        "hinge_embedding",
        lambda: Fn(lambda w, x: F.hinge_embedding_loss(x * w, torch.ones(5)), 5),
        floats(5),
    ),
    Case(
        "multilabel",
        lambda: Fn(
            lambda w, x: (
                F.multilabel_soft_margin_loss(x * w, x.gt(0).float())
                + F.multilabel_margin_loss(x * w, x.argsort(1))
            ),
            5,
        ),
        floats(5),
    ),
]


def cast(dtype: torch.dtype) -> Case:
    name = str(dtype).removeprefix("torch.")
    build = lambda: nn.Sequential(  # noqa: E731
        nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 6)
    ).to(dtype)
    return Case(f"whole_{name}", build, floats(6, dtype=dtype))


class Autocast(nn.Module):
    """Autocast inside the segment, with a part that opts out."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype):
            y = self.second(self.first(x).relu()) + self.first(x)
            with torch.autocast("cpu", enabled=False):
                y = y.float() + self.first(y.float())
            return self.second(y).softmax(-1)


DTYPES = [
    cast(torch.bfloat16),
    cast(torch.float16),
    cast(torch.float64),
    Case("autocast_bfloat16", lambda: Autocast(torch.bfloat16), floats(6)),
    Case("autocast_float16", lambda: Autocast(torch.float16), floats(6)),
    Case(
        "mixed",
        lambda: Fn(
            lambda w, x: (
                (x.double() * w).to(torch.bfloat16).exp().float()
                * x.detach().view(torch.int32).view(torch.float32)
            ),
            6,
        ),
        floats(6),
    ),
    Case(
        "fake_quantize",
        lambda: Fn(lambda w, x: torch.fake_quantize_per_tensor_affine(x * w, 0.1, 0, -128, 127), 6),
        floats(6),
    ),
]
ALL = [
    *CONVOLUTIONS,
    *NORMS,
    *RECURRENT,
    *TRANSFORMERS,
    *EMBEDDINGS,
    *ACTIVATIONS,
    *POOLINGS,
    *DROPOUTS,
    *SHAPES,
    *INDEXING,
    *ALGEBRA,
    *COMPLEX,
    *LOSSES,
    *DTYPES,
]


pytestmark = pytest.mark.usefixtures("quiet_thread")


@pytest.mark.parametrize("case", ALL, ids=[case.name for case in ALL])
def test_layer_given_up_trains_the_same(case: Case) -> None:
    torch.manual_seed(3)
    model = Model(case.layer())
    plain, _ = train(model, case.inputs, BATCHES)
    planned, handle = train(model, case.inputs, BATCHES, give_up("block"))
    assert_same(plain, planned)
    assert handle is not None
    assert handle.replayed_ops > 0
    assert_clean()
