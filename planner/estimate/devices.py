"""Devices by their rates: what the cost model divides by. The table is `devices.json`.

A row names published peak rates and the share of them that kernels reach in practice (0.7 of the
matrix rate and 0.8 of the bandwidth are what large kernels of torch's libraries come to). On GPUs
`transcendental_per_s` is 16 results per clock and multiprocessor (CUDA C++ Programming Guide,
arithmetic instructions), and `random_per_s` what one dropout draws when bound by bandwidth. A row
made by `planner calibrate` holds measured rates and shares of 1.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path

from planner.errors import DocumentError, InvalidInputsError

_FIX = "take a row of planner/estimate/devices.json as a pattern, or run: planner calibrate -o FILE"


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Rates of one device.

    Attributes:
        name: what the user calls it.
        kind: ``cuda`` or ``cpu``.
        flops_per_s: peak floating-point operations a second of matrix products, by dtype.
        bandwidth_bytes_per_s: of device memory.
        norm_bytes_per_s: bytes that normalisations and reductions read and write a second.
        transcendental_per_s: exponentials and the like a second.
        random_per_s: random numbers a second.
        overhead_ns: least time of any op.
        matmul_share, attention_share, bandwidth_share: share of the peak rates that matrix
            products, fused attention (of the matrix rate) and other kernels reach.
        source: where the numbers are from.
    """

    name: str
    kind: str
    flops_per_s: dict[str, float]
    bandwidth_bytes_per_s: float
    norm_bytes_per_s: float
    transcendental_per_s: float
    random_per_s: float
    overhead_ns: int
    matmul_share: float = 1.0
    attention_share: float = 1.0
    bandwidth_share: float = 1.0
    source: str = ""

    def to_json(self) -> str:
        """Return the row as JSON text."""
        return json.dumps(asdict(self), indent=2) + "\n"


_COLUMNS = tuple(field.name for field in fields(DeviceSpec))
_OPTIONAL = ("matmul_share", "attention_share", "bandwidth_share", "source")


@cache
def known_devices() -> dict[str, DeviceSpec]:
    """Return the devices of the shipped table by name."""
    text = files("planner.estimate").joinpath("devices.json").read_text(encoding="utf-8")
    return {row["name"]: _spec(row, "devices.json") for row in json.loads(text)}


def device_spec(given: str | DeviceSpec) -> DeviceSpec:
    """Return a device by its name in the table, or from the JSON file of that path.

    Raises:
        InvalidInputsError: no device and no file of that name.
        DocumentError: the file holds no device.

    >>> device_spec("h100").kind
    'cuda'
    """
    if isinstance(given, DeviceSpec):
        return given
    if given in known_devices():
        return known_devices()[given]
    path = Path(given)
    if not path.is_file():
        raise InvalidInputsError(
            f"no device is called {given!r}, and no file",
            f"{len(known_devices())} known: {', '.join(known_devices())}",
            "a misspelt name",
            "give one of these names, or the path of a device file made by `planner calibrate`",
        )
    try:
        row = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _bad(given, str(error)) from error
    return _spec(row, given)


def _spec(row: object, source: str) -> DeviceSpec:
    if not isinstance(row, dict):
        raise _bad(source, f"a {type(row).__name__} where an object is wanted")
    missing = [name for name in _COLUMNS if name not in row and name not in _OPTIONAL]
    unknown = [name for name in row if name not in _COLUMNS]
    if missing or unknown:
        raise _bad(source, f"missing: {missing}, unknown: {unknown}")
    rates = [row[n] for n in _COLUMNS if n.endswith(("_per_s", "_share", "_ns")) and n in row]
    numbers = [x for rate in rates for x in (rate.values() if isinstance(rate, dict) else [rate])]
    if not numbers or not all(type(x) in (int, float) and x > 0 for x in numbers):
        raise _bad(source, f"rates that are not positive numbers: {numbers}")
    return DeviceSpec(**row)


def _bad(source: str, found: str) -> DocumentError:
    return DocumentError(
        f"{source} describes no device", found, "edited by hand", _FIX, path=source
    )
