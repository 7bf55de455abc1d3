"""Profiles a model: runs its step a few times and writes down what happened as a `Profile`.

Runs: one to warm up (the allocator, kernels that tune themselves), one recorded, one forward with
everything given up (the natural deaths), plain ones timed, and some with every op timed. All begin
from the same state, and afterwards everything is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from planner.documents import Exclusion, Op, Profile, SavedTensor, Storage, UnitCall, Value
from planner.documents.profile import Category
from planner.memory.allocator import blocks_of, outside, release_cached, warm_libraries
from planner.memory.meter import meter_for, step_tensors
from planner.memory.peak import peak_of
from planner.memory.rounding import in_blocks
from planner.memory.workspaces import Workspaces, as_storage, unseen, workspaces_of
from planner.profiler.natural import merge_lives, shared_ops
from planner.profiler.recorder import Recording, StepRecorder, run_recorded
from planner.profiler.timing import OpTimer, best_op_times, time_run
from planner.profiler.vetting import Vetting, unvetted
from planner.replay.custom_ops import op_rules
from planner.replay.flow import Key
from planner.training_step.compiled import COMPILED, compiled_units
from planner.training_step.fingerprint import fingerprint
from planner.training_step.same_state import from_same_state
from planner.training_step.state import preserving
from planner.training_step.step import Step, model_device
from planner.training_step.storages import tensors_in

SHORT_STEP_NS = 50_000_000
"""A step under this is timed more often: noise weighs more on it, and it costs little."""
RUNS = {"short": 5, "long": 2}
OP_TIMED_RUNS = {"short": 3, "long": 1}
NATURAL_RUNS = 4
"""Most runs to see natural lives: where steps take turns, one with the recorded ops is used."""


def build_profile(
    step: Step,
    progress: Callable[[str], None] | None = None,
    workspaces: Workspaces | None = None,
) -> Profile:
    """Run a step a few times and return its profile; the model is left exactly as it was.

    Args:
        step: the training step (see `make_step`).
        progress: called with the name of each run as it begins.
        workspaces: measures what ops take inside themselves; by default what the device's
            allocator tells.

    Raises:
        StepError: the step raised.
    """
    model, device = step.model, model_device(step.model)
    say = progress or (lambda text: None)

    with from_same_state(step):
        preserved = preserving(model, step.optimizer, step)

        def fresh(run: Callable[[], object]) -> None:
            with preserved():
                run()

        say("warm up")
        warm_libraries(device)
        vetting = Vetting()
        fresh(lambda: _under(vetting, step))
        rules = op_rules(vetting.found)
        say("record")
        plain: list[Recording] = []

        def record(give_up: bool, last: int, inside: Workspaces | None) -> None:
            recorder = StepRecorder(model, give_up, last, inside, rules)
            run = partial(run_recorded, model, step.run, tracked(step), recorder=recorder)
            fresh(lambda: plain.append(run()))

        record(False, 1, workspaces or workspaces_of(device))
        step.existing = tuple(plain[0].existing)
        say("natural lives")
        for _ in range(NATURAL_RUNS):
            record(True, plain[0].backwards, None)
            if shared_ops(plain[0], plain[-1]) == len(plain[-1].ops):
                break
        say("time")
        steps_ns: list[int] = []
        fresh(lambda: steps_ns.append(time_run(step.run, device)))
        kind = "short" if steps_ns[0] < SHORT_STEP_NS else "long"
        for _ in range(RUNS[kind] - 1):
            fresh(lambda: steps_ns.append(time_run(step.run, device)))
        timers = [OpTimer(device) for _ in range(OP_TIMED_RUNS[kind])]
        for timer in timers:
            fresh(lambda timer=timer: _under(timer, step))  # type: ignore[misc]
        # The allocator knows nothing of workspaces that the caller gives.
        counted = None if workspaces is not None else _count(step, device, preserved)
    names = [op.name for op in plain[0].ops]
    times = best_op_times(names, [op.time_ns for op in plain[0].ops], timers)
    natural = max(plain[1:], key=lambda run: shared_ops(plain[0], run))
    profile = to_profile(step, plain[0], natural, times, min(steps_ns), counted)
    return replace(profile, custom_ops=vetting.found)


def _under(mode: OpTimer | Vetting, step: Step) -> None:
    with mode:
        step.run()


def tracked(step: Step) -> dict[Category, list[torch.Tensor]]:
    """Return what is alive before the step, by category."""
    model = step.model
    state = step.optimizer.state.values() if step.optimizer is not None else ()
    return {
        "parameter": list(model.parameters()),
        "buffer": list(model.buffers()),
        "optimizer": list(tensors_in(state)),
        "gradient": [p.grad for p in model.parameters() if p.grad is not None],
        "input": list(step.input_tensors),
    }


def to_profile(
    step: Step,
    plain: Recording,
    natural: Recording,
    times: Sequence[int],
    step_ns: int,
    counted: Counted | None = None,
) -> Profile:
    """Put two recordings, plain and with everything given up, together.

    Args:
        step: the step that was recorded.
        plain, natural: the recordings.
        times: of each op, in nanoseconds.
        step_ns: of the whole step.
        counted: what the device's allocator counted, where it does more than sum recorded lives.
    """
    ids = _value_ids(plain)
    ops = tuple(
        Op(
            name=op.name,
            unit=op.unit,
            phase=op.phase,
            inputs=tuple(ids[k] for k in op.inputs if k in ids),
            outputs=tuple(ids[k] for k in op.outputs if k in ids),
            time_ns=ns,
            flops=op.flops,
            replayable=op.replayable,
            random=op.random,
        )
        for op, ns in zip(plain.ops, times, strict=True)
    )
    storages = _storages(step, plain, natural, counted)
    return Profile(
        model_class=type(step.model).__name__,
        fingerprint=fingerprint(step.model),
        step=replace(
            step.describe(),
            optimizer_state_bytes=_bytes_before(storages, "optimizer"),
            gradient_bytes=_bytes_before(storages, "gradient"),
        ),
        units=_units(plain),
        ops=ops,
        values=_values(plain, ids),
        storages=storages,
        saved=tuple(
            SavedTensor(ids[pack.key], pack.packed_at, pack.unpacked_at)
            for pack in plain.packs
            if pack.key in ids
        ),
        plain_peak_bytes=counted.peak_bytes if counted else peak_of(storages, len(ops)),
        step_time_ns=step_ns,
        forward_time_ns=sum(op.time_ns for op in ops if op.phase == "forward"),
        excluded=_excluded(step.model),
        custom_ops=unvetted(plain.custom_ops.values()),
    )


def _bytes_before(storages: Sequence[Storage], category: str) -> int:
    """Bytes of a category that are there when the step begins."""
    return sum(s.bytes for s in storages if s.category == category and s.birth < 0)


def _value_ids(plain: Recording) -> dict[Key, int]:
    """Number the values in order of first sight; those without a storage of ours are left out."""
    keys: dict[Key, int] = {}
    seen = [k for op in plain.ops for k in (*op.inputs, *op.outputs)]
    for key in (*seen, *(pack.key for pack in plain.packs if pack.key is not None)):
        if key[0] in plain.life_of_slot:
            keys.setdefault(key, len(keys))
    return keys


def _values(plain: Recording, ids: dict[Key, int]) -> tuple[Value, ...]:
    maker = {k: i for i, op in enumerate(plain.ops) if op.replayable for k in op.outputs}
    return tuple(Value(plain.life_of_slot[key[0]], key[1], maker.get(key, -1)) for key in ids)


def _units(plain: Recording) -> tuple[UnitCall, ...]:
    assert plain.calls is not None
    return tuple(
        UnitCall(c.name, c.call, c.root_call, c.kind, c.parent, c.enter, c.exit)
        for c in plain.calls.calls
    )


def find_existing(step: Step) -> None:
    """Record a step once to find what was there before it; see `Step.existing`."""
    with from_same_state(step):
        recording = run_recorded(step.model, step.run, tracked(step))
    step.existing = tuple(recording.existing)


def alive_before(step: Step) -> list[torch.Tensor]:
    """Return tensors on all storages that are known to be there before a step."""
    existing = (torch.empty(0, dtype=torch.uint8, device=s.device) for s in step.existing or ())
    return [
        *step_tensors(step.model, step.optimizer, step.input_tensors),
        *(tensor.set_(s) for tensor, s in zip(existing, step.existing or (), strict=True)),
    ]


@dataclass(frozen=True, slots=True)
class Counted:
    """What a device's allocator counted in a plain step: at its beginning, and at most."""

    baseline_bytes: int
    peak_bytes: int


def _count(
    step: Step, device: torch.device, preserved: Callable[[], AbstractContextManager[None]]
) -> Counted | None:
    """Measure the plain step's memory where an allocator tells it."""
    if blocks_of(device) is None and device.type != "cpu":
        return None
    with preserved():
        release_cached(device)  # a cached block may count for more, and so would garbage
        with meter_for(device, alive_before(step)) as meter:
            step.run()
    return Counted(meter.baseline_bytes, meter.peak_bytes)


def _storages(
    step: Step, plain: Recording, natural: Recording, counted: Counted | None
) -> tuple[Storage, ...]:
    """Return the lives of tensors, the workspaces of ops, and what else is on the device."""
    end = len(plain.ops)
    found = in_blocks(merge_lives(plain, natural), blocks_of(model_device(step.model)))
    found = (*found, *unseen(found, plain.levels))
    taken = ((i, op.workspace_bytes) for i, op in enumerate(plain.ops) if op.workspace_bytes)
    found = (*found, *(as_storage(i, size) for i, size in taken))
    return found if counted is None else (*found, *outside(found, counted.baseline_bytes, end))


def _excluded(model: nn.Module) -> tuple[Exclusion, ...]:
    return tuple(Exclusion(name, COMPILED) for name in compiled_units(model))
