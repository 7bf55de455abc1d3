"""Profiles made without running the step: the same memory facts as those of a step that ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from daily import nightly_but
from torch import nn

import planner
from planner.documents import Profile
from planner.errors import InvalidModelError, StepError
from planner.estimate.cost_model import CostModel
from planner.estimate.devices import device_spec
from planner.estimate.fake_profile import build_fake_profile
from planner.memory.peak import peak_of
from planner.profiler.build import build_profile
from planner.training_step.step import make_step

transformers = pytest.importorskip("transformers")
Built = tuple[nn.Module, dict[str, torch.Tensor]]
COSTS = CostModel(device_spec("cpu"))


def _ids(model: nn.Module) -> Built:
    ids = torch.randint(0, 500, (2, 32))
    return model.train(), {"input_ids": ids, "labels": ids}


def _pixels(model: nn.Module) -> Built:
    return model.train(), {
        "pixel_values": torch.randn(2, 3, 64, 64),
        "labels": torch.zeros(2).long(),
    }


def gpt2() -> Built:
    config = transformers.GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=500, n_positions=64)
    return _ids(transformers.GPT2LMHeadModel(config))


def llama() -> Built:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=500,
    )
    return _ids(transformers.LlamaForCausalLM(config))


def bert() -> Built:
    config = transformers.BertConfig(
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        vocab_size=500,
    )
    return _ids(transformers.BertForMaskedLM(config))


def vit() -> Built:
    config = transformers.ViTConfig(
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=64,
        patch_size=8,
    )
    return _pixels(transformers.ViTForImageClassification(config))


def resnet() -> Built:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2])
    return _pixels(transformers.ResNetForImageClassification(config))


def t5() -> Built:
    config = transformers.T5Config(
        d_model=64,
        d_ff=128,
        d_kv=16,
        num_layers=2,
        num_heads=4,
        vocab_size=500,
        decoder_start_token_id=0,
    )
    return _ids(transformers.T5ForConditionalGeneration(config))


NUMBERS_BYTES = 8 * 8
"""Numbers that C++ code wraps in tensors (`x * 0.5`) take 8 bytes each, which only a run shows."""

MODELS = [gpt2, llama, bert, vit, resnet, t5]


def both(built: Built, **arguments: Any) -> tuple[Profile, Profile]:
    """The profile of a step that ran, and of one that did not."""
    step = make_step(built[0], inputs=built[1], **arguments)
    return build_profile(step), build_fake_profile(step, COSTS)


def memory_facts(profile: Profile) -> list[Any]:
    """What the ops' tensors do; a kernel's own workspaces show only where it runs."""
    flow = [(o.name, o.unit, o.phase, o.inputs, o.outputs, o.replayable) for o in profile.ops]
    shown = {value.storage for value in profile.values}
    storages = [
        (number, storage)
        for number, storage in enumerate(profile.storages)
        if number in shown or storage.birth < 0 or storage.category != "activation"
    ]
    return [flow, storages, profile.saved, profile.values, profile.units]


def peak_of_tensors(profile: Profile) -> int:
    """The plain peak without what kernels take inside themselves."""
    storages = [storage for _, storage in memory_facts(profile)[1]]
    return peak_of(storages, len(profile.ops))


@pytest.mark.parametrize("build", nightly_but((gpt2, resnet), MODELS))
def test_a_fake_step_shows_the_memory_of_a_real_one(build: Callable[[], Built]) -> None:
    real, fake = both(build())
    assert memory_facts(fake) == memory_facts(real)
    assert peak_of_tensors(fake) == peak_of_tensors(real) <= real.plain_peak_bytes
    assert 0 <= real.plain_peak_bytes - fake.plain_peak_bytes <= NUMBERS_BYTES
    assert all(op.time_ns > 0 for op in fake.ops)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("foreach", [True, False])
def test_the_optimizer_counts(kind: Any, foreach: bool) -> None:
    model, inputs = (
        nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)),
        {"input": torch.randn(8, 16)},
    )
    optimizer = kind(model.parameters(), lr=1e-3, foreach=foreach)
    real, fake = both((model, inputs), optimizer=optimizer)
    assert memory_facts(fake) == memory_facts(real)
    assert peak_of_tensors(fake) == peak_of_tensors(real) <= real.plain_peak_bytes
    assert 0 <= real.plain_peak_bytes - fake.plain_peak_bytes <= NUMBERS_BYTES
    assert not optimizer.state
    optimizer.zero_grad()
    model(inputs["input"]).sum().backward()
    optimizer.step()  # from here on there is state
    optimizer.zero_grad()
    before = {key: id(value) for state in optimizer.state.values() for key, value in state.items()}
    real, fake = both((model, inputs), optimizer=optimizer)
    assert memory_facts(fake) == memory_facts(real)
    after = {key: id(value) for state in optimizer.state.values() for key, value in state.items()}
    assert after == before


def test_autocast_counts() -> None:
    model, inputs = llama()

    def step(model: nn.Module) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(**inputs).loss
        loss.backward()

    made = make_step(model, step=step)
    real, fake = build_profile(made), build_fake_profile(made, COSTS)
    assert fake.step == real.step
    assert memory_facts(fake) == memory_facts(real)


def test_the_model_is_left_as_it_was() -> None:
    model, inputs = gpt2()
    before = [(name, id(tensor), tensor._version) for name, tensor in model.state_dict().items()]
    random = torch.get_rng_state()
    parameters = list(model.parameters())
    build_fake_profile(make_step(model, inputs=inputs), COSTS)
    after = [(name, tensor._version) for name, tensor in model.state_dict().items()]
    assert after == [(name, version) for name, _, version in before]
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in parameters)
    assert torch.equal(torch.get_rng_state(), random)


def test_shared_parameters_and_tensors_outside_the_tables_stay_shared() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
            self.head.weight = self.embed.weight
            self.table = {"scale": torch.rand(16)}
            self.gru = nn.GRU(16, 16, batch_first=True)  # lists its weights a second time

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.head(self.gru(self.embed(ids))[0] * self.table["scale"])
            return found

    real, fake = both((Tied(), {"ids": torch.randint(0, 50, (2, 8))}))
    assert fake.plain_peak_bytes == real.plain_peak_bytes


def test_a_workspace_of_unknown_size_is_noted() -> None:
    plan = planner.plan(nn.LSTM(8, 8), inputs=torch.ones(4, 2, 8), budget_mb="100%", device="cpu")
    assert any("mkldnn_rnn_layer" in note for note in plan.notes)


def test_an_optimizer_in_backward_is_refused() -> None:
    layer = nn.Linear(4, 4)
    layer.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(InvalidModelError, match="hook"):
        build_fake_profile(make_step(layer, inputs=torch.ones(1, 4)), COSTS)
    assert type(layer.weight) is nn.Parameter


class Reads(nn.Module):
    """Hands its memory to a kernel that torch does not know, as a library might."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.data_ptr()
        return x * 2


@pytest.mark.parametrize("capped", [True, False])
def test_an_error_that_only_stand_ins_raise_is_told_from_the_steps_own(capped: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Reads())
    x = torch.ones(2, 4)
    with pytest.raises(StepError, match="tensors without memory") as caught:
        if capped:
            planner.plan(model, budget_mb="80%", inputs=x, search=planner.Capped())
        else:
            planner.profile(model, inputs=x, device="h100")
    error = caught.value
    assert "forward of Sequential" in error.what and "Cannot access data pointer" in error.cause
    assert "Capped" in error.fix and isinstance(error.__cause__, StepError)


class Choosy(nn.Module):
    """Looks at its data to decide."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x)
        return found if bool((x > 0).all()) else -found


def test_an_op_that_needs_content_is_named() -> None:
    step = make_step(Choosy(), inputs=torch.ones(2, 4))
    with pytest.raises(StepError, match="_local_scalar_dense") as caught:
        build_fake_profile(step, COSTS)
    assert "needs the content of a tensor" in caught.value.what
    assert caught.value.cause and caught.value.fix
    assert step.run(copy_outputs=True)[0].shape == (2, 4)
