"""What ``print`` shows of a plan and of a profile. Pure text, no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from typing import get_args

from planner.documents.plan import Plan, Segment
from planner.documents.printing.grid import facts, grid, printable
from planner.documents.printing.segments import runs, segment_label
from planner.documents.profile import Category, Profile
from planner.documents.step import CustomOp, Exclusion, StepInfo
from planner.units import format_bytes, format_bytes_exact, format_ns, format_percent


def plan_table(plan: Plan) -> str:
    """Return a plan as text: its figures, its segments and its exclusions."""
    title = f"Plan for {plan.model_class}: {plan.status}, found by {plan.solver}"
    parts = [
        [printable(title), *facts(_plan_facts(plan))],
        _segment_lines(plan),
        _listed("Never recomputed:", _reasons(plan.exclusions)),
        _listed("Ops outside aten:", _custom_ops(plan.custom_ops)),
        _listed("Pinned by you:", _pins(plan)),
        _listed("Notes:", plan.notes),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _plan_facts(plan: Plan) -> list[tuple[str, str]]:
    if plan.status == "manual":
        return [("predictions", "none: written by hand; planner.verify measures what it does")]
    measured = plan.measured_peak_bytes
    return [
        ("made for", _step_text(plan.step)),
        ("budget", format_bytes(plan.budget_bytes)),
        ("plain peak", format_bytes(plan.plain_peak_bytes)),
        ("predicted peak", against_budget(plan.predicted_peak_bytes, plan.budget_bytes)),
        (
            "measured peak",
            "not measured" if measured is None else against_budget(measured, plan.budget_bytes),
        ),
        ("smallest peak", "" if plan.floor_bytes is None else format_bytes(plan.floor_bytes)),
        ("overhead", f"{format_percent(plan.predicted_overhead_ratio)} of the plain step"),
        ("still to save", "" if plan.gap is None else _still_to_save(plan.gap)),
    ]


def _still_to_save(gap: float) -> str:
    return f"at most {format_percent(gap)} of the overhead" if gap else "nothing, which is proven"


def against_budget(peak_bytes: int, budget_bytes: int) -> str:
    """Return a peak with its distance from the budget; a budget of 0 is none."""
    if not budget_bytes:  # a plan written by hand has none
        return format_bytes(peak_bytes)
    slack = budget_bytes - peak_bytes
    side = "below" if slack >= 0 else "ABOVE"
    return f"{format_bytes(peak_bytes)} ({format_bytes(abs(slack))} {side} the budget)"


def _step_text(step: StepInfo) -> str:
    tensors = ", ".join(f"{t.path} {list(t.shape)} {t.dtype}" for t in step.inputs[:4])
    more = f" and {len(step.inputs) - 4} more" if len(step.inputs) > 4 else ""
    parts = [
        tensors + more,
        step.device,
        step.autocast and f"autocast {step.autocast}",
        f"{step.mode} mode",
        _optimizer_text(step),
        f"gradients of {format_bytes(step.gradient_bytes)} at the start"
        if step.gradient_bytes
        else "",
        f"{step.root_calls} calls of the model" if step.root_calls != 1 else "",
        f"sharded over {step.shards} ranks" if step.shards != 1 else "",
        step.estimated_for and f"estimated for {step.estimated_for}",
    ]
    return "; ".join(part for part in parts if part)


def _optimizer_text(step: StepInfo) -> str:
    if not step.optimizer:
        return "optimizer: none, its state is not counted"
    if not step.optimizer_state_bytes:
        return step.optimizer
    return f"{step.optimizer} with {format_bytes(step.optimizer_state_bytes)} of state"


def _segment_lines(plan: Plan) -> list[str]:
    if not plan.segments:
        fits = plan.plain_peak_bytes <= plan.budget_bytes
        why = "The plain step already fits the budget: " if fits else ""
        return [why + ("nothing is recomputed." if fits else "Nothing is recomputed.")]
    head = ["segment", "saved", "kept", "given up", "replayed ops", "recompute"]
    total = ["total", *_numbers(plan.segments)]
    rows = [[_run_label(run), *_numbers(run)] for run in runs(plan.segments)]
    return grid(head, [*rows, total] if len(rows) > 1 else rows)


def _run_label(run: tuple[Segment, ...]) -> str:
    label = segment_label(run[0], run[-1])
    if len(run) > 1:
        label += f" ({len(run)} alike)"
    if run[0].cuts:
        label += f" in {len(run[0].cuts) + 1} parts"
    return label if run[0].runtime == "replay" else f"{label} by {run[0].runtime}"


def _numbers(segments: Iterable[Segment]) -> list[str]:
    """Return the sums over some segments, one text for each column."""
    parts = tuple(segments)
    saved = sum(part.saved_bytes for part in parts)
    kept = sum(part.kept_bytes for part in parts)
    return [
        format_bytes(saved),
        format_bytes(kept),
        format_bytes(max(0, saved - kept)),
        f"{sum(part.replayed_ops for part in parts):,}",
        format_ns(sum(part.recompute_ns for part in parts)),
    ]


def _reasons(exclusions: Iterable[Exclusion]) -> list[str]:
    return [f"{exclusion.unit or '.'}: {exclusion.reason}" for exclusion in exclusions]


def _pins(plan: Plan) -> list[str]:
    saved = [f"{unit or '.'}: always saved" for unit in plan.pins.save]
    given_up = [f"{unit or '.'}: always recomputed" for unit in plan.pins.recompute]
    return saved + given_up + [f"{op}: never replayed" for op in plan.pins.never]


def _custom_ops(ops: Iterable[CustomOp]) -> list[str]:
    return [f"{op.name}: {'replayed' if op.replayable else 'stays'}, it {op.reason}" for op in ops]


def _listed(title: str, lines: Iterable[str]) -> list[str]:
    body = [f"  {printable(line)}" for line in lines]
    return [title, *body] if body else []


def profile_table(profile: Profile) -> str:
    """Return a profile as text: the step, its peak and what holds it, and who saves most."""
    plain_peak = format_bytes_exact(profile.plain_peak_bytes)
    lines = facts(
        [
            ("made for", _step_text(profile.step)),
            ("plain peak", plain_peak),
            ("step time", format_ns(profile.step_time_ns)),
            ("forward time", format_ns(profile.forward_time_ns)),
            ("recorded", _counts(profile)),
        ]
    )
    parts = [
        [printable(f"Profile of {profile.model_class}"), *lines],
        grid(("alive at the peak", "size"), _sized(_held_at_peak(profile))),
        grid(("unit", "saved for backward"), _sized(_saved_by_unit(profile).most_common(8))),
        _listed("Never recomputed:", _reasons(profile.excluded)),
        _listed("Ops outside aten:", _custom_ops(profile.custom_ops)),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _counts(profile: Profile) -> str:
    forward = sum(op.phase == "forward" for op in profile.ops)
    return (
        f"{len(profile.ops):,} ops ({forward:,} in forward), {len(profile.units):,} unit calls, "
        f"{len(profile.saved):,} saved tensors, {len(profile.storages):,} storages"
    )


def _sized(sizes: Iterable[tuple[str, int]]) -> list[tuple[str, str]]:
    return [(name or ".", format_bytes(size)) for name, size in sizes]


def _held_at_peak(profile: Profile) -> list[tuple[str, int]]:
    """Return the bytes of each category at the op where most bytes are alive."""
    changes = [0] * (len(profile.ops) + 3)  # op i stands at i + 1, for lives that begin at -1
    for storage in profile.storages:
        changes[storage.birth + 1] += storage.bytes
        changes[storage.death + 2] -= storage.bytes
    live = list(accumulate(changes))
    peak = live.index(max(live)) - 1
    held = Counter[str]()
    for storage in profile.storages:
        if storage.birth <= peak <= storage.death:
            held[storage.category] += storage.bytes
    return [(category, held[category]) for category in get_args(Category) if held[category]]


def _saved_by_unit(profile: Profile) -> Counter[str]:
    """Return the activation bytes that autograd holds, by the unit that made them."""
    by_unit = Counter[str]()
    for index in sorted({profile.values[saved.value].storage for saved in profile.saved}):
        storage = profile.storages[index]
        if storage.category == "activation" and storage.birth >= 0:
            unit = profile.ops[storage.birth].unit
            by_unit[profile.units[unit].name if unit >= 0 else "outside any unit"] += storage.bytes
    return by_unit
