"""What a situation is: a tiny model plus the training loop that makes it hard to checkpoint.

Theme modules declare situations with the `situation` decorator, `runner` trains them and
`tests/test_situations.py` asserts on the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .parts import Batches, mean_square


def call_directly(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the model as most training loops do."""
    return model(*args, **kwargs)


def backward_from_loss(loss: Tensor, out: Any, model: nn.Module) -> None:
    """Run the usual single backward pass."""
    loss.backward()


@dataclass
class Setup:
    """One freshly built model with everything its training loop does around it.

    `batches(i)` gives `(args, kwargs)` of micro-batch `i`; `accumulate` micro-batches make one
    optimizer step and there are `steps` of those. `state(model)` is read after each step and
    `after(model)` once at the end; both must come out the same under a plan. `wrap(model)` is
    what the user puts around the model after the plan is applied; `cleanup()` always runs.
    """

    model: nn.Module
    batches: Batches
    loss: Callable[[Any], Tensor] = mean_square
    steps: int = 2
    call: Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], Any] = call_directly
    backward: Callable[[Tensor, Any, nn.Module], None] = backward_from_loss
    accumulate: int = 1
    state: Callable[[Any], Any] | None = None
    after: Callable[[Any], Any] | None = None
    wrap: Callable[[nn.Module], nn.Module] | None = None
    cleanup: Callable[[], None] | None = None


@dataclass(frozen=True)
class Tolerance:
    """How far apart two runs may be; both zero means equal bit for bit."""

    relative: float = 0.0
    absolute: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether only equal bits count as equal."""
        return self.relative == 0.0 and self.absolute == 0.0


@dataclass(frozen=True)
class Situation:
    """A publicly reported way in which activation checkpointing goes wrong.

    `source` is the report as `owner/repository#number`. `rerun` says what becomes of the model
    when torch's own `checkpoint(use_reentrant=False)` is put around every block: "equal",
    "differs" (silently) or "raises". `may_refuse` allows a clear `PlannerError` instead of a
    plan; `recomputes` says that giving up everything must run some ops again. A situation with a
    `budget_fraction` (of what the plain step holds beyond parameters, buffers and gradients)
    must meet that budget, or must be told that it cannot when not `feasible`.
    """

    name: str
    source: str
    story: str
    build: Callable[[], Setup]
    rerun: str = "equal"
    may_refuse: bool = False
    recomputes: bool = True
    needs: str = ""
    tolerance: Tolerance = Tolerance()
    budget_fraction: float | None = None
    feasible: bool = True


def situation(source: str, **traits: Any) -> Callable[[Callable[[], Setup]], Situation]:
    """Turn a builder function into a `Situation` named after it; `traits` are its other fields."""

    def declare(build: Callable[[], Setup]) -> Situation:
        story = (build.__doc__ or "").strip()
        return Situation(build.__name__, source, story, build, **traits)

    return declare
