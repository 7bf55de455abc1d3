"""What `plan`, `apply`, `profile` and `verify` promise beside the budget.

The model is left as it was; an applied plan goes with copies and steps aside where it cannot
serve; inputs come from where the user would expect; a step of the user's own may do what it likes.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import (
    ZOO,
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

UserStep = Callable[[nn.Module], Any]


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Small models are faster so."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def nothing_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLANNER_PROFILES", raising=False)


@pytest.fixture(scope="module")
def made() -> planner.Plan:
    """A plan for the small net that recomputes."""
    torch.set_num_threads(1)
    net, x = small_net()
    plan = planner.plan(net, budget_mb="65%", inputs=(x,))
    assert plan.segments
    return plan


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


# -- where inputs come from ------------------------------------------------------------------------


def test_literal_call_takes_the_stored_profile(tmp_path: Path) -> None:
    net, x = small_net()
    (tmp_path / "profiles").mkdir()
    profile = planner.profile(net, inputs=(x,))
    profile.save(tmp_path / "profiles" / "net.json")
    plan = planner.plan(net, budget_mb=300)
    assert plan.status == "empty" and plan.plain_peak_bytes == profile.plain_peak_bytes
    tight = planner.plan(net, budget_mb="65%")
    verified = planner.verify(net, tight, inputs=(x,), repeats=1)
    assert verified.ok and tight.segments
    assert tight.predicted_peak_bytes == verified.measured_peak_bytes


def test_working_folder_comes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = small_net()
    for folder, rows in (("elsewhere", 64), ("profiles", 128)):
        (tmp_path / folder).mkdir()
        planner.profile(net, inputs=(x[:rows],)).save(tmp_path / folder / "net.json")
        monkeypatch.setenv("PLANNER_PROFILES", str(tmp_path / "elsewhere"))
        plan = planner.plan(net, budget_mb="65%")
        assert plan.step.inputs[0].shape == (rows, 32)


def test_given_inputs_come_before_a_stored_profile(tmp_path: Path) -> None:
    net, x = small_net()
    (tmp_path / "profiles").mkdir()
    planner.profile(net, inputs=(x[:64],)).save(tmp_path / "profiles" / "net.json")
    assert planner.plan(net, budget_mb="65%", inputs=(x,)).step.inputs[0].shape == (256, 32)


def test_literal_call_takes_what_the_model_declares() -> None:
    net, x = small_net()
    net.example_input_array = x
    plan = planner.plan(net, budget_mb="65%")
    assert plan.segments and plan.step.inputs[0].shape == (256, 32)
    assert plan.measured_peak_bytes is not None  # it could run, so it was measured
    gpt2, _ = ZOO["gpt2"].build()
    assert planner.plan(gpt2, budget_mb=300).status == "empty"


def test_literal_call_without_either_says_what_to_do() -> None:
    net, _ = small_net()
    with pytest.raises(planner.ProfileNotFoundError) as caught:
        planner.plan(net, budget_mb=300)
    error = caught.value
    assert error.what and error.numbers and error.cause
    assert "python scripts/profile_model.py path/file.py:build" in error.fix
    assert "planner.plan(model, budget_mb=..., inputs=(x,))" in error.fix


@pytest.mark.parametrize(
    "wrap",
    [lambda x: x, lambda x: (x,), lambda x: {"x": x}, lambda x: lambda: ((x,), {})],
    ids=["tensor", "tuple", "dict", "callable"],
)
def test_inputs_in_any_form(wrap: Callable[[Tensor], Any]) -> None:
    net, x = small_net()
    plan = planner.plan(net, budget_mb="70%", inputs=wrap(x))
    assert plan.segments and plan.measured_peak_bytes <= plan.budget_bytes


# -- a step of the user's own ----------------------------------------------------------------------


def own_loss(x: Tensor) -> UserStep:
    """Its own loss, by a function outside the model."""

    def step(model: nn.Module) -> None:
        nn.functional.binary_cross_entropy_with_logits(model(x), (x[:, :1] > 0).float()).backward()

    return step


def autocast(x: Tensor) -> UserStep:
    """Forward in bfloat16."""

    def step(model: nn.Module) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(x).float().pow(2).mean()
        loss.backward()

    return step


def scaled_loss(x: Tensor) -> UserStep:
    """Scale the loss and unscale the gradients, as a GradScaler does."""

    def step(model: nn.Module) -> None:
        (model(x).pow(2).mean() * 1024).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(1024)

    return step


def several_forwards(x: Tensor) -> UserStep:
    """Two forwards, then one backward through both."""

    def step(model: nn.Module) -> None:
        near, far = model(x), model(x * 2)
        (near - far).pow(2).mean().backward()

    return step


def gradient_penalty(x: Tensor) -> UserStep:
    """A backward through a backward."""

    def step(model: nn.Module) -> None:
        given = x.clone().requires_grad_()
        out = model(given)
        (slope,) = torch.autograd.grad(out.sum(), given, create_graph=True)
        (out.mean() + slope.pow(2).sum(1).sub(1).pow(2).mean()).backward()

    return step


def accumulation(x: Tensor) -> UserStep:
    """Gradients of two micro-batches."""

    def step(model: nn.Module) -> None:
        for part in x.chunk(2):
            (model(part).pow(2).mean() / 2).backward()

    return step


def optimizer_inside(x: Tensor) -> UserStep:
    """The whole step with clipping and the optimizer's update."""

    def step(model: nn.Module) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


STEPS = [
    own_loss,
    autocast,
    scaled_loss,
    several_forwards,
    gradient_penalty,
    accumulation,
    optimizer_inside,
]


@pytest.mark.parametrize("kind", STEPS)
def test_own_step(kind: Callable[[Tensor], UserStep]) -> None:
    net, x = small_net()
    step = kind(x)
    if kind is gradient_penalty:  # all of its forward lives to the end: forced, not needed
        how: dict[str, Any] = {"budget_mb": "150%", "recompute": ["blocks.*"]}
    else:
        how = {"budget_mb": "80%"}
    with untouched(net):
        plan = planner.plan(net, step=step, **how)
        verified = planner.verify(net, plan, step=step, repeats=1)
    assert verified.ok, str(verified)
    assert plan.segments and verified.replayed_ops > 0
    assert verified.measured_peak_bytes <= plan.budget_bytes
    assert plan.step.root_calls == (2 if kind in (several_forwards, accumulation) else 1)
    assert plan.step.autocast == ("bfloat16" if kind is autocast else "")
    twin = copy.deepcopy(net)
    seed_all(5)
    step(net)
    with planner.apply(twin, plan):
        seed_all(5)
        step(twin)
    assert same_tensors(net.state_dict(), twin.state_dict())
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine.grad, other.grad)


def test_optimizer_is_counted_and_its_state_kept() -> None:
    net, x = small_net()
    sizes = sum(p.numel() * p.element_size() for p in net.parameters())
    alone = planner.profile(net, inputs=(x,))
    optimizer = torch.optim.AdamW(net.parameters())
    with untouched(net, optimizer):
        together = planner.profile(net, inputs=(x,), optimizer=optimizer)
    assert not optimizer.state  # made in the step, and taken back
    assert together.plain_peak_bytes >= alone.plain_peak_bytes + 2 * sizes
    assert together.step.optimizer == "AdamW"
    kept = sum(s.bytes for s in together.storages if s.category == "optimizer" and s.birth < 0)
    assert kept >= 2 * sizes
    plan = planner.plan(net, budget_mb="85%", inputs=(x,), optimizer=optimizer)
    assert planner.verify(net, plan, inputs=(x,), optimizer=optimizer, repeats=1).ok


# -- never worse than nothing ----------------------------------------------------------------------


def test_budget_that_plain_meets_gives_an_empty_plan() -> None:
    net, x = small_net()
    profile = planner.profile(net, inputs=(x,))
    for budget in ("100%", f"{profile.plain_peak_bytes}B", "2GB"):
        for how in ({"inputs": (x,)}, {"profile": profile}):
            plan = planner.plan(net, budget_mb=budget, **how)
            assert plan.status == "empty" and not plan.segments
            assert plan.predicted_overhead_ratio == 0
    with planner.apply(net, plan) as handle:
        assert not any(module._forward_pre_hooks for module in net.modules())
        step_on(x)(net)
        assert handle.replayed_ops == 0


def test_one_byte_less_than_plain_is_met() -> None:
    net, x = small_net()
    plain = planner.profile(net, inputs=(x,)).plain_peak_bytes
    plan = planner.plan(net, budget_mb=f"{plain - 1}B", inputs=(x,))
    assert plan.segments and plan.measured_peak_bytes < plain


def test_pins_are_followed() -> None:
    net, x = small_net()
    profile = planner.profile(net, inputs=(x,))
    saved = planner.plan(net, budget_mb="75%", profile=profile, save=["blocks.0", "blocks.1"])
    spared = {"blocks.0", "blocks.1"}
    kept = [a for s in saved.segments for a in s.keep if ".".join(a.split(".")[:2]) in spared]
    opened = [s for s in saved.segments if s.start.unit.startswith(tuple(spared))]
    assert saved.pins.save == ("blocks.0", "blocks.1")
    assert all(s.keep for s in opened) or kept or not opened
    forced = planner.plan(net, budget_mb="100%", profile=profile, recompute=["blocks.2"])
    assert forced.segments
    for plan in (saved, forced):
        assert planner.verify(net, plan, inputs=(x,), repeats=1).ok
