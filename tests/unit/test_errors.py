"""The error tree: four parts in every message, attributes, pickling."""

from __future__ import annotations

import pickle
import re

import pytest

import planner
import planner.errors as errors
from planner.errors import (
    DocumentError,
    InfeasibleBudgetError,
    PlanFileExistsError,
    PlannerError,
    ReplayError,
    StalePlanError,
    StepError,
    UnknownUnitError,
)

EXAMPLES: list[PlannerError] = [
    PlannerError("it failed", "2 B found, 1 B needed", "a slip", "try again"),
    StepError("the step raised", fix="see the traceback"),
    InfeasibleBudgetError(budget_bytes=10, min_peak_bytes=20, holders=(("parameters", 15),)),
    StalePlanError(units=("h.0", "h.1")),
    UnknownUnitError(name="h.O", near=("h.0",)),
    DocumentError("bad", "found 1", "cut short", "make it again", path="p.json", field="a.b"),
    PlanFileExistsError(path="p.json"),
    ReplayError("the replay differs", unit="h.0"),
]


def every_class() -> list[type[PlannerError]]:
    return [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, PlannerError)
    ]


def test_the_message_has_the_four_parts_on_lines_of_their_own() -> None:
    error = PlannerError("it failed", "2 B found, 1 B needed", "a slip", "try again")
    assert str(error).splitlines() == [
        "it failed",
        "  numbers: 2 B found, 1 B needed",
        "  likely cause: a slip",
        "  next step: try again",
    ]
    assert (error.what, error.numbers, error.cause, error.fix) == (
        "it failed",
        "2 B found, 1 B needed",
        "a slip",
        "try again",
    )


def test_empty_parts_leave_no_line() -> None:
    assert str(PlannerError("it failed", fix="try again")) == "it failed\n  next step: try again"


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_the_message_and_every_attribute(error: PlannerError, protocol: int) -> None:
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_an_infeasible_budget_names_both_sizes_and_what_holds_them() -> None:
    error = InfeasibleBudgetError(
        budget_bytes=300 * 1024**2,
        min_peak_bytes=400 * 1024**2,
        holders=(("parameters", 350 * 1024**2), ("logits and loss", 50 * 1024**2)),
    )
    assert "budget 300.0 MiB, smallest peak found 400.0 MiB" in error.numbers
    assert "parameters 350.0 MiB, logits and loss 50.0 MiB" in error.cause
    assert "400.0 MiB" in error.fix
    assert error.holders[0] == ("parameters", 350 * 1024**2)


def test_what_the_caller_writes_wins_over_the_default() -> None:
    error = InfeasibleBudgetError(
        "no way", "1 of 2", "big logits", "chunk the loss", budget_bytes=1, min_peak_bytes=2
    )
    assert (error.what, error.numbers, error.cause, error.fix) == (
        "no way",
        "1 of 2",
        "big logits",
        "chunk the loss",
    )


def test_a_stale_plan_names_its_units_but_not_hundreds() -> None:
    error = StalePlanError(units=tuple(f"h.{i}" for i in range(300)))
    assert "h.0, h.1" in error.what and "292 more" in error.what
    assert "300 changed units" in error.numbers
    assert len(error.units) == 300


def test_an_unknown_unit_offers_close_names() -> None:
    error = UnknownUnitError(name="h.O", near=("h.0", "h.10"))
    assert "'h.O'" in error.what and "h.0, h.10" in error.fix


def test_the_tree_has_one_root_and_is_drawn_in_the_docstring() -> None:
    drawn = set(re.findall(r"\b\w+Error\b", errors.__doc__ or ""))
    assert drawn == {kind.__name__ for kind in every_class()}


def test_every_error_is_a_public_name_of_the_package() -> None:
    for kind in every_class():
        assert kind.__name__ in planner.__all__
        assert getattr(planner, kind.__name__) is kind


def test_an_unknown_public_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(planner, "nonsense")  # noqa: B009
