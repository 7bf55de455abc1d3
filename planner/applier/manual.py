"""Plans written by hand: whole units recomputed, as `torch.utils.checkpoint` would be used."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

import torch
from torch import nn

from planner.applier.gates import SCRIPTED
from planner.applier.runtime import EVERY_CALL, KEEP_ALL
from planner.documents import Boundary, Exclusion, Plan, Segment, StepInfo
from planner.documents.plan import Runtime
from planner.errors import UnknownUnitError
from planner.training_step.fingerprint import fingerprint


def manual_plan(
    model: nn.Module, units: Sequence[str], *, keep_all: bool = False, runtime: Runtime = "replay"
) -> Plan:
    """Return a plan that recomputes everything inside each named unit, at each of its calls.

    Nothing is measured or predicted; use `plan` for that. Units that cannot be hooked
    (ScriptModules) are excluded.

    Args:
        units: qualified names, none inside another.
        keep_all: record the units but drop nothing (to measure the recording alone).
        runtime: "replay", or "checkpoint" for torch's own recomputation (the fallback).

    Raises:
        UnknownUnitError: a name is no unit of the model.
    """
    modules = dict(model.named_modules())
    for unit in units:
        if unit not in modules:
            raise UnknownUnitError(name=unit, near=tuple(get_close_matches(unit, modules)))
    scripted = [unit for unit in units if isinstance(modules[unit], torch.jit.ScriptModule)]
    segments = tuple(
        Segment(
            Boundary(unit, EVERY_CALL, "enter"),
            Boundary(unit, EVERY_CALL, "exit"),
            runtime=runtime,
            keep=(KEEP_ALL,) if keep_all else (),
        )
        for unit in units
        if unit not in scripted
    )
    return Plan(
        model_class=type(model).__name__,
        fingerprint=fingerprint(model),
        step=StepInfo(),
        budget_bytes=0,
        predicted_peak_bytes=0,
        predicted_overhead_ratio=0.0,
        plain_peak_bytes=0,
        solver="manual",
        status="manual",
        segments=segments,
        exclusions=tuple(Exclusion(unit, SCRIPTED) for unit in scripted),
    )
