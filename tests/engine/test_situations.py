"""Every public failure situation trains the same with a plan as without one, bit for bit.

Each situation is trained plain, with every block given up entirely, and under a searched plan for
a budget well below the plain peak.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from daily import nightly_but
from situations import ALL, Situation
from situations.runner import (
    TRAIN_SEED,
    Record,
    built,
    count_ops,
    differences,
    outer_blocks,
    peak_bytes,
    resident_bytes,
    run_step,
    seed_everything,
    train,
)
from situations.situation import Setup
from torch import nn
from torch.utils.checkpoint import checkpoint

import planner

LONG_SEARCHES = (
    "adapters_over_a_frozen_embedding",
    "bias_made_by_the_first_block",
    "cell_with_named_tuple_state",
    "gru_and_small_linears",
    "library_decoder_with_default_cache",
)


def over(*situations: Situation, nightly: Collection[str] = ()) -> pytest.MarkDecorator:
    """Parametrize a test over situations; the fixture below skips those that cannot run."""
    names = [situation.name for situation in situations]
    daily = (situation for situation in situations if situation.name not in nightly)
    cases = nightly_but(daily, situations)
    return pytest.mark.parametrize("situation", cases, ids=names, indirect=True)


pytestmark = pytest.mark.usefixtures("no_warnings")


@pytest.fixture
def situation(request: pytest.FixtureRequest) -> Situation:
    """Skip what this installation cannot run."""
    wanted: Situation = request.param
    if wanted.needs == "transformers":
        pytest.importorskip("transformers")
    if wanted.needs == "distributed" and not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    return wanted


@functools.cache
def plain_record(situation: Situation) -> Record:
    """Train once without a plan; every comparison uses this run."""
    return train(situation)


@contextmanager
def refusal_allowed(situation: Situation) -> Iterator[None]:
    """Accept a clear refusal where the situation may be refused."""
    try:
        yield
    except planner.PlannerError as refusal:
        # The plain step runs, so if it raises now, only torch's own objection is a reason.
        broken = (
            isinstance(refusal, planner.StepError) and type(refusal.__cause__) is not RuntimeError
        )
        if broken or not situation.may_refuse:
            raise
        assert refusal.what and refusal.fix, f"not a clear refusal: {refusal}"
        pytest.skip(f"refused: {refusal.what}")


def give_up_everything(setup: Setup) -> Any:
    """Make every outer block a segment that keeps nothing."""
    from planner.applier.apply import manual_plan

    return planner.apply(setup.model, manual_plan(setup.model, outer_blocks(setup.model)))


def rerun_blocks(setup: Setup) -> None:
    """Put torch's own checkpoint, which reruns Python code, around every outer block."""
    for name in outer_blocks(setup.model):
        block = setup.model.get_submodule(name)
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


@functools.cache
def budget_of(situation: Situation) -> str:
    """Choose a budget: the situation's own fraction of what can be given up, else 60%."""
    if situation.budget_fraction is None:
        return "60%"
    with built(situation) as setup:
        resident = resident_bytes(setup.model)
    rest = peak_bytes(situation) - resident
    return f"{resident + int(situation.budget_fraction * rest)}B"


def search_plan(situation: Situation, setup: Setup) -> planner.Plan:
    """Plan for the situation's budget, or for the smallest feasible one if that is allowed."""

    def step(model: nn.Module) -> None:
        run_step(setup, model, 0)

    def plan_for(budget: str) -> planner.Plan:
        seed_everything(TRAIN_SEED)
        return planner.plan(setup.model, budget_mb=budget, step=step)

    must_meet = situation.budget_fraction is not None and situation.feasible
    try:
        found = plan_for(budget_of(situation))
    except planner.InfeasibleBudgetError as error:
        assert not must_meet, f"this budget can be met: {error}"
        smallest = f"{error.min_peak_bytes}B"
    else:
        assert situation.feasible, f"no plan can meet this budget: {found}"
        return found
    try:
        return plan_for(smallest)
    except planner.InfeasibleBudgetError as error:
        raise AssertionError(f"{smallest} was promised to be reachable: {error}") from error


@over(*ALL)
def test_plain_training_repeats(situation: Situation) -> None:
    record = plain_record(situation)
    assert all(math.isfinite(loss) for loss in record.losses)
    assert any(grad is not None and grad.any() for grad in record.gradients[0].values())
    assert differences(record, train(situation), situation.tolerance) == []


@over(*(found for found in ALL if found.rerun != "equal"))
def test_rerunning_the_blocks_goes_wrong(situation: Situation) -> None:
    """The situation still bites: a runtime that reruns Python code fails here."""
    plain = plain_record(situation)
    if situation.rerun == "raises":
        with pytest.raises(Exception):  # noqa: B017
            train(situation, rerun_blocks)
    else:
        assert differences(plain, train(situation, rerun_blocks), situation.tolerance)


@over(*ALL)
def test_giving_up_everything(situation: Situation) -> None:
    plain = plain_record(situation)
    with refusal_allowed(situation):
        given_up = train(situation, give_up_everything)
        assert differences(plain, given_up, situation.tolerance) == []
        if situation.recomputes:
            assert count_ops(situation, give_up_everything) > count_ops(situation)


@over(*ALL, nightly=LONG_SEARCHES)
def test_searched_plan(situation: Situation) -> None:
    plain = plain_record(situation)
    plans: list[planner.Plan] = []

    def plan_and_apply(setup: Setup) -> Any:
        plans.append(search_plan(situation, setup))
        return planner.apply(setup.model, plans[0])

    with refusal_allowed(situation):
        planned = train(situation, plan_and_apply)
        assert differences(plain, planned, situation.tolerance) == []
        measured = peak_bytes(situation, lambda setup: planner.apply(setup.model, plans[0]))
        assert measured <= plans[0].budget_bytes
