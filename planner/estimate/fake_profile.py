"""Profiles a step without running it: on tensors without memory, with times from a cost model.

The step's Python runs as always; each op only computes shapes. Storages have their true sizes and
live as long as in a real step, so the memory facts are those of the step itself, whatever its
size. Torch picks kernels by device as it would for real tensors (the CPU's attention kernel for
tensors that claim to be on the CPU), which plain meta tensors would not tell it.

Called by `planner.api` for models on the meta device, for other devices than the model's, and
where the plain step would need more memory than there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from planner.documents import CustomOp, Profile
from planner.errors import PlannerError, StepError
from planner.estimate.cost_model import CostModel
from planner.estimate.fake_tensors import fake_step
from planner.memory.kernel_workspaces import KernelWorkspaces
from planner.profiler.build import to_profile, tracked
from planner.profiler.data_dependence import answering
from planner.profiler.recorder import Recording, StepRecorder, flops_of, run_recorded
from planner.replay.custom_ops import NO_RULES, OpRules, op_rules
from planner.replay.flow import PLAIN
from planner.replay.trees import tensors_in
from planner.training_step.same_state import begin, clear_gradients
from planner.training_step.state import preserve_values
from planner.training_step.step import Step, model_device

_NEEDS_CONTENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)


def build_fake_profile(
    step: Step,
    costs: CostModel,
    *,
    device: torch.device | None = None,
    answers: Sequence[object] | None = None,
    custom_ops: tuple[CustomOp, ...] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Return the profile of a step that is not run: exact memory facts, estimated times.

    Allocates memory for no tensor of the step; on the CPU each kind of op is run once, on zeros,
    for what its kernel takes inside itself. The model is left exactly as it was.

    Args:
        step: the training step; its model may be on the meta device.
        costs: what an op would take.
        device: where the step's tensors pretend to be; by default where they are, and the CPU for
            meta tensors.
        answers: the answers that a real forward got about the content of tensors.
        custom_ops: what a real forward showed of ops outside aten; by default only those that the
            user registered are replayed.
        progress: called with the name of each run as it begins.

    Raises:
        StepError: the step raised, or needs the content of a tensor; the op is named.
        InvalidModelError: it has tensors that cannot be fake.
    """
    say = progress or (lambda text: None)
    found: list[Recording] = []
    with explained(), fake_step(step, device) as fake:
        say("warm up")
        with answering(answers):
            begin(fake)
        with preserve_values(fake), answering(answers):
            fake.run()  # fakes that are made the first time are held on to
        clear_gradients(fake)
        # A forward that ran shows its own workspaces (see `planner.estimate.fact_check`).
        on_cpu = device is None and model_device(step.model).type == "cpu"
        for give_up in (False, True):
            say("natural lives" if give_up else "record")
            last = found[0].backwards if found else 1
            rules = op_rules(custom_ops or ())
            kernels = KernelWorkspaces() if on_cpu and answers is None and not give_up else None
            recorder = FakeRecorder(fake.model, costs, give_up, last, rules, kernels, on_cpu)
            with preserve_values(fake), answering(answers):
                found.append(run_recorded(fake.model, fake.run, tracked(fake), recorder=recorder))
            clear_gradients(fake)
        times = [op.time_ns for op in found[0].ops]
        profile = to_profile(fake, found[0], found[1], times, sum(times))
        return profile if custom_ops is None else replace(profile, custom_ops=custom_ops)


class FakeRecorder(StepRecorder):
    """A `StepRecorder` that follows fake tensors and asks a cost model for times."""

    def __init__(
        self,
        model: nn.Module,
        costs: CostModel,
        give_up: bool = False,
        last: int = 1,
        rules: OpRules = NO_RULES,
        kernels: KernelWorkspaces | None = None,
        on_cpu: bool = False,
    ) -> None:
        super().__init__(model, give_up, last, kernels, rules)
        self.costs = costs
        self.kernels = kernels
        self.on_cpu = on_cpu

    def _on_tape(self, tree: object) -> bool:
        return all(
            type(t) in (FakeTensor, *PLAIN) and t.layout is torch.strided and not t.is_inference()
            for t in tensors_in(tree)
        )

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.grad_fn is None else tensor.detach()  # below it is no fake

    def _timed(self, op: Any, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        if self.on_cpu and func is torch.ops.aten.native_group_norm.default:
            out = _laid_out_as(args[0], out)
        flops = flops_of(func, args, kwargs, out)
        op.time_ns = self.costs.time_ns(func, (args, kwargs), out, flops)
        if self.kernels is not None:
            self.kernels.note(func, args, kwargs)
        return out


def _laid_out_as(x: torch.Tensor, out: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Return group norm's results as the CPU's kernel lays them out: channels last where x is.

    The fake kernel of torch 2.14 makes them contiguous; convolutions behind them then differ.
    """
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return (torch.empty_like(x, memory_format=torch.channels_last), *out[1:])
    return out


@contextmanager
def explained() -> Iterator[None]:
    """Say which op needs more than shapes, where one does, and what else raised without memory."""
    try:
        yield
    except Exception as error:
        if isinstance(error, PlannerError) and error.__cause__ is None:
            raise  # its own words: nothing below it failed
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, _NEEDS_CONTENT):
            cause = cause.__cause__
        raise _raised(error) if cause is None else _needs_content(cause) from error


def _needs_content(cause: BaseException) -> StepError:
    op = getattr(cause, "func", None) or cause
    return StepError(
        f"the step cannot be profiled without running it: {op} needs the content of a tensor",
        cause="a value computed from the data decides what the model does next, as in"
        " `if mask.all()` or `x[mask]`",
        fix="profile it where it runs, planner.profile(model, inputs=...) with a real model,"
        " or take the branch out of the training step",
    )


def _raised(error: Exception) -> StepError:
    what, text = f"{type(error).__name__} was raised", str(error)
    if isinstance(error, PlannerError):
        what, text = error.what, error.cause
    return StepError(
        f"the step cannot be profiled without running it: on tensors without memory, {what}",
        cause=f"{text}; either the step raises this itself, or a kernel looks at memory that these"
        " tensors do not have, as fused recurrent layers may",
        fix="run the step by hand; if that works, plan without Capped and device, and where it"
        " needs too much memory, planner.apply(model, budget_mb=...) recomputes every block",
    )
