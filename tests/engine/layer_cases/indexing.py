"""Indexing, scattering, sorting and reductions."""

from __future__ import annotations

import torch
from torch import Tensor

from .case import Case, Fn, floats


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
