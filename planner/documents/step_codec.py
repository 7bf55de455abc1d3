"""Reading the parts that plans and profiles share."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from planner.documents.reader import Node
from planner.documents.step import Exclusion, StepInfo, TensorSpec


def names(kind: Any) -> tuple[str, ...]:
    """Return a dataclass's field names, which are also its JSON keys or columns, in order."""
    return tuple(field.name for field in fields(kind))


_STEP = names(StepInfo)
_TENSOR = names(TensorSpec)
_EXCLUSION = names(Exclusion)


def read_step(node: Node) -> StepInfo:
    """Read a `StepInfo`."""
    at = node.record(_STEP)
    return StepInfo(
        inputs=tuple(_tensor(item) for item in at["inputs"].items()),
        device=at["device"].text(),
        autocast=at["autocast"].text(),
        optimizer=at["optimizer"].text(),
        root_calls=at["root_calls"].integer(),
        shards=at["shards"].integer(1),
        estimated_for=at["estimated_for"].text(),
    )


def _tensor(node: Node) -> TensorSpec:
    at = node.record(_TENSOR)
    return TensorSpec(at["path"].text(), at["shape"].integers(), at["dtype"].text())


def read_exclusions(node: Node) -> tuple[Exclusion, ...]:
    """Read a list of `Exclusion`."""
    records = (item.record(_EXCLUSION) for item in node.items())
    return tuple(Exclusion(at["unit"].text(), at["reason"].text()) for at in records)
