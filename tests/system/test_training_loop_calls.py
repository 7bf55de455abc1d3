"""Planning on the fly in loops that call the model in many ways, or wrap, copy and watch it."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode
from training_loops import MIB, Run, batches, both, budget_of, check, mean_square, stack, train

import planner
from planner.errors import InvalidInputsError, InvalidModelError
from planner.memory.meter import meter_for, step_tensors
from planner.online.recompute_all import block_spans

pytestmark = pytest.mark.usefixtures("loop_leaves_nothing")


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_removed_at_any_moment(steps: int) -> None:
    plain = train(stack(), batches())
    model = stack()
    hooks = len(model._forward_hooks) + len(model._forward_pre_hooks)
    handle = planner.apply(model, budget_mb=budget_of(plain) / MIB)
    if steps:
        model.train()
        torch.manual_seed(1)
        for x in batches()[: steps - 1]:
            mean_square(model, x).backward()
        loss = mean_square(model, batches()[-1])
        handle.remove()
        assert not _get_current_function_mode_stack()
        loss.backward()
    handle.remove()
    assert len(model._forward_hooks) + len(model._forward_pre_hooks) == hooks
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    model(batches()[0]).sum().backward()


def test_gradients_that_add_up_are_counted() -> None:
    def run(budget: int | None) -> Run:
        model, found = stack(), Run()
        if budget is not None:
            found.handle = planner.apply(model, budget_mb=budget / MIB)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.manual_seed(1)
        for number, x in enumerate(batches(count=9)):
            with meter_for("cpu", step_tensors(model, optimizer, (x,))) as meter:
                loss = mean_square(model, x) / 3
                loss.backward()
                if number % 3 == 2:
                    optimizer.step()
                    optimizer.zero_grad()
            found.losses.append(loss.item())
            found.peaks.append(meter.peak_bytes)
        return found

    plain = run(None)
    budget = int(max(plain.peaks) * 0.85)
    check(run(budget), plain, budget)


def test_the_model_is_called_twice_in_a_step() -> None:
    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        one = model(x)
        return (one - model(x * 2)).square().mean() + model[0].up.weight.square().mean()

    run, plain, budget = both(loss_of=loss_of)
    check(run, plain, budget)
    assert run.handle is not None and run.handle.plan is not None
    assert run.handle.plan.step.root_calls == 2


def test_a_loop_that_looks_at_its_loss() -> None:
    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        out[:, 0] = 0
        loss = nn.functional.mse_loss(out, x[..., :8])
        total = loss.detach().clone()
        assert loss.item() == total.item() and torch.isfinite(loss).all() and loss < 1e9
        loss *= 2
        return loss / loss.numel()

    run, plain, budget = both(loss_of=loss_of)
    check(run, plain, budget)


def test_the_step_runs_inside_the_optimizers_update() -> None:
    def run(budget: int | None = None) -> Run:
        model, found = stack(), Run()
        if budget is not None:
            found.handle = planner.apply(model, budget_mb=budget / MIB)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        torch.manual_seed(1)
        for x in batches():

            def closure(x: torch.Tensor = x) -> torch.Tensor:
                optimizer.zero_grad()
                loss = mean_square(model, x)
                loss.backward()
                found.losses.append(loss.item())
                return loss

            with meter_for("cpu", step_tensors(model, optimizer, (x,))) as meter:
                optimizer.step(closure)
            found.peaks.append(meter.peak_bytes)
        return found

    plain = run()
    budget = budget_of(plain)
    check(run(budget), plain, budget)


def test_the_model_calls_itself() -> None:
    class Refining(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.back = stack(), nn.Linear(8, 32)

        def forward(self, x: torch.Tensor, again: bool = True) -> torch.Tensor:
            if again:
                with torch.no_grad():
                    self(torch.cat([x, x]), again=False)
                x = x + self.back(self(x[:64], again=False).repeat(2, 1))
            found: torch.Tensor = self.body(x)
            return found

    def run(budget: int | None = None) -> Run:
        torch.manual_seed(0)
        return train(Refining(), batches(), budget=budget)

    plain = run()
    budget = budget_of(plain, 0.8)
    check(run(budget), plain, budget)


def test_the_model_sits_inside_a_module() -> None:
    class Task(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = stack(), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = nn.functional.mse_loss(self.head(self.net(x)), x[:, :8])
            return found

    def run(share: float | None, most: int = 0) -> Run:
        task = Task()
        handle = None if share is None else planner.apply(task.net, budget_mb=most * share / MIB)
        found = train(task, batches(), lambda model, x: model(x))
        found.handle = handle
        return found

    plain = run(None)
    budget = int(plain.peaks[-1] * 0.75)
    check(run(0.75, plain.peaks[-1]), plain, budget)


def test_autocast_as_in_the_loop() -> None:
    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        return nn.functional.mse_loss(out.float(), x[..., :8])

    run, plain, budget = both(loss_of=loss_of)
    check(run, plain, budget)
    assert run.handle is not None and run.handle.plan is not None
    assert run.handle.plan.step.autocast == "bfloat16"


def test_modes_of_the_loop_come_and_go() -> None:
    class Passing(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    class Below(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        with torch.device("cpu"), Passing(), Below():
            out = model(x)
        with torch.device("cpu"), Passing():
            return nn.functional.mse_loss(out, x[..., :8])

    torch.set_default_device("cpu")
    try:
        both(loss_of=loss_of)
    finally:
        torch.set_default_device(None)
    run, plain, budget = both(loss_of=loss_of)
    check(run, plain, budget)


def test_hooks_and_counters_notice_nothing() -> None:
    seen: list[float] = []
    calls = 0

    def log(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        _seen_shapes.append(output.shape)
        seen.append(output.mean().item())

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.calls, self.shapes = stack(), 0, {}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.shapes[self.calls] = x.shape
            found: torch.Tensor = self.body(x)
            return found

    torch.manual_seed(0)
    model = Counting()
    norm = nn.BatchNorm1d(32)
    model.body.insert(2, norm)
    nn.utils.parametrizations.weight_norm(model.body[-1])
    model.body[1].register_forward_hook(log)
    _seen_shapes.clear()
    updates: list[int] = []
    everywhere = register_optimizer_step_post_hook(lambda *found: updates.append(1))
    try:
        run = train(model, batches(), budget=2 * MIB)
    finally:
        everywhere.remove()
    assert run.handle is not None and run.handle.plan is not None and len(updates) == 5
    assert model.calls == len(model.shapes) == calls == len(_seen_shapes) == len(seen) == 5
    assert norm.num_batches_tracked is not None and norm.num_batches_tracked.item() == 5
    assert all(value == value for value in seen)


_seen_shapes: list[Any] = []


def test_a_copy_keeps_the_plan_at_work_and_trains_on() -> None:
    plain = train(stack(), batches())
    model = stack()
    budget = budget_of(plain)
    run = train(model, batches()[:2], budget=budget)
    assert run.handle is not None
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ]
    run.handle.remove()
    x = batches()[0]
    torch.manual_seed(4)
    expected = mean_square(model, x)
    for other in copies:
        torch.manual_seed(4)
        model.zero_grad(), other.zero_grad()
        found = mean_square(other, x)
        found.backward()
        assert found.item() == expected.item()
        with pytest.raises(InvalidModelError, match="applied to this model already"):
            planner.apply(other, budget_mb=10)


def test_what_apply_takes() -> None:
    model = stack()
    with pytest.raises(InvalidInputsError, match="either a plan or a budget"):
        planner.apply(model)  # type: ignore[call-overload]
    with pytest.raises(InvalidModelError, match="no torch.nn.Module"):
        planner.apply(nn.Linear, budget_mb=3)  # type: ignore[call-overload]
    with planner.apply(model, budget_mb="50%") as handle:
        with pytest.raises(InvalidModelError, match="applied to this model already"):
            planner.apply(model, budget_mb=3)
        with pytest.raises(InvalidInputsError, match="its own budget"):
            planner.apply(model, "plan.json", budget_mb=3)  # type: ignore[call-overload]
        for x in batches()[:2]:
            mean_square(model, x).backward()
        assert handle.plan is not None
        assert handle.plan.budget_bytes == handle.plan.plain_peak_bytes // 2


def test_blocks_of_models_of_many_shapes() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2)
    model = nn.Module()
    model.embed, model.norm, model.encoder = nn.Linear(2, 8), nn.LayerNorm(8), encoder
    assert list(block_spans(model)) == [
        ("embed", "norm"),
        ("encoder.layers.0", "encoder.layers.0"),
        ("encoder.layers.1", "encoder.layers.1"),
    ]
