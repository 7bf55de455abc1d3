"""The verbs: `profile`, `plan`, `apply`, `check`, `verify`, `best_batch`, `load`.

Those that need no torch are in `planner.sweeps` and `planner.reviews`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import nn

from planner.budget import Budget, parse_budget
from planner.documents import Pins, Plan, Profile, load
from planner.errors import StepError
from planner.estimate.device import Device
from planner.estimate.device_profile import estimate, make_optimizer, on_meta, remarks
from planner.memory.allocator import ran_out_of_memory
from planner.online.apply import apply
from planner.planning.batch.best_batch import best_batch
from planner.planning.capped import NEVER, RAN_OUT, plan_capped
from planner.planning.never import never_replaying
from planner.planning.offline import from_profile
from planner.planning.stored_profiles import check_same_step, given_profile
from planner.planning.tested import plan_tested
from planner.profiler.build import build_profile
from planner.search.measured.options import Measured, check_can_run
from planner.search.method import Capped, Method, check_method
from planner.training_step.checks import check_alone, check_model
from planner.training_step.fingerprint import unit_prints
from planner.training_step.situation import check_situation
from planner.training_step.step import Step, make_step
from planner.verifier import Verification, verify_plan

__all__ = ["apply", "best_batch", "check", "load", "plan", "profile", "verify"]

Loss = Callable[[Any], Any]
StepFunction = Callable[[nn.Module], Any]
Search = Method | Measured | Capped


def profile(
    model: nn.Module,
    *,
    inputs: object = None,
    loss_fn: Loss | None = None,
    step: StepFunction | None = None,
    optimizer: torch.optim.Optimizer | str | None = None,
    device: str | Device | None = None,
) -> Profile:
    """Run a training step a few times and return what it does, op by op.

    The model, its gradients, buffers, hooks and all random states are left exactly as they were.

    Args:
        model: the model, in the mode in which it is trained.
        inputs: a tensor, a tuple of positional arguments, a dict of keyword arguments, or a
            callable that returns `(args, kwargs)`; by default what the model itself declares.
        loss_fn: makes a scalar of the output; by default `output.loss`, else the sum of the
            floating-point output tensors.
        step: instead of inputs and loss, the training loop's own step: `step(model)` runs forward
            and backward (and the optimizer, if it likes).
        optimizer: its state counts as memory, and the step ends with its update. By name ("sgd",
            "adam", "adamw") one with default settings.
        device: derive the profile without running the step, for a device by name ("h100", "a100",
            ...), the path of a device file, or a `Device`, which may stand for many ranks; times
            come from a cost model. A model on the meta device is never run.

    Raises:
        InvalidModelError, InvalidInputsError: the model or the inputs cannot be trained on.
        ProfileNotFoundError: no inputs given and none declared by the model.
        StepError: the step raised.
    """
    made = make_step(
        model,
        inputs=inputs,
        loss_fn=loss_fn,
        step=step,
        optimizer=make_optimizer(optimizer, model),
    )
    other = _other_device(device, model)
    if other is not None:
        return estimate(made, other.spec, other.ranks)
    check_alone(model)
    return build_profile(made)


def plan(
    model: nn.Module,
    *,
    budget_mb: float | str,
    inputs: object = None,
    loss_fn: Loss | None = None,
    step: StepFunction | None = None,
    optimizer: torch.optim.Optimizer | str | None = None,
    device: str | Device | None = None,
    profile: Profile | str | PathLike[str] | None = None,
    search: Search = "auto",
    save: Sequence[str] = (),
    recompute: Sequence[str] = (),
    never: Sequence[str] = (),
    base: Plan | str | PathLike[str] | None = None,
) -> Plan:
    """Return the cheapest plan whose training step peaks within the budget.

    With inputs (or a step) the plan is probed and measured on the model before it is returned; from
    a stored profile it is predicted. The model is left exactly as it was.

    Args:
        model, inputs, loss_fn, step, optimizer, device: as for `profile`. A plan for another
            device, or of a model on the meta device, is predicted, not measured.
        budget_mb: most live bytes of a step: a number of MB (1024**2 bytes), or a string such as
            "2GB", "286MiB" or "80%" (of the plain step's peak).
        profile: a `Profile` or the path of one; by default, when no inputs are given, a stored
            profile of this model is looked for in `profiles/` and in PLANNER_PROFILES. With inputs
            or a step besides, the plan is made from the profile and then run.
        search: "auto", "dp" or "milp"; `Measured(trials=50, ...)` also measures steps under the
            best plan's neighbours, and returns the fastest; `Capped()` runs nothing that needs more
            memory than the budget, the plain step included, and compares replays with checksums of
            their originals. The last is also done where the plain step runs out of memory.
        save: a pattern, or several, of units whose saved tensors always stay.
        recompute: a pattern, or several, of units whose saved tensors are always recomputed.
        never: an op, or several, that is never replayed, as "lib::op"; its results stay in memory.
        base: an earlier plan, or the path of one, whose pins and notes are kept.

    Raises:
        InvalidBudgetError: the budget makes no sense.
        InfeasibleBudgetError: no plan reaches it; names the smallest peak that was found, and what
            is live then.
        StalePlanError: the given profile is of another model or of another step.
        UnknownUnitError: a pattern matches no unit.
        ReplayError: a replay that the budget asks for is wrong, and no unit can be left out for it.
        PlannerError: no such search; a measured search where no step can be run, or whose storage
            cannot be used.
        ProfileNotFoundError, InvalidModelError, InvalidInputsError, StepError: see `profile`.
    """
    check_method(_method(search))
    budget = parse_budget(budget_mb)
    before = Plan.load(base) if base is not None and not isinstance(base, Plan) else base
    pins = _pins(before, Pins.of(save, recompute, never))
    check_model(model)
    other = _other_device(device, model)
    has_step = inputs is not None or step is not None
    found = given_profile(model, profile, other is not None or has_step)
    made = None
    if found is None or has_step:
        update = make_optimizer(optimizer, model)
        made = make_step(model, inputs=inputs, loss_fn=loss_fn, step=step, optimizer=update)
    if isinstance(search, Measured):
        check_can_run(made is not None, other is not None)
    if found is not None:
        check_same_step(found, made, optimizer)
    elif other is not None and made is not None:
        found = estimate(made, other.spec, other.ranks)
    if found is not None:
        found = never_replaying(found, pins.never)
    if made is None or other is not None:
        assert found is not None, "without a step there is a profile"
        chosen = _predicted(found, budget, search, pins)
    else:
        check_alone(model)
        chosen = _run(made, budget, search, pins, found)
    notes = (*before.notes, *chosen.notes) if before is not None else chosen.notes
    return replace(chosen, units=unit_prints(model), notes=tuple(dict.fromkeys(notes)))


def check(model: nn.Module, plan: Plan | str | PathLike[str], *, inputs: object = None) -> None:
    """Raise where a plan does not fit a model, its mode or its inputs; nothing is run.

    Args:
        model: the model, in the mode in which it is trained.
        plan: a `Plan` or the path of one.
        inputs: as for `profile`; without them only the model and its mode are compared.

    Raises:
        StalePlanError: the plan was made for another model, mode or inputs; names what changed.
    """
    chosen = plan if isinstance(plan, Plan) else Plan.load(plan)
    apply(model, chosen).remove()
    check_situation(chosen, model, inputs)


def verify(
    model: nn.Module,
    plan: Plan | str | PathLike[str],
    *,
    inputs: object = None,
    loss_fn: Loss | None = None,
    step: StepFunction | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    repeats: int = 3,
) -> Verification:
    """Run the step plain and under the plan, and return what both did, measured.

    The model is left exactly as it was.

    Args:
        model, inputs, loss_fn, step, optimizer: as for `profile`.
        plan: a `Plan` or the path of one.
        repeats: timed steps of each kind, run in turn; the least of each counts.

    Raises:
        StalePlanError: the plan is for another model.
        ReplayError: a segment could not be replayed.
        ProfileNotFoundError, InvalidModelError, InvalidInputsError, StepError: see `profile`.
    """
    chosen = plan if isinstance(plan, Plan) else Plan.load(plan)
    made = make_step(model, inputs=inputs, loss_fn=loss_fn, step=step, optimizer=optimizer)
    return verify_plan(made, chosen, repeats)


def _predicted(profile: Profile, budget: Budget, search: Search, pins: Pins) -> Plan:
    """Plan from a profile alone."""
    budget_bytes = budget.resolve(profile.plain_peak_bytes)
    plan = from_profile(profile, budget_bytes, method=_method(search), pins=pins)
    return replace(plan, notes=remarks(profile))


def _run(made: Step, budget: Budget, search: Search, pins: Pins, found: Profile | None) -> Plan:
    """Plan on the model at hand, from a profile of this very step where there is one."""
    if isinstance(search, Capped):
        return plan_capped(made, budget, method=search.method, pins=pins, reason=NEVER)
    try:
        found = found or never_replaying(build_profile(made), pins.never)
    except StepError as error:
        if isinstance(search, Measured) or not ran_out_of_memory(error):
            raise
    else:
        return _tested(made, found, budget, search, pins)
    return plan_capped(made, budget, method=search, pins=pins, reason=RAN_OUT)


def _tested(
    made: Step, found: Profile, budget: Budget, search: Method | Measured, pins: Pins
) -> Plan:
    """Plan where the plain step was run."""
    budget_bytes = budget.resolve(found.plain_peak_bytes)
    if not isinstance(search, Measured):
        return plan_tested(made, found, budget_bytes, method=search, pins=pins)
    from planner.planning.trials.search import plan_by_trials  # imports Optuna

    return plan_by_trials(made, found, budget_bytes, search, pins=pins)


def _method(search: Search) -> Method:
    """How plans are searched for from a profile."""
    if isinstance(search, Measured):
        return "auto"
    return search.method if isinstance(search, Capped) else search


def _other_device(device: str | Device | None, model: nn.Module) -> Device | None:
    """The device that the step is derived for; None where it runs here."""
    if device is None:
        return Device() if on_meta(model) else None
    return Device(device) if isinstance(device, str) else device


def _pins(before: Plan | None, new: Pins) -> Pins:
    """The user's pins, added to those of an earlier plan; a newer one wins over its opposite."""
    old = before.pins if before is not None else Pins()
    kept = (p for p in old.save if p not in new.recompute)
    given_up = (p for p in old.recompute if p not in new.save)
    return Pins(
        save=tuple(dict.fromkeys((*kept, *new.save))),
        recompute=tuple(dict.fromkeys((*given_up, *new.recompute))),
        never=tuple(dict.fromkeys((*old.never, *new.never))),
    )
