"""planner: the cheapest recomputation plan that keeps a training step within a memory budget.

>>> import planner
>>> p = planner.plan(model, budget_mb=300)        # doctest: +SKIP
>>> handle = planner.apply(model, p)              # doctest: +SKIP

The public names are looked up on first use, so that reading and showing a plan does not import
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from planner.documents.document import register_cell

if TYPE_CHECKING:
    from planner.api import apply as apply
    from planner.api import best_batch as best_batch
    from planner.api import check as check
    from planner.api import plan as plan
    from planner.api import profile as profile
    from planner.api import verify as verify
    from planner.documents import Plan as Plan
    from planner.documents import Profile as Profile
    from planner.documents import load as load
    from planner.documents.frontier import Frontier as Frontier
    from planner.errors import DocumentError as DocumentError
    from planner.errors import InfeasibleBudgetError as InfeasibleBudgetError
    from planner.errors import InvalidBudgetError as InvalidBudgetError
    from planner.errors import InvalidInputsError as InvalidInputsError
    from planner.errors import InvalidModelError as InvalidModelError
    from planner.errors import PlanFileExistsError as PlanFileExistsError
    from planner.errors import PlannerError as PlannerError
    from planner.errors import ProfileNotFoundError as ProfileNotFoundError
    from planner.errors import ReplayError as ReplayError
    from planner.errors import StalePlanError as StalePlanError
    from planner.errors import StepError as StepError
    from planner.errors import UnknownUnitError as UnknownUnitError
    from planner.estimate.device import Device as Device
    from planner.isolation.child_process import isolated as isolated
    from planner.planning.batch.choice import BatchChoice as BatchChoice
    from planner.replay.custom_ops import register_replayable as register_replayable
    from planner.reviews import diff as diff
    from planner.reviews import explain as explain
    from planner.reviews import report as report
    from planner.reviews import trace as trace
    from planner.search.measured.options import Measured as Measured
    from planner.search.method import Capped as Capped
    from planner.sweeps import sweep as sweep
    from planner.verifier import Verification as Verification

__version__ = "0.1.0"

__all__ = [
    "BatchChoice",
    "Capped",
    "Device",
    "DocumentError",
    "Frontier",
    "InfeasibleBudgetError",
    "InvalidBudgetError",
    "InvalidInputsError",
    "InvalidModelError",
    "Measured",
    "Plan",
    "PlanFileExistsError",
    "PlannerError",
    "Profile",
    "ProfileNotFoundError",
    "ReplayError",
    "StalePlanError",
    "StepError",
    "UnknownUnitError",
    "Verification",
    "apply",
    "best_batch",
    "check",
    "diff",
    "explain",
    "isolated",
    "load",
    "plan",
    "profile",
    "register_replayable",
    "report",
    "sweep",
    "trace",
    "verify",
]

_HOMES = {
    "planner.api": ("apply", "best_batch", "check", "plan", "profile", "verify"),
    "planner.documents": ("Plan", "Profile", "load"),
    "planner.planning.batch.choice": ("BatchChoice",),
    "planner.documents.frontier": ("Frontier",),
    "planner.estimate.device": ("Device",),
    "planner.isolation.child_process": ("isolated",),
    "planner.replay.custom_ops": ("register_replayable",),
    "planner.reviews": ("diff", "explain", "report", "trace"),
    "planner.search.measured.options": ("Measured",),
    "planner.search.method": ("Capped",),
    "planner.sweeps": ("sweep",),
    "planner.verifier": ("Verification",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

register_cell("Plan", "planner.reports.notebook", "plan_cell")
register_cell("Profile", "planner.reports.notebook", "profile_cell")
register_cell("Frontier", "planner.reports.notebook", "frontier_cell")


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    home = _HOME_OF.get(name, "planner.errors")  # every other public name is an error
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
