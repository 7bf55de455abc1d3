"""Convolutions, linear layers and norms."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .case import Case, Fn, floats, two

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
