"""What the benchmark scripts share: models of a given size, timing, and the result file."""

from __future__ import annotations

import gc
import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import planner

Inputs = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Size:
    """A transformer and its batch; `patches` a side is the length of an image model's input."""

    layers: int = 12
    width: int = 512
    heads: int = 8
    batch: int = 2
    length: int = 256
    patches: int = 12
    vocabulary: int = 1000


def gpt2(size: Size) -> tuple[nn.Module, Inputs, str]:
    """Return a GPT-2 with random weights and no dropout, its inputs, and where its blocks are."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=size.layers,
        n_embd=size.width,
        n_head=size.heads,
        n_positions=size.length,
        vocab_size=size.vocabulary,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config), _tokens(size), "transformer.h"


def llama(size: Size) -> tuple[nn.Module, Inputs, str]:
    """Return a Llama, its inputs, and where its blocks are."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=size.width,
        intermediate_size=size.width * 8 // 3 // 8 * 8,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=size.length,
        vocab_size=size.vocabulary,
        use_cache=False,
    )
    return LlamaForCausalLM(config), _tokens(size), "model.layers"


def bert(size: Size) -> tuple[nn.Module, Inputs, str]:
    """Return a BERT with a masked-language head, its inputs, and where its blocks are."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        max_position_embeddings=size.length,
        vocab_size=size.vocabulary,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return BertForMaskedLM(config), _tokens(size), "bert.encoder.layer"


def vit(size: Size) -> tuple[nn.Module, Inputs, str]:
    """Return a ViT, its inputs, and where its blocks are."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        image_size=16 * size.patches,
        patch_size=16,
    )
    model = ViTForImageClassification(config)
    images = torch.randn(size.batch, 3, 16 * size.patches, 16 * size.patches)
    labels = torch.arange(size.batch) % 2
    blocks = next(name for name, m in model.named_modules() if isinstance(m, nn.ModuleList))
    return model, {"pixel_values": images, "labels": labels}, blocks


MODELS: dict[str, Callable[[Size], tuple[nn.Module, Inputs, str]]] = {
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "vit": vit,
}


def build(name: str, size: Size) -> tuple[nn.Module, Inputs, str]:
    """Return a model in train mode, the same each time."""
    torch.manual_seed(0)
    model, inputs, blocks = MODELS[name](size)
    return model.train(), inputs, blocks


def _tokens(size: Size) -> Inputs:
    ids = torch.randint(0, size.vocabulary, (size.batch, size.length))
    return {"input_ids": ids, "labels": ids}


def timed_s(run: Callable[[], object]) -> float:
    """Return the process time of one run in seconds, without garbage collection."""
    gc.collect()
    gc.disable()
    start = time.process_time()
    run()
    taken = time.process_time() - start
    gc.enable()
    return taken


def facts(command: str) -> dict[str, Any]:
    """Return what a result file says beside the numbers: command, versions, hardware class."""
    packages = ("torch", "transformers", "networkx", "scipy")
    return {
        "command": command,
        "versions": {
            "planner": planner.__version__,
            "python": platform.python_version(),
            **{name: version(name) for name in packages},
        },
        "hardware": {
            "architecture": platform.machine(),
            "vector": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
    }


def update_results(path: Path, entries: dict[str, Any]) -> None:
    """Write entries into a JSON object on disk; others stay, so that parts can be run alone."""
    known = json.loads(path.read_text()) if path.exists() else {}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**known, **entries}, indent=2) + "\n")
