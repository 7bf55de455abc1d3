"""`Device`: where a step would run that is not run here. A value that `planner.plan` takes."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import InvalidInputsError
from planner.estimate.devices import DeviceSpec


@dataclass(frozen=True, slots=True)
class Device:
    """A device by its rates, and how many of them share the step.

    Attributes:
        spec: the name of a device ("h100", "a100", ...), the path of a device file, or its rates;
            None for a CPU of the table.
        ranks: how many share parameters, gradients and optimizer state. Inputs are those of one.

    Raises:
        InvalidInputsError: fewer than one rank.
    """

    spec: str | DeviceSpec | None = None
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise InvalidInputsError(
                "a step needs a rank to run on",
                f"ranks={self.ranks}, at least 1",
                "a step is run by one rank or more",
                'pass planner.Device("h100", ranks=1), or leave ranks out',
            )
