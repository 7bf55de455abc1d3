"""Small models of many architectures from transformers and diffusers, with random weights.

Each entry names a configuration and a model class, what differs from the defaults, and the kind of
its inputs. Used by `scripts/sweep_architectures.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

Inputs = dict[str, torch.Tensor]

VOCABULARY, LENGTH, BATCH = 128, 48, 4


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to build one small model.

    Attributes:
        family: what kind of network it is.
        model: the model's class; its configuration is `config`, of the same library.
        config: the configuration's class; empty where the model takes the settings itself.
        inputs: makes a batch.
        settings: of the configuration.
    """

    family: str
    model: str
    config: str
    inputs: Callable[[], Inputs]
    settings: dict[str, Any] = field(default_factory=dict)

    def build(self) -> tuple[nn.Module, Inputs]:
        """Return the model in train mode and a batch, the same each time."""
        import diffusers
        import transformers

        torch.manual_seed(0)
        library = transformers if self.config else diffusers
        kind = getattr(library, self.model)
        if self.config:
            model = kind(getattr(library, self.config)(**self.settings))
        else:
            model = kind(**self.settings)
        return model.train(), self.inputs()


def tokens() -> Inputs:
    """Return ids that are their own labels."""
    ids = torch.randint(2, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": ids, "labels": ids}


def labelled_tokens() -> Inputs:
    """Return ids with a class each."""
    return {**tokens(), "labels": torch.arange(BATCH) % 2}


def images(size: int = 32, batch: int = 4) -> Inputs:
    """Return images with a class each."""
    return {"pixel_values": torch.randn(batch, 3, size, size), "labels": torch.arange(batch) % 2}


def masks(size: int = 64) -> Inputs:
    """Return images with a class for each pixel."""
    pixels = torch.randn(BATCH, 3, size, size)
    return {"pixel_values": pixels, "labels": torch.randint(0, 2, (BATCH, size, size))}


def plain_images(size: int = 64) -> Inputs:
    """Return images alone."""
    return {"pixel_values": torch.randn(BATCH, 3, size, size)}


def samples() -> Inputs:
    """Return sound with a class each."""
    return {"input_values": torch.randn(BATCH, 4000), "labels": torch.arange(BATCH) % 2}


def spectrogram(bins: int = 16, frames: int = 64) -> Inputs:
    """Return spectrograms [batch, frames, bins] with a class each."""
    return {"input_values": torch.randn(BATCH, frames, bins), "labels": torch.arange(BATCH) % 2}


def speech() -> Inputs:
    """Return log-mel features [batch, bins, frames] and the ids of what is said."""
    ids = torch.randint(2, VOCABULARY, (BATCH, 16))
    return {"input_features": torch.randn(BATCH, 16, 64), "labels": ids}


def video(frames: int = 4, size: int = 32) -> Inputs:
    """Return clips [batch, frames, channels, height, width] with a class each."""
    clips = torch.randn(BATCH, frames, 3, size, size)
    return {"pixel_values": clips, "labels": torch.arange(BATCH) % 2}


def noisy_images(channels: int = 3, size: int = 16) -> Inputs:
    """Return noisy images and their time steps."""
    return {"sample": torch.randn(BATCH, channels, size, size), "timestep": torch.arange(BATCH)}


def conditioned_images() -> Inputs:
    """Return noisy images, their time steps, and what conditions them."""
    return {**noisy_images(4), "encoder_hidden_states": torch.randn(BATCH, 8, 32)}


def noisy_classes() -> Inputs:
    """Return noisy latents, their time steps, and a class each."""
    batch = {"hidden_states": torch.randn(BATCH, 4, 16, 16), "timestep": torch.arange(BATCH)}
    return {**batch, "class_labels": torch.arange(BATCH) % 2}


def captioned_latents() -> Inputs:
    """Return latents, captions and their pooled form, and time steps."""
    return {
        "hidden_states": torch.randn(BATCH, 4, 16, 16),
        "encoder_hidden_states": torch.randn(BATCH, 8, 32),
        "pooled_projections": torch.randn(BATCH, 64),
        "timestep": torch.arange(BATCH),
    }


def whole_images(size: int = 32) -> Inputs:
    """Return images that are encoded and decoded again."""
    return {"sample": torch.randn(BATCH, 3, size, size)}


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TEXT: dict[str, Any] = {**SMALL, "vocab_size": VOCABULARY, "pad_token_id": 0}
GROUPED: dict[str, Any] = {**TEXT, "num_key_value_heads": 2}
VISION: dict[str, Any] = {**SMALL, "image_size": 32, "patch_size": 4}
PAIR: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "decoder_start_token_id": 1,
}
STAGES: dict[str, Any] = {"hidden_sizes": [16, 32], "depths": [2, 2]}
WAVES: dict[str, Any] = {
    **SMALL,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}


def _text(family: str, name: str, base: dict[str, Any], **more: Any) -> Architecture:
    return Architecture(family, f"{name}ForCausalLM", f"{name}Config", tokens, {**base, **more})


def _masked(name: str, **more: Any) -> Architecture:
    model, settings = f"{name}ForMaskedLM", {**TEXT, **more}
    return Architecture("encoder", model, f"{name}Config", tokens, settings)


def _pair(name: str, **more: Any) -> Architecture:
    model, settings = f"{name}ForConditionalGeneration", {**PAIR, **more}
    return Architecture("encoder-decoder", model, f"{name}Config", tokens, settings)


def _image(family: str, name: str, base: dict[str, Any], **more: Any) -> Architecture:
    model, settings = f"{name}ForImageClassification", {**base, **more}
    return Architecture(family, model, f"{name}Config", images, settings)


def _waves(name: str, **more: Any) -> Architecture:
    model, settings = f"{name}ForSequenceClassification", {**WAVES, **more}
    return Architecture("audio", model, f"{name}Config", samples, settings)


EXPERTS = "mixture of experts"

ARCHITECTURES: dict[str, Architecture] = {
    "gpt2": Architecture(
        "decoder",
        "GPT2LMHeadModel",
        "GPT2Config",
        tokens,
        {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": VOCABULARY, "n_positions": 64},
    ),
    "gpt-neox": _text("decoder", "GPTNeoX", TEXT),
    "opt": _text("decoder", "OPT", TEXT, ffn_dim=128, word_embed_proj_dim=64),
    "bloom": _text(
        "decoder", "Bloom", {"vocab_size": VOCABULARY}, hidden_size=64, n_layer=2, n_head=4
    ),
    "llama": _text("decoder", "Llama", GROUPED),
    "mistral": _text("decoder", "Mistral", GROUPED),
    "qwen2": _text("decoder", "Qwen2", GROUPED),
    "qwen3": _text("decoder", "Qwen3", GROUPED, head_dim=16),
    "gemma": _text("decoder", "Gemma", GROUPED, head_dim=16),
    "gemma2": _text("decoder", "Gemma2", GROUPED, head_dim=16),
    "phi": _text("decoder", "Phi", TEXT),
    "phi3": _text("decoder", "Phi3", GROUPED),
    "stablelm": _text("decoder", "StableLm", GROUPED),
    "olmo": _text("decoder", "Olmo", GROUPED),
    "granite": _text("decoder", "Granite", GROUPED),
    "falcon": _text("decoder", "Falcon", TEXT),
    "mixtral": _text(EXPERTS, "Mixtral", GROUPED, num_local_experts=4),
    "qwen2-moe": _text(
        EXPERTS,
        "Qwen2Moe",
        GROUPED,
        num_experts=4,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
    ),
    "olmoe": _text(EXPERTS, "Olmoe", GROUPED, num_experts=4, num_experts_per_tok=2),
    "mamba": _text(
        "state space", "Mamba", {"vocab_size": VOCABULARY}, hidden_size=64, num_hidden_layers=2
    ),
    "mamba2": _text(
        "state space",
        "Mamba2",
        {"vocab_size": VOCABULARY},
        hidden_size=64,
        num_hidden_layers=2,
        num_heads=8,
        head_dim=16,
        state_size=16,
        n_groups=1,
        chunk_size=16,
    ),
    "recurrent-gemma": _text(
        "recurrent",
        "RecurrentGemma",
        GROUPED,
        lru_width=64,
        attention_window_size=32,
        use_cache=False,
    ),
    "bert": _masked("Bert"),
    "roberta": _masked("Roberta", max_position_embeddings=64),
    "albert": _masked("Albert", embedding_size=32),
    "electra": _masked("Electra", embedding_size=32),
    "deberta": _masked("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"]),
    "distilbert": _masked("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    "modernbert": _masked(
        "ModernBert", cls_token_id=1, sep_token_id=2, bos_token_id=1, eos_token_id=2
    ),
    "funnel": Architecture(
        "encoder",
        "FunnelForMaskedLM",
        "FunnelConfig",
        tokens,
        {
            "vocab_size": VOCABULARY,
            "block_sizes": [1, 1],
            "d_model": 64,
            "n_head": 4,
            "d_head": 16,
            "d_inner": 128,
        },
    ),
    "t5": Architecture(
        "encoder-decoder",
        "T5ForConditionalGeneration",
        "T5Config",
        tokens,
        {
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": VOCABULARY,
            "decoder_start_token_id": 0,
        },
    ),
    "bart": _pair("Bart"),
    "pegasus": _pair("Pegasus"),
    "whisper": Architecture(
        "audio",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        speech,
        {**PAIR, "num_mel_bins": 16, "max_source_positions": 32, "max_target_positions": 32},
    ),
    "wav2vec2": _waves("Wav2Vec2"),
    "hubert": _waves("Hubert"),
    "wavlm": _waves("WavLM"),
    "audio-spectrogram": Architecture(
        "audio",
        "ASTForAudioClassification",
        "ASTConfig",
        spectrogram,
        {
            **SMALL,
            "num_mel_bins": 16,
            "max_length": 64,
            "patch_size": 4,
            "frequency_stride": 4,
            "time_stride": 4,
        },
    ),
    "vit": _image("vision transformer", "ViT", VISION),
    "deit": _image("vision transformer", "DeiT", VISION),
    "beit": _image("vision transformer", "Beit", VISION),
    "swin": _image(
        "vision transformer",
        "Swin",
        {},
        image_size=32,
        patch_size=2,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
    ),
    "resnet": _image("convolutional", "ResNet", STAGES, embedding_size=16, layer_type="basic"),
    "convnext": _image("convolutional", "ConvNext", STAGES, num_stages=2, patch_size=2),
    "convnextv2": _image("convolutional", "ConvNextV2", STAGES, num_stages=2, patch_size=2),
    "regnet": _image("convolutional", "RegNet", STAGES, embedding_size=16, groups_width=8),
    "mobilenet-v2": _image(
        "convolutional", "MobileNetV2", {}, depth_multiplier=0.35, image_size=32
    ),
    "efficientnet": _image(
        "convolutional",
        "EfficientNet",
        {},
        image_size=32,
        in_channels=[32, 16],
        out_channels=[16, 24],
        kernel_sizes=[3, 3],
        strides=[1, 2],
        num_block_repeats=[1, 2],
        expand_ratios=[1, 6],
        depthwise_padding=[],
        hidden_dim=1280,
        width_coefficient=1.0,
        depth_coefficient=1.0,
    ),
    "segformer": Architecture(
        "segmentation",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        masks,
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [16, 32],
            "patch_sizes": [7, 3],
            "strides": [4, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "decoder_hidden_size": 32,
        },
    ),
    "glpn": Architecture(
        "depth estimation",
        "GLPNForDepthEstimation",
        "GLPNConfig",
        plain_images,
        {
            "num_encoder_blocks": 4,
            "depths": [1, 1, 1, 1],
            "hidden_sizes": [16, 16, 32, 32],
            "num_attention_heads": [1, 1, 2, 2],
            "decoder_hidden_size": 16,
        },
    ),
    "videomae": Architecture(
        "video",
        "VideoMAEForVideoClassification",
        "VideoMAEConfig",
        video,
        {**VISION, "patch_size": 8, "num_frames": 4, "tubelet_size": 2},
    ),
    "vivit": Architecture(
        "video",
        "VivitForVideoClassification",
        "VivitConfig",
        video,
        {**SMALL, "image_size": 32, "num_frames": 4, "tubelet_size": [2, 8, 8]},
    ),
    "timesformer": Architecture(
        "video",
        "TimesformerForVideoClassification",
        "TimesformerConfig",
        video,
        {**VISION, "patch_size": 8, "num_frames": 4},
    ),
    "unet": Architecture(
        "diffusion",
        "UNet2DModel",
        "",
        noisy_images,
        {
            "sample_size": 16,
            "layers_per_block": 1,
            "block_out_channels": (16, 32),
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "norm_num_groups": 4,
            "attention_head_dim": 8,
        },
    ),
    "conditional-unet": Architecture(
        "diffusion",
        "UNet2DConditionModel",
        "",
        conditioned_images,
        {
            "sample_size": 16,
            "layers_per_block": 1,
            "block_out_channels": (16, 32),
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
            "norm_num_groups": 4,
            "cross_attention_dim": 32,
            "attention_head_dim": 8,
        },
    ),
    "dit": Architecture(
        "diffusion",
        "DiTTransformer2DModel",
        "",
        noisy_classes,
        {
            "num_attention_heads": 4,
            "attention_head_dim": 16,
            "in_channels": 4,
            "out_channels": 4,
            "num_layers": 2,
            "sample_size": 16,
            "num_embeds_ada_norm": 10,
            "norm_num_groups": 4,
        },
    ),
    "sd3": Architecture(
        "diffusion",
        "SD3Transformer2DModel",
        "",
        captioned_latents,
        {
            "sample_size": 16,
            "patch_size": 2,
            "in_channels": 4,
            "num_layers": 2,
            "attention_head_dim": 16,
            "num_attention_heads": 4,
            "joint_attention_dim": 32,
            "caption_projection_dim": 64,
            "pooled_projection_dim": 64,
            "out_channels": 4,
            "pos_embed_max_size": 16,
        },
    ),
    "vae": Architecture(
        "diffusion",
        "AutoencoderKL",
        "",
        whole_images,
        {
            "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
            "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
            "block_out_channels": (16, 32),
            "norm_num_groups": 4,
            "sample_size": 32,
        },
    ),
}
