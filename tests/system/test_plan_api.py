"""What `plan`, `apply`, `profile` and `verify` promise beside the budget.

The model is left as it was; an applied plan goes with copies and steps aside where it cannot
serve.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import (
    Net,
    same_tensors,
    seed_all,
    small_net,
    snapshot,
    step_on,
    train_once,
    untouched,
)

import planner
from planner.training_step.step import make_step
from planner.verifier.measure import measure_peak

pytestmark = pytest.mark.usefixtures("empty_folder")


# -- the model is left as it was ----------------------------------------------------------------


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_profile_plan_and_verify_leave_no_trace(with_optimizer: bool) -> None:
    net, x = small_net()
    net.blocks[1].eval()  # a part that is frozen by mode
    net.head.bias.requires_grad_(False)
    net.register_forward_hook(lambda *_: None)
    net.blocks[0].register_full_backward_hook(lambda *_: None)
    optimizer = torch.optim.AdamW(net.parameters())
    step_on(x)(net)
    optimizer.step()  # gradients and optimizer state are there beforehand
    how = {"inputs": (x,), "optimizer": optimizer if with_optimizer else None}
    before = x.clone()
    with untouched(net, optimizer):
        plan = planner.plan(net, budget_mb="80%", **how)
        assert planner.verify(net, plan, **how).ok
        planner.profile(net, **how)
    assert torch.equal(before, x) and x.grad is None
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()


def test_planning_leaves_no_trace_when_it_fails() -> None:
    net, x = small_net()
    step_on(x)(net)
    with untouched(net), pytest.raises(planner.InfeasibleBudgetError):
        planner.plan(net, budget_mb="1KB", inputs=(x,))


def test_same_inputs_give_the_same_file(tmp_path: Path) -> None:
    net, x = small_net()
    profile = planner.profile(net, inputs=(x,))
    texts = [planner.plan(net, budget_mb="65%", profile=profile).to_json() for _ in range(2)]
    assert texts[0] == texts[1]


# -- apply ---------------------------------------------------------------------------------------


def test_apply_changes_nothing_but_hooks_and_removes_them(made: planner.Plan) -> None:
    net, _ = small_net()
    before = snapshot(net)
    names = [name for name, _ in net.named_modules()]
    handle = planner.apply(net, made)
    during = snapshot(net)
    assert type(net) is Net and [name for name, _ in net.named_modules()] == names
    changed = {
        key for key in before if not key.endswith("hooks") and not _same(before, during, key)
    }
    assert not changed and before.keys() == during.keys()
    handle.remove()
    handle.remove()  # a second time does nothing
    after = snapshot(net)
    assert all(_same(before, after, key) for key in before)


def _same(a: dict[str, Any], b: dict[str, Any], key: str) -> bool:
    if isinstance(a[key], Tensor):
        return torch.equal(a[key], b[key])
    return bool(a[key] == b[key])


def test_applied_from_a_file_and_as_a_context(tmp_path: Path, made: planner.Plan) -> None:
    net, x = small_net()
    made.save(tmp_path / "net.json")
    with planner.apply(net, tmp_path / "net.json") as handle:
        step_on(x)(net)
        assert handle.replayed_ops > 0
        replayed = handle.replayed_ops
    step_on(x)(net)
    assert handle.replayed_ops == replayed


def test_removing_before_backward_is_safe(made: planner.Plan) -> None:
    net, x = small_net()
    twin = copy.deepcopy(net)
    plain = train_once(twin, step_on(x))

    def run(model: nn.Module) -> Tensor:
        handle = planner.apply(model, made)
        loss = model(x).sum()
        handle.remove()
        loss.backward()
        return loss

    assert train_once(net, run).same_as(plain)


def by_pickle(model: nn.Module) -> nn.Module:
    """Copy through pickle."""
    copied: nn.Module = pickle.loads(pickle.dumps(model))
    return copied


def by_torch_save(model: nn.Module) -> nn.Module:
    """Copy through `torch.save`."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copied: nn.Module = torch.load(file, weights_only=False)
    return copied


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("copied_by", [copy.deepcopy, by_pickle, by_torch_save])
def test_copies_of_an_applied_model_train_right(
    copied_by: Callable[[nn.Module], nn.Module], warm: bool, made: planner.Plan
) -> None:
    net, x = small_net()
    plain = train_once(copy.deepcopy(net), step_on(x))
    state = copy.deepcopy(net.state_dict())
    handle = planner.apply(net, made)
    if warm:  # tapes are recorded by now
        train_once(net, step_on(x))
        net.load_state_dict(state)
    twin = copied_by(net)
    replayed = handle.replayed_ops
    peak = measure_peak(make_step(twin, inputs=(x,)))
    assert peak == made.measured_peak_bytes
    assert train_once(twin, step_on(x)).same_as(plain)
    assert handle.replayed_ops == replayed  # the copy works for itself
    assert train_once(net, step_on(x)).same_as(plain)


def test_state_dict_goes_from_plain_to_applied_and_back(made: planner.Plan) -> None:
    net, x = small_net()
    twin = Net()
    with planner.apply(net, made):
        step_on(x)(net)
        assert list(net.state_dict()) == list(twin.state_dict())
        twin.load_state_dict(net.state_dict())
        net.load_state_dict(twin.state_dict())
    assert same_tensors(net.state_dict(), twin.state_dict())


# -- where it steps aside, and where not -----------------------------------------------------------


@pytest.mark.parametrize("aside", [torch.no_grad, torch.inference_mode])
def test_steps_aside_without_gradients(aside: Callable[[], Any], made: planner.Plan) -> None:
    net, x = small_net()
    twin = copy.deepcopy(net)
    with aside():
        seed_all(1)
        plain = twin(x)
        with planner.apply(net, made) as handle:
            seed_all(1)
            assert torch.equal(net(x), plain)
            assert handle.replayed_ops == 0
    with planner.apply(net, made) as handle:
        step_on(x)(net)
        assert handle.replayed_ops > 0


def test_steps_aside_in_functional_transforms(made: planner.Plan) -> None:
    net, x = small_net()
    net.eval()
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def loss(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(net, p, (x,)).sum()

    plain = torch.func.grad(loss)(parameters, x)
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x[:4].unsqueeze(1))
    with planner.apply(net, made) as handle:
        assert same_tensors(torch.func.grad(loss)(parameters, x), plain)
        again = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x[:4].unsqueeze(1))
        assert same_tensors(again, each)
        assert handle.replayed_ops == 0


def test_steps_aside_in_a_compiled_region(made: planner.Plan) -> None:
    net, x = small_net()
    net.eval()
    plain = train_once(copy.deepcopy(net), step_on(x))
    with planner.apply(net, made) as handle:
        compiled = torch.compile(net, backend="aot_eager")
        compiled(x).sum().backward()
        assert handle.replayed_ops == 0
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(parameter.grad, plain.gradients[name])


def test_works_in_eval_mode_with_gradients(made: planner.Plan) -> None:
    net, x = small_net()
    net.eval()
    plain = train_once(copy.deepcopy(net), step_on(x))
    with planner.apply(net, made) as handle:
        assert train_once(net, step_on(x)).same_as(plain)
        assert handle.replayed_ops > 0


def test_planning_works_under_no_grad(made: planner.Plan) -> None:
    net, x = small_net()
    with torch.no_grad():
        assert planner.plan(net, budget_mb="65%", inputs=(x,)).segments
        assert not torch.is_grad_enabled()


def test_steps_of_train_eval_train_give_the_same_bits(made: planner.Plan) -> None:
    results = []
    for plan in (replace(made, segments=()), made):
        net, x = small_net()
        with planner.apply(net, plan):
            for train in (True, False, True, True):
                results.append(train_once(net.train(train), step_on(x[: 128 + 128 * train])))
    assert all(a.same_as(b) for a, b in zip(results[:4], results[4:], strict=True))
