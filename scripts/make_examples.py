"""Make the example profiles and plans in profiles/ again: small real models with random weights.

    python scripts/make_examples.py [--only gpt2 --only t5] [--output profiles]

Each function below is a model that the command line can load too:

    planner verify profiles/gpt2.plan.json scripts/make_examples.py:gpt2

The plan of each holds the step halfway between its smallest reachable peak and its plain peak. It
is predicted from the stored profile and then verified; one that does not hold is not written.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

import planner

Made = tuple[nn.Module, dict[str, Tensor]]
SIZES: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4}
VOCABULARY, BATCH, LENGTH = 256, 8, 64


def tokens() -> dict[str, Tensor]:
    """Return token ids (BATCH, LENGTH), which are the labels too."""
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids}


def images(side: int) -> dict[str, Tensor]:
    """Return images (BATCH, 3, side, side) and their classes."""
    pixels = torch.randn(BATCH, 3, side, side)
    return {"pixel_values": pixels, "labels": torch.zeros(BATCH, dtype=torch.int64)}


def gpt2() -> Made:
    """GPT-2 of four blocks."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=4,
        n_embd=64,
        n_head=4,
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).train(), tokens()


def llama() -> Made:
    """Llama of four blocks with grouped queries."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES,
        num_hidden_layers=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train(), tokens()


def bert() -> Made:
    """BERT of four blocks with a masked-language head."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(**SIZES, num_hidden_layers=4, vocab_size=VOCABULARY)
    return BertForMaskedLM(config).train(), tokens()


def vit() -> Made:
    """ViT of four blocks on 64 patches."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(**SIZES, num_hidden_layers=4, image_size=32, patch_size=4)
    return ViTForImageClassification(config).train(), images(32)


def t5() -> Made:
    """T5 of two and two blocks: every decoder block reads the encoder's output."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        d_model=64,
        d_kv=16,
        d_ff=192,
        num_layers=2,
        num_heads=4,
        vocab_size=VOCABULARY,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config).train(), tokens()


def resnet() -> Made:
    """ResNet with BatchNorm and in-place ReLU."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic"
    )
    return ResNetForImageClassification(config).train(), images(64)


MODELS: dict[str, Callable[[], Made]] = {
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "vit": vit,
    "t5": t5,
    "resnet": resnet,
}


def make(name: str, folder: Path) -> str:
    """Write the profile and the plan of a model; return what they promise, in a line.

    Raises:
        RuntimeError: the plan does not hold.
    """
    model, inputs = MODELS[name]()
    profile = planner.profile(model, inputs=inputs)
    floor_bytes = planner.sweep(profile, ["100%"], baselines=False).floor_bytes
    budget_mb = (floor_bytes + profile.plain_peak_bytes) / 2 / 1024**2
    plan = planner.plan(model, budget_mb=budget_mb, profile=profile)
    found = planner.verify(model, plan, inputs=inputs)
    if not found.ok:
        raise RuntimeError(f"the plan of {name} does not hold:\n{found}")
    plan = replace(plan, measured_peak_bytes=found.measured_peak_bytes)
    profile.save(folder / f"{name}.json", force=True)
    plan.save(folder / f"{name}.plan.json", force=True)
    return (
        f"{name}: {profile.plain_peak_bytes:,} B plain, {found.measured_peak_bytes:,} B planned, "
        f"{plan.predicted_overhead_ratio:.1%} predicted overhead"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Make the examples named on the command line, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--only", action="append", choices=sorted(MODELS), help="may be repeated")
    parser.add_argument("--output", type=Path, default=Path("profiles"), metavar="FOLDER")
    args = parser.parse_args(argv)
    args.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in tqdm(args.only or list(MODELS), disable=None, leave=False):
        tqdm.write(make(name, args.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
