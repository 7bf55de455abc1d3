"""Checks that a plan fits a model; used by `apply`, `verify` and `planner check`."""

from __future__ import annotations

from torch import nn

from planner.applier.fallback import CheckpointEnterGate
from planner.applier.gates import Gate
from planner.documents import Plan
from planner.errors import InvalidModelError, StalePlanError
from planner.training_step.compiled import COMPILED, check_not_compiled, compiled_units
from planner.training_step.fingerprint import changed_units, fingerprint

_NAMED = 8
"""Changed units named in a message; the error's `units` has them all."""


def check_plan(model: nn.Module, plan: Plan) -> None:
    """Raise unless the plan was made for this model and none is on it yet.

    Raises:
        InvalidModelError: not a module, or a plan is applied to it (or to a part) already.
        StalePlanError: units are missing, or the model's structure changed.
    """
    if not isinstance(model, nn.Module):
        raise InvalidModelError(
            f"apply needs a torch.nn.Module, got {type(model).__name__}",
            fix="pass the model itself: planner.apply(model, plan)",
        )
    check_not_compiled(model)
    _check_same_units_compiled(model, plan)
    for name, module in model.named_modules():
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        if any(isinstance(hook, (Gate, CheckpointEnterGate)) for hook in hooks):
            raise InvalidModelError(
                f"a plan is applied to this model already (unit {name or '(model)'})",
                cause="apply was called twice, or the copied model carries its plan with it",
                fix="call remove() on the first handle before applying another plan",
            )
    names = dict(model.named_modules())
    units = [b.unit for s in plan.segments for b in (s.start, s.end)]
    missing = tuple(dict.fromkeys(unit for unit in units if unit not in names))
    found = fingerprint(model)
    if missing or (plan.fingerprint and found != plan.fingerprint):
        changed = changed_units(model, plan.units) if plan.units else missing
        raise StalePlanError(
            f"the plan does not fit this {type(model).__name__}"
            + (f": changed units {', '.join(changed[:_NAMED])}" if changed else ""),
            numbers=f"fingerprint {found} found, {plan.fingerprint or 'none'} in the plan; "
            f"{len(changed)} changed units",
            cause="the model's structure changed since the plan was made",
            fix="make the plan again: planner.plan(model, budget_mb=...)",
            units=changed,
        )


def _check_same_units_compiled(model: nn.Module, plan: Plan) -> None:
    """A compiled unit runs no hooks and other ops: a plan is for the one kind or the other."""
    if plan.status == "manual":
        return
    before = {e.unit for e in plan.exclusions if e.reason.startswith(COMPILED)}
    now = set(compiled_units(model))
    if now == before:
        return
    changed = tuple(sorted(now ^ before))
    raise StalePlanError(
        f"other units of this {type(model).__name__} are compiled than when the plan was made:"
        f" {', '.join(changed[:_NAMED])}",
        numbers=f"{len(now)} compiled units now, {len(before)} in the plan",
        cause="the model was compiled after it was planned, or is not compiled yet",
        fix="make the plan with the model as it will be trained: compile its blocks first, then"
        " planner.plan(model, budget_mb=...)",
        units=changed,
    )
