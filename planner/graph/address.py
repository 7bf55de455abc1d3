"""Op addresses, `unit/op/ordinal`, with `#k` for the k-th further output.

The rule is written once here and used both on a profile (`planner.graph.emit`) and, in the
applier, on a running tape. The ordinal counts ops of one name within one unit since the segment
opened, over all calls of that unit, from 0. The root unit is written `.`.
"""

from __future__ import annotations

ROOT = "."


def short_name(op_name: str) -> str:
    """Return an op's name as addresses write it.

    >>> short_name("aten.addmm.default"), short_name("aten.mul.Tensor")
    ('addmm', 'mul.Tensor')
    """
    return op_name.removeprefix("aten.").removesuffix(".default")


def output_address(op_address: str, output: int) -> str:
    """Return the address of an op's output: the op's own for the first.

    >>> output_address("h.0.ln_1/native_layer_norm/0", 2)
    'h.0.ln_1/native_layer_norm/0#2'
    """
    return f"{op_address}#{output}" if output else op_address


def split_output(address: str) -> tuple[str, int]:
    """Return an op's address and the index of its output.

    Raises:
        ValueError: what follows the `#` is not a number.
    """
    tail = address.rpartition("/")[2]
    if "#" not in tail:
        return address, 0
    op_address, _, output = address.rpartition("#")
    if not output.isdecimal():
        raise ValueError(f"{address!r} ends in {output!r}, which is no number of an output")
    return op_address, int(output)


def unit_of(address: str) -> str:
    """Return the unit's qualified name in an address; empty for the root.

    >>> unit_of("h.0.mlp/mul.Tensor/2"), unit_of("./add.Tensor/0")
    ('h.0.mlp', '')
    """
    unit = address.rsplit("/", 2)[0]
    return "" if unit == ROOT else unit


class Addresser:
    """Gives the ops of one segment their addresses, in the order in which they run.

    >>> addresser = Addresser()
    >>> [addresser.next(unit, "aten.mul.Tensor") for unit in ("mlp", "", "mlp")]
    ['mlp/mul.Tensor/0', './mul.Tensor/0', 'mlp/mul.Tensor/1']
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def next(self, unit_name: str, op_name: str) -> str:
        """Return the address of the next op, which ran in `unit_name` (empty for the root)."""
        name = short_name(op_name)
        ordinal = self._counts.get((unit_name, name), 0)
        self._counts[(unit_name, name)] = ordinal + 1
        return f"{unit_name or ROOT}/{name}/{ordinal}"
