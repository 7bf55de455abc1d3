"""`preserve`: after a training step everything is as it was, to the bit and to the object."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from busy_model import Busy, everything_in
from torch import nn

from planner.errors import StepError
from planner.memory.meter import CpuMeter, step_tensors
from planner.training_step import state_tensors
from planner.training_step.state import preserve
from planner.training_step.step import make_step


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def copy_of(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def all_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def tensor_ids(model: nn.Module) -> list[int]:
    return [id(tensor) for tensor in (*model.parameters(), *model.buffers())]


X = torch.arange(12.0).view(4, 3)


def test_a_plain_step_leaves_no_trace():
    model = small()
    before, objects = copy_of(model.state_dict()), tensor_ids(model)
    with preserve(model):
        make_step(model, inputs=X).run()
        assert not all_equal(model.state_dict(), before)
    assert all_equal(model.state_dict(), before)
    assert tensor_ids(model) == objects
    assert all(parameter.grad is None for parameter in model.parameters())


def test_two_steps_compute_the_same():
    model, found = small(), []
    step = make_step(model, inputs=X, optimizer=torch.optim.Adam(model.parameters()))
    for _ in range(2):
        with preserve(model, step=step):
            (output,) = step.run(copy_outputs=True)
            gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
            found.append(gradients | {"output": output.clone()} | copy_of(model.state_dict()))
    assert all_equal(*found)


def test_existing_gradients_come_back_as_the_same_objects():
    model = small()
    make_step(model, inputs=X).run()
    model[3].bias.grad = None
    objects = [parameter.grad for parameter in model.parameters()]
    before = copy_of({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    with preserve(model):
        make_step(model, inputs=X).run()
        model.zero_grad()
        make_step(model, inputs=X).run()
    assert all(a.grad is b for a, b in zip(model.parameters(), objects, strict=True))
    assert all_equal(before, {n: p.grad for n, p in model.named_parameters() if p.grad is not None})


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("stepped_before", [True, False])
def test_an_optimizer_and_parameters_come_back(name: str, stepped_before: bool):
    model = small()
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
    step = make_step(model, inputs=X, optimizer=optimizer)
    if stepped_before:
        step.run()
        model.zero_grad()
    parameters = copy_of(model.state_dict())
    states = {
        (i, key): value.clone()
        for i, state in enumerate(optimizer.state.values())
        for key, value in state.items()
        if isinstance(value, torch.Tensor)
    }
    objects = {id(value) for state in optimizer.state.values() for value in state.values()}
    with preserve(model, optimizer):
        step.run()
        optimizer.param_groups[0]["lr"] = 7
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        assert not all_equal(model.state_dict(), parameters)
    assert all_equal(model.state_dict(), parameters)
    assert optimizer.param_groups[0]["lr"] == 0.1 and len(optimizer.param_groups) == 1
    assert {id(v) for state in optimizer.state.values() for v in state.values()} == objects
    for i, state in enumerate(optimizer.state.values()):
        for key, value in state.items():
            assert torch.equal(value, states[i, key]) if isinstance(value, torch.Tensor) else True


def test_a_users_own_step_may_write_parameters():
    model = small()

    def own(given):
        given(X).sum().backward()
        with torch.no_grad():
            for parameter in given.parameters():
                parameter.sub_(parameter.grad)
                parameter.data = parameter.data * 2

    before = copy_of(model.state_dict())
    for step in (own, make_step(model, step=own)):
        with preserve(model, step=step):
            own(model)
        assert all_equal(model.state_dict(), before)


def test_a_forward_that_changes_everything():
    model = Busy()
    before, objects = everything_in(model), {name: id(v) for name, v in vars(model).items()}
    with preserve(model):
        make_step(model, inputs=X).run()
        changed = everything_in(model)
    public = {name for name in before if not name.startswith("_")}
    assert {name for name in public if changed[name] == before[name]} == set()
    assert everything_in(model) == before
    assert {name: id(v) for name, v in vars(model).items()} == objects


def test_after_an_error_as_well():
    model = Busy()
    before = everything_in(model)

    def fails(output):
        raise ValueError

    with pytest.raises(StepError), preserve(model):
        make_step(model, inputs=X, loss_fn=fails).run()
    assert everything_in(model) == before


def test_inputs_come_back():
    class Greedy(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x, extra):
            x.add_(1)
            extra.pop("y")
            return self.layer(x)

    x, extra = torch.zeros(2, 3), {"y": torch.ones(1)}
    model = Greedy()
    step = make_step(model, inputs=(x, extra))
    for _ in range(2):
        with preserve(model, step=step):
            step.run()
        assert torch.equal(x, torch.zeros(2, 3)) and list(extra) == ["y"]

    x = torch.zeros(2, 3, requires_grad=True)
    step = make_step(nn.Linear(3, 1), inputs=x)
    with preserve(step.model, step=step):
        step.run()
        assert x.grad is not None
    assert x.grad is None


def test_requires_grad_and_frozen_flags_come_back():
    model = small()
    with preserve(model):
        model.requires_grad_(False)
        model[0].weight.requires_grad_(True)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_casts_and_moves_in_place_come_back():
    model = small()
    before, objects = copy_of(model.state_dict()), tensor_ids(model)
    with preserve(model):
        model.half()
    assert all_equal(model.state_dict(), before)
    assert tensor_ids(model) == objects
    with preserve(model):
        del model[0]
        model[0] = nn.Linear(1, 1)
    assert all_equal(model.state_dict(), before)


def test_freed_and_refilled_storages_come_back():
    model = small()
    before = copy_of(model.state_dict())
    with preserve(model):
        model[0].weight.untyped_storage().resize_(0)
    assert all_equal(model.state_dict(), before)


def test_random_generators_and_grad_mode_come_back():
    model = small()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = (torch.rand(1), random.random(), np.random.rand())
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    with preserve(model):
        torch.rand(5), random.random(), np.random.rand()
        torch.set_grad_enabled(False)
    assert torch.is_grad_enabled()
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def test_unchanged_tensors_are_not_written():
    model = small()
    versions = [p._version for p in model.parameters()]
    with preserve(model, torch.optim.SGD(model.parameters())):
        make_step(model, inputs=X).run()
    assert [p._version for p in model.parameters()] == versions


def test_a_backward_pending_outside_still_works():
    model = small().eval()
    loss = model(X).sum()
    with preserve(model):
        make_step(model, inputs=X).run()
    loss.backward()
    assert model[0].weight.grad is not None


def test_nan_is_nothing_special():
    model = small()
    model[1].running_mean.fill_(float("nan"))
    with preserve(model):
        model[1].running_mean.fill_(0)
    assert model[1].running_mean.isnan().all()


class WritesItself(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        self.teacher.weight.data.mul_(0.9).add_(self.student.weight.data, alpha=0.1)
        return self.student(x) - self.teacher(x).detach()


def test_a_forward_that_writes_small_parameters_is_undone():
    model = WritesItself()
    before = copy_of(model.state_dict())
    with preserve(model):
        make_step(model, inputs=torch.ones(1, 64)).run()
    assert all_equal(model.state_dict(), before)


def test_a_forward_that_writes_large_parameters_is_refused(monkeypatch):
    monkeypatch.setattr(state_tensors, "SPARE_COPY_BYTES", 1000)
    model = WritesItself()
    step = make_step(model, inputs=torch.ones(1, 64))
    with pytest.raises(StepError, match=r"teacher\.weight") as caught, preserve(model):
        step.run()
    assert "student" not in str(caught.value) and "step=fn" in caught.value.fix
    assert model.student.weight.grad is None

    before = copy_of(model.state_dict())
    with preserve(model, step=lambda model: None):
        step.run()
    assert all_equal(model.state_dict(), before)


def test_large_parameters_are_not_copied_in_a_plain_step(monkeypatch):
    monkeypatch.setattr(state_tensors, "SPARE_COPY_BYTES", 1000)
    copied = []
    take = state_tensors._Content.take
    monkeypatch.setattr(
        state_tensors._Content,
        "take",
        lambda self, *, copy: (take(self, copy=copy), copied.append((self.label, copy))),
    )
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))
    with preserve(model):
        make_step(model, inputs=torch.ones(2, 64)).run()
    assert ("0.weight", False) in copied and ("1.running_mean", True) in copied


def test_the_snapshot_is_not_part_of_a_measurement():
    model = small()
    with CpuMeter(step_tensors(model)) as meter:
        with preserve(model, torch.optim.SGD(model.parameters())):
            pass
        assert meter.peak_bytes == meter.baseline_bytes


def test_meta_models_and_shared_and_sparse_tensors():
    with preserve(small().to("meta")):
        pass
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    tied[1].weight = tied[0].weight
    before = tied[0].weight.clone()
    with preserve(tied):
        tied[0].weight.data.zero_()
    assert torch.equal(tied[1].weight, before) and tied[1].weight is tied[0].weight

    model = nn.Linear(3, 3)
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    with preserve(model):
        model.sparse._values().mul_(2)
    assert torch.equal(model.sparse.to_dense(), torch.eye(3))


def test_models_of_a_library():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=20, n_positions=8)
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.tensor([[1, 2, 3]])
    step = make_step(
        model,
        inputs={"input_ids": ids, "labels": ids},
        optimizer=torch.optim.AdamW(model.parameters()),
    )
    before = copy_of(model.state_dict())
    with preserve(model, step=step):
        step.run()
        assert not all_equal(model.state_dict(), before)
    assert all_equal(model.state_dict(), before)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda_it_holds_no_device_memory():
    model = small().cuda()
    step = make_step(model, inputs=X.cuda(), optimizer=torch.optim.Adam(model.parameters()))
    before, live = copy_of(model.state_dict()), torch.cuda.memory_allocated()
    state = torch.cuda.get_rng_state()
    with preserve(model, step=step):
        assert torch.cuda.memory_allocated() == live
        step.run()
    assert all_equal(model.state_dict(), before)
    assert torch.equal(torch.cuda.get_rng_state(), state)
