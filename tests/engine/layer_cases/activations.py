"""Activations, pooling and dropout."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .case import Case, Fn, floats, labels

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
