"""Common layers and ops of torch, each with inputs for a batch size; `ALL` holds them in order."""

from __future__ import annotations

from .activations import ACTIVATIONS, DROPOUTS, POOLINGS
from .algebra import ALGEBRA, COMPLEX
from .case import Case, Model
from .convolutions import CONVOLUTIONS, NORMS
from .indexing import INDEXING
from .losses import DTYPES, LOSSES
from .sequences import EMBEDDINGS, RECURRENT, TRANSFORMERS
from .shapes import SHAPES

ALL: tuple[Case, ...] = (
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
)

__all__ = ["ALL", "Case", "Model"]
