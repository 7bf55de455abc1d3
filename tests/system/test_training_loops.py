"""Planning on the fly: which steps are planned, and what happens where a plan cannot be made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from training_loops import MIB, batches, budget_of, mean_square, stack, train

import planner
from planner.errors import ReplayError
from planner.replay import digest, generators

pytestmark = pytest.mark.usefixtures("loop_leaves_nothing")


def test_evaluation_in_between_does_not_count() -> None:
    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            model(torch.cat([x, x, x]))
        model(torch.cat([x, x])[:, :32])  # with gradients, and dropped
        model.train()
        out = model(x)
        with torch.no_grad():
            (out > 0).float().mean().item()
        return nn.functional.mse_loss(out, x[..., :8])

    plain = train(stack(), batches())
    run = train(stack(), batches(), loss_of, budget_of(plain))
    assert run.losses == plain.losses
    assert run.handle is not None and run.handle.plan is not None
    assert run.handle.plan.step.inputs[0].shape == (128, 32)
    assert run.handle.plan.step.root_calls == 1


def test_a_planned_step_after_an_error_in_the_first(capsys: Any) -> None:
    model, x = stack(), batches()[0]
    plain = train(stack(), batches())
    with planner.apply(model, budget_mb=budget_of(plain) / MIB) as handle:
        with pytest.raises(RuntimeError):
            model(x[:, :5])
        for error in (ValueError, KeyboardInterrupt):

            def interrupt(module: nn.Module, args: Any, error: Any = error) -> None:
                raise error

            hook = model[2].register_forward_pre_hook(interrupt)
            with pytest.raises(error):
                model(x)
            assert not _get_current_dispatch_mode_stack()
            with pytest.raises(error) as kept:  # and with it the frames of the call
                model(x)
            assert kept.traceback
            hook.remove()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(x) @ x
        assert handle.plan is None
        for _ in range(2):
            mean_square(model, x).backward()
        assert handle.plan is not None and handle.plan.step.root_calls == 1


def test_a_replay_that_differs_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has probed the replays of the first steps: they are held against checksums."""

    def forgetful(again: Any, op: int, generator: Any, run: Any) -> Any:
        return run()

    model, rows = stack(), batches()
    with planner.apply(model, budget_mb=budget_of(train(stack(), rows)) / MIB) as handle:
        with monkeypatch.context() as patched:
            patched.setattr(generators.DrawsAgain, "draw", forgetful)
            with pytest.raises(ReplayError, match="differs from the forward") as raised:
                mean_square(model, rows[0]).backward()
        assert "segment 4" in str(raised.value) and "planner.plan(model" in str(raised.value)
        model.zero_grad()
        for batch in rows[:2]:
            mean_square(model, batch).backward()
        assert handle.plan is not None and handle.plan.segments
        with monkeypatch.context() as patched:  # once right, always right: no more checksums
            patched.setattr(digest, "digest", lambda tensor: pytest.fail("looked again"))
            mean_square(model, rows[2]).backward()


def test_larger_inputs_are_planned_for_again_and_said_once() -> None:
    sizes = [64, 64, 32, 128, 128, 64, 192, 192, 100]
    rows = [torch.randn(size, 32, generator=torch.Generator().manual_seed(size)) for size in sizes]
    plain = train(stack(), rows)
    budget = budget_of(plain, 0.9)
    with pytest.warns(RuntimeWarning) as seen:
        run = train(stack(), rows, budget=budget)
    (warning,) = seen
    assert "larger than those planned for" in str(warning.message)
    assert "next step:" in str(warning.message)
    assert run.losses == plain.losses
    assert max(run.peaks) <= budget
    assert run.handle is not None and run.handle.plan is not None
    assert run.handle.plan.step.inputs[0].shape == (192, 32)


def test_sizes_that_take_turns_are_planned_for_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    import planner.online.on_the_fly as module

    made = []
    profile_of = module.profile_of
    monkeypatch.setattr(module, "profile_of", lambda *a: made.append(1) or profile_of(*a))

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = stack()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.body(x.flatten(0, 1))
            return found

    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 30, 32), (30, 4, 32)] * 4
    rows = [torch.randn(*shape, generator=generator) for shape in shapes]

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(x).square().mean()
        return found

    torch.manual_seed(0)
    model = Pair()
    train(model, rows, loss_of, budget=2 * MIB)
    assert len(made) == 2


def test_an_infeasible_budget_trains_on_recomputed_and_says_so_once() -> None:
    plain = train(stack(), batches())
    with pytest.warns(RuntimeWarning) as seen:
        run = train(stack(), batches(), budget=50_000)
    (warning,) = seen
    text = str(warning.message)
    assert "no plan could be made for this Sequential" in text
    assert "numbers: budget" in text and "likely cause:" in text and "next step:" in text
    assert run.losses == plain.losses
    assert max(run.peaks) < 0.75 * max(plain.peaks)
    assert run.handle is not None and run.handle.plan is None
    assert run.handle.replayed_ops > 0


@pytest.mark.parametrize(
    ("look", "said"),
    [(lambda x: x.sum() < 1e9, "content of a tensor"), (torch.Tensor.data_ptr, "data pointer")],
)
def test_a_step_that_fakes_cannot_run_trains_on_recomputed(look: Any, said: str) -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = stack()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.body(x) if look(x) else x
            return found

    torch.manual_seed(0)
    with pytest.warns(RuntimeWarning, match=said) as seen:
        run = train(Branch(), batches(), budget=2 * MIB)
    assert len(seen) == 1
    torch.manual_seed(0)
    assert run.losses == train(Branch(), batches()).losses


class _Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0] * 2


def test_a_compiled_loss_compiles_in_the_recorded_step_too() -> None:
    graphs: list[int] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(len(inputs))
        return module.forward

    loss = torch.compile(lambda out, x: out.square().mean() + x.mean(), backend=backend)

    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = loss(model(x), x)
        return found

    plain = train(stack(), batches(count=2), loss_of)
    torch.compiler.reset()
    graphs.clear()
    run = train(stack(), batches(count=2), loss_of, 2 * MIB)
    assert run.losses == plain.losses and graphs
    assert run.handle is not None and run.handle.plan is not None


def test_a_loss_out_of_sight_is_told() -> None:
    def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = _Double.apply(model(x)).square().mean()
        return found

    with pytest.warns(RuntimeWarning, match="autograd.Function"):
        run = train(stack(), batches(), loss_of, 2 * MIB)
    assert run.losses == train(stack(), batches(), loss_of).losses
