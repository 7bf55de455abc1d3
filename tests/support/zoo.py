"""Models that nobody here wrote, small and with random weights, and what tests ask of any model.

Used by the tests of the whole way, in `tests/system/`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    Attributes:
        make: builds the model and its inputs; needs `library`.
        block: the class of what users checkpoint.
    """

    make: Callable[[], tuple[nn.Module, Inputs]]
    block: str
    library: str = "transformers"

    def build(self) -> tuple[nn.Module, Inputs]:
        """Return the model in train mode and its inputs, the same each time."""
        torch.manual_seed(0)
        model, inputs = self.make()
        return model.train(), inputs


def tokens(batch: int = 2, length: int = 64) -> Inputs:
    """Return token ids below 100, which are the labels too."""
    ids = torch.randint(0, 100, (batch, length))
    return {"input_ids": ids, "labels": ids}


def gpt2(layers: int = 3, dropout: float = 0.1) -> tuple[nn.Module, Inputs]:
    """Return a GPT-2 of width 64."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=64,
        n_head=4,
        vocab_size=100,
        n_positions=64,
        use_cache=False,
        resid_pdrop=dropout,
        attn_pdrop=dropout,
        embd_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config), tokens()


def llama(layers: int = 2) -> tuple[nn.Module, Inputs]:
    """Return a Llama of width 64 with grouped queries and attention dropout."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=100,
        attention_dropout=0.1,
        use_cache=False,
    )
    return LlamaForCausalLM(config), tokens()


def bert() -> tuple[nn.Module, Inputs]:
    """Return a BERT with a masked-language head."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=100,
    )
    return BertForMaskedLM(config), tokens()


def t5() -> tuple[nn.Module, Inputs]:
    """Return a T5: an encoder whose output every decoder block reads."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=64,
        d_kv=16,
        d_ff=128,
        num_layers=2,
        num_heads=4,
        vocab_size=100,
        decoder_start_token_id=0,
    )
    return T5ForConditionalGeneration(config), tokens()


def vit() -> tuple[nn.Module, Inputs]:
    """Return a ViT with 64 patches."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=32,
        patch_size=4,
        hidden_dropout_prob=0.1,
    )
    images = torch.randn(4, 3, 32, 32)
    return ViTForImageClassification(config), _labelled(images)


def resnet() -> tuple[nn.Module, Inputs]:
    """Return a ResNet: BatchNorm and in-place ReLU."""
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[2, 2], layer_type="basic"
    )
    return ResNetForImageClassification(config), _labelled(torch.randn(8, 3, 64, 64))


def unet() -> tuple[nn.Module, Inputs]:
    """Return a diffusion U-Net: skips from the way down to the way up."""
    from diffusers import UNet2DModel

    model = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        attention_head_dim=8,
    )
    return model, {"sample": torch.randn(2, 3, 16, 16), "timestep": torch.tensor([1, 2])}


def convnext() -> tuple[nn.Module, Inputs]:
    """Return a ConvNeXt: depthwise convolutions, whose kernels take scratch memory."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[16, 32], depths=[2, 2], num_stages=2, patch_size=2)
    return ConvNextForImageClassification(config), _labelled(torch.randn(4, 3, 32, 32))


def mixtral() -> tuple[nn.Module, Inputs]:
    """Return a Mixtral: experts, each with the tokens that are routed to it."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        vocab_size=100,
    )
    return MixtralForCausalLM(config), tokens()


def wav2vec2() -> tuple[nn.Module, Inputs]:
    """Return a wav2vec 2.0: convolutions over samples, then transformer layers."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    config = Wav2Vec2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=(16, 16, 16),
        conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 3),
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,
        layerdrop=0.0,
    )
    values = torch.randn(2, 4000)
    return Wav2Vec2ForSequenceClassification(config), {
        "input_values": values,
        "labels": torch.tensor([0, 1]),
    }


def _labelled(images: Tensor) -> Inputs:
    return {"pixel_values": images, "labels": torch.arange(len(images)) % 2}


ZOO = {
    "gpt2": Entry(gpt2, "GPT2Block"),
    "llama": Entry(llama, "LlamaDecoderLayer"),
    "bert": Entry(bert, "BertLayer"),
    "t5": Entry(t5, "T5Block"),
    "vit": Entry(vit, "ViTLayer"),
    "resnet": Entry(resnet, "ResNetBasicLayer"),
    "unet": Entry(unet, "ResnetBlock2D", "diffusers"),
    "convnext": Entry(convnext, "ConvNextLayer"),
    "mixtral": Entry(mixtral, "MixtralDecoderLayer"),
    "wav2vec2": Entry(wav2vec2, "Wav2Vec2EncoderLayer"),
}


def loss_of(output: Any) -> Tensor:
    """Return the output's loss, or the sum of what it holds."""
    loss = getattr(output, "loss", None)
    if isinstance(loss, Tensor):
        return loss
    return (output if isinstance(output, Tensor) else output[0]).sum()


def checkpoint_blocks(model: nn.Module, block: str) -> nn.Module:
    """Put torch's checkpoint around every block of a class."""
    for module in model.modules():
        if type(module).__name__ == block:
            module.forward = partial(checkpoint, module.forward, use_reentrant=False)
    return model


class Block(nn.Module):
    """Linear, BatchNorm, GELU, Dropout around a residual: statistics and randomness."""

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(dropout)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """Count the call, so that a second one is seen."""
        self.calls += 1
        return x + self.drop(nn.functional.gelu(self.norm(self.linear(x))))


class Net(nn.Module):
    """A stack of blocks with a head of one."""

    def __init__(self, blocks: int = 6, width: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Run the blocks one after the other."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def small_net(**how: Any) -> tuple[Net, Tensor]:
    """Return a `Net` in train mode and its input, the same each time."""
    torch.manual_seed(0)
    net = Net(**how).train()
    return net, torch.randn(256, net.head.in_features)


class OpCount(TorchDispatchMode):
    """Counts the aten ops under it, by name without `aten.` and overload."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Count the op and run it."""
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Trained:
    """What a training step left behind."""

    loss: Tensor
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    counts: Counter[str] = field(default_factory=Counter)

    def same_as(self, other: Trained) -> bool:
        """Whether loss, gradients and buffers are the same, bit for bit."""
        return (
            equal(self.loss, other.loss)
            and same_tensors(self.gradients, other.gradients)
            and same_tensors(self.buffers, other.buffers)
        )


def train_once(model: nn.Module, run: Callable[[nn.Module], Any], seed: int = 7) -> Trained:
    """Run one step from empty gradients and a known random state; keep what it computed."""
    model.zero_grad(set_to_none=True)
    seed_all(seed)
    with OpCount() as ops:
        loss = run(model)
    return Trained(
        loss.detach().clone(),
        {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
        {n: b.clone() for n, b in model.named_buffers()},
        ops.counts,
    )


def step_on(inputs: Any) -> Callable[[nn.Module], Tensor]:
    """Return a step on tensors or keyword inputs; its output is released once the loss exists."""

    def run(model: nn.Module) -> Tensor:
        loss = loss_of(model(**inputs) if isinstance(inputs, dict) else model(inputs))
        loss.backward()
        return loss

    return run


def seed_all(seed: int) -> None:
    """Seed torch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed)


def equal(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether two tensors agree bit for bit; NaNs count as equal."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and bool(torch.equal(_bits(a), _bits(b)))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def same_tensors(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two dicts hold the same tensors under the same names, bit for bit."""
    return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)


@contextmanager
def untouched(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Assert that everything about the model, and the random state, is as before."""
    before, random_before = snapshot(model, optimizer), random_states()
    yield
    after = snapshot(model, optimizer)
    assert before.keys() == after.keys()
    changed = [k for k in before if not _same(before[k], after[k])]
    assert not changed, f"changed: {changed[:5]}"
    assert [equal(a, b) for a, b in zip(random_before, random_states(), strict=True)] == [True] * 3


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Return all that a tool must leave alone: identities, contents, flags, hooks, attributes."""
    seen: dict[str, Any] = {"class": type(model), "keys": list(model.state_dict())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        seen[f"{name} id"] = (id(tensor), tensor.data_ptr(), tensor.requires_grad)
        seen[name] = tensor.detach().clone()
        seen[f"{name} grad id"] = id(tensor.grad)
        seen[f"{name} grad"] = None if tensor.grad is None else tensor.grad.clone()
    for name, module in model.named_modules():
        seen[f"{name} module"] = (id(module), type(module), module.training, sorted(vars(module)))
        hooks = {k: list(v.values()) for k, v in vars(module).items() if k.endswith("_hooks")}
        seen[f"{name} hooks"] = hooks
        plain = (int, float, str, bool, type(None))
        seen[f"{name} values"] = {k: v for k, v in vars(module).items() if isinstance(v, plain)}
    for number, state in enumerate(optimizer.state.values() if optimizer is not None else ()):
        for key, value in state.items():
            seen[f"optimizer {number} {key}"] = torch.as_tensor(value).clone()
    return seen


def _same(a: Any, b: Any) -> bool:
    tensors = isinstance(a, Tensor) and isinstance(b, Tensor)
    return equal(a, b) if tensors else bool(a == b)


def random_states() -> list[Tensor]:
    """Return the random states of torch, Python and NumPy as bytes."""
    states = (repr(random.getstate()), repr(numpy.random.get_state(legacy=False)["state"]))
    packed = [torch.tensor(list(state.encode()), dtype=torch.uint8) for state in states]
    return [torch.get_rng_state(), *packed]
