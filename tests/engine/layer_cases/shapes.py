"""Padding, resampling and moving elements around."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .case import Case, Fn, floats

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
