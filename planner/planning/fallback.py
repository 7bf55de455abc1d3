"""Torch's checkpoint for units that replay cannot serve, where running them again is right."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.documents import Boundary, Exclusion, Plan, Profile, Segment
from planner.errors import PlannerError
from planner.estimate.fact_check import block_around
from planner.planning.never import base_name
from planner.replay.custom_ops import DECLARED
from planner.training_step.step import Step
from planner.verifier.measure import Results, run_for_results, same_results

USED = "torch's checkpoint is used instead: running the unit again was bit-equal"
ONCE = "nor does torch's checkpoint: {} must not run twice"
WRONG = "torch's checkpoint is no help: running the unit again differs"


def unseen_units(profile: Profile) -> list[Exclusion]:
    """Return the units in which autograd saves what replay cannot make, as no op that ran made it.

    Of nested units the outermost numbered one is named (`layers.3`), a block as a rule.
    """
    found: dict[str, Exclusion] = {}
    for saved in profile.saved:
        value = profile.values[saved.value]
        storage = profile.storages[value.storage]
        unit = profile.ops[storage.birth].unit if storage.birth >= 0 else -1
        if value.op < 0 and storage.category == "activation" and unit >= 0:
            name = block_around(profile, unit)
            op = profile.ops[storage.birth].name
            reason = f"autograd saves what no recorded op made, from {op} on"
            found.setdefault(name, Exclusion(name, reason))
    return list(found.values())


def with_checkpoints(step: Step, profile: Profile, plan: Plan, units: Iterable[Exclusion]) -> Plan:
    """Return the plan with a checkpoint segment for each of these units where that is right.

    A unit is right when a step with only it checkpointed gives the plain step's outputs, gradients
    and buffers, bit for bit. What was found goes into the exclusions' reasons. A unit with an op
    that must not run twice (an ordered effect, a pin of the user's) is left alone.
    """
    once = _units_around(profile, _run_once(plan))
    plain = run_for_results(step)
    taken: list[str] = []
    segments, reasons = list(plan.segments), {e.unit: e for e in plan.exclusions}
    for unit in units:
        if not unit.unit or any(_overlap(unit.unit, other) for other in taken):
            continue
        if unit.unit in once:
            why = f"{unit.reason}; {ONCE.format(once[unit.unit])}"
            reasons[unit.unit] = Exclusion(unit.unit, why)
            continue
        segment = Segment(
            Boundary(unit.unit, 0, "enter"), Boundary(unit.unit, 0, "exit"), runtime="checkpoint"
        )
        right = _is_right(step, replace(plan, segments=(segment,)), plain)
        if right:  # the whole unit runs again: replays within it would have nothing to do
            segments = [s for s in segments if not _touches(s, unit.unit)]
            segments.append(segment)
            taken.append(unit.unit)
        why = f"{unit.reason}; {USED if right else WRONG}"
        reasons[unit.unit] = Exclusion(unit.unit, why)
    return replace(plan, segments=tuple(segments), exclusions=tuple(reasons.values()))


def _run_once(plan: Plan) -> set[str]:
    """Ops that nothing may run again, by name."""
    refused = {op.name for op in plan.custom_ops if not op.replayable and op.reason not in DECLARED}
    return refused | set(plan.pins.never)


def _units_around(profile: Profile, ops: Collection[str]) -> dict[str, str]:
    """The units whose calls run one of these ops, each with the first of them."""
    found: dict[str, str] = {}
    for op in profile.ops:
        name, unit = base_name(op.name), op.unit
        while name in ops and unit >= 0:
            found.setdefault(profile.units[unit].name, name)
            unit = profile.units[unit].parent
    return found


def _is_right(step: Step, plan: Plan, plain: Results) -> bool:
    try:
        with applied(step.model, Runtime(plan)):
            return all(same_results(plain, run_for_results(step)))
    except PlannerError:
        return False


def _touches(segment: Segment, unit: str) -> bool:
    return _overlap(unit, segment.start.unit) or _overlap(unit, segment.end.unit)


def _overlap(a: str, b: str) -> bool:
    return a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.") or not b
