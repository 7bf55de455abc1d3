"""Recurrent layers, attention, transformers and embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .case import Case, Fn, floats, ids, two


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
