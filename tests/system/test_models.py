"""Real models: within the budget with the same bits, or a floor that can be reached."""

from __future__ import annotations

import importlib.util
from functools import cache

import pytest
import torch
from daily import nightly_but
from profiled_peak import bytes_of, profiled_peak
from zoo import ZOO, checkpoint_blocks, step_on, train_once, untouched

import planner
from planner.training_step.step import make_step
from planner.verifier.measure import count_forwards, measure_peak

SHARE = 60
"""The budget, in percent of the plain peak, that is planned for from the model alone."""
SHARES = nightly_but((SHARE,), (60, 80, 45))

EXACT_WITHIN: dict[str, float] = {}
"""How far the predicted peak may be off, as a share; to the byte where nothing is said."""


pytestmark = pytest.mark.usefixtures("no_warnings")


@pytest.fixture(params=ZOO)
def name(request: pytest.FixtureRequest) -> str:
    """Every model of the zoo whose library is here."""
    if importlib.util.find_spec(ZOO[request.param].library) is None:
        pytest.skip(f"needs {ZOO[request.param].library}")
    return str(request.param)


@cache
def profile_of(name: str) -> planner.Profile:
    """A model's profile, for all budgets but the one that is planned from the model alone."""
    model, inputs = ZOO[name].build()
    return planner.profile(model, inputs=inputs)


def reachable(model: torch.nn.Module, share: int, inputs: object, name: str) -> planner.Plan:
    """Return the plan for a budget or, where none fits, for the smallest peak that was named."""
    profile = None if share == SHARE else profile_of(name)
    try:
        return planner.plan(model, budget_mb=f"{share}%", inputs=inputs, profile=profile)
    except planner.InfeasibleBudgetError as error:
        assert error.holders
        floor_bytes = error.min_peak_bytes
    return planner.plan(model, budget_mb=f"{floor_bytes}B", inputs=inputs, profile=profile)


@pytest.mark.parametrize("share", SHARES)
def test_budget_is_met_with_the_same_bits(name: str, share: int) -> None:
    model, inputs = ZOO[name].build()
    with untouched(model):
        plan = reachable(model, share, inputs, name)
        verified = planner.verify(model, plan, inputs=inputs, repeats=1)
    assert verified.ok, str(verified)
    assert verified.plain_repeats
    assert plan.segments
    assert verified.measured_peak_bytes == plan.measured_peak_bytes <= plan.budget_bytes
    assert abs(plan.predicted_peak_bytes - verified.measured_peak_bytes) <= (
        verified.measured_peak_bytes * EXACT_WITHIN.get(name, 0)
    )
    assert verified.forward_runs == count_forwards(make_step(model, inputs=inputs))
    plain = train_once(model, step_on(inputs))
    twin, inputs = ZOO[name].build()
    with planner.apply(twin, plan) as applied:
        planned = train_once(twin, step_on(inputs))
        assert applied.replayed_ops == verified.replayed_ops > 0
        twin.zero_grad()
        live = bytes_of((*twin.parameters(), *twin.buffers(), *inputs.values()))
        peak = profiled_peak(lambda: step_on(inputs)(twin), live)
    assert planned.same_as(plain)
    assert peak <= plan.budget_bytes and abs(peak - plan.predicted_peak_bytes) <= peak / 100


def test_floor_is_no_higher_than_every_block_under_checkpoint() -> None:
    model, inputs = ZOO["gpt2"].build()
    with pytest.raises(planner.InfeasibleBudgetError) as caught:
        planner.plan(model, budget_mb="1KB", inputs=inputs)
    twin, _ = ZOO["gpt2"].build()
    checkpoint_blocks(twin, ZOO["gpt2"].block)
    assert caught.value.min_peak_bytes <= measure_peak(make_step(twin, inputs=inputs))


def test_several_steps_train_as_plain_does() -> None:
    losses = []
    for budget in ("100%", "60%"):
        model, inputs = ZOO["gpt2"].build()
        plan = planner.plan(model, budget_mb=budget, inputs=inputs)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(3)
        with planner.apply(model, plan):
            for _ in range(4):
                optimizer.zero_grad()
                losses.append(step_on(inputs)(model).item())
                optimizer.step()
    assert losses[:4] == losses[4:]
    assert losses[3] < losses[0]


def test_a_longer_batch_under_the_same_plan_still_gives_the_same_bits() -> None:
    model, inputs = ZOO["gpt2"].build()
    plan = planner.plan(model, budget_mb="60%", inputs=inputs)
    other = {key: ids[:, :48].repeat(2, 1) for key, ids in inputs.items()}
    plain = train_once(model, step_on(other))
    with planner.apply(model, plan) as applied:
        train_once(model, step_on(inputs))
        assert train_once(model, step_on(other)).same_as(plain)
        assert applied.replayed_ops > 0
