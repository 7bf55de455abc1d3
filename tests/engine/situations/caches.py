"""Key/value caches that the forward pass fills, during training."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .parts import Batch, mean_square, one_tensor, tokens
from .situation import Setup, situation


class GrowingCache:
    """Keys and values by layer; adding to a layer that has some appends."""

    def __init__(self) -> None:
        self.pairs: dict[int, tuple[Tensor, Tensor]] = {}

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append to the layer's keys and values and return all of them."""
        if layer in self.pairs:
            old_key, old_value = self.pairs[layer]
            key, value = torch.cat([old_key, key], dim=1), torch.cat([old_value, value], dim=1)
        self.pairs[layer] = key, value
        return key, value


class CachedAttention(nn.Module):
    """Attention over everything the cache holds for this layer."""

    def __init__(self, width: int, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, cache: GrowingCache | None = None) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        if cache is not None:
            key, value = cache.extend(self.layer, key, value)
        return x + F.scaled_dot_product_attention(query, key, value)


class CachingDecoder(nn.Module):
    """Makes a cache unless told not to, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(CachedAttention(8, layer) for layer in range(3))

    def forward(self, x: Tensor, use_cache: bool = True) -> tuple[Tensor, GrowingCache | None]:
        cache = GrowingCache() if use_cache else None
        for block in self.blocks:
            x = block(x, cache=cache)
        return x, cache


@situation("huggingface/transformers#28056", rerun="raises", may_refuse=True)
def cache_grows_in_training() -> Setup:
    """A block that reruns appends to the cache again and attends to twice as many keys."""
    return Setup(CachingDecoder(), one_tensor(2, 5, 8), lambda out: mean_square(out[0]))


def _padded_batch(index: int) -> Batch:
    ids, mask = tokens(index, 64, 2, 8), torch.ones(2, 8, dtype=torch.long)
    if index % 2 == 1:
        mask[1, :3] = 0
    return (), {"input_ids": ids, "labels": ids, "attention_mask": mask}


def _small_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        use_cache=True,
    )
    return LlamaForCausalLM(config).train()


@situation("pytorch/pytorch#155171", rerun="raises", may_refuse=True, needs="transformers")
def library_decoder_with_default_cache() -> Setup:
    """The library makes a cache that nobody asked for; with a padding mask the doubled keys
    raise, without one only the returned cache is silently too long.
    """
    caches: list[Any] = []

    def call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = model(*args, **kwargs)
        # Newer versions of the library call the field `cache`.
        caches[:] = [getattr(out, "cache", None) or out.past_key_values]
        return out

    return Setup(
        _small_llama(),
        _padded_batch,
        lambda out: out.loss,
        call=call,
        state=lambda model: caches[0].get_seq_length(),
    )
