"""Loss functions and data types."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, Fn, floats, labels, two

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
