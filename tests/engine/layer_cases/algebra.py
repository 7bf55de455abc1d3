"""Linear algebra and complex numbers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, Fn, floats

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
