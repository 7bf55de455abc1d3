"""Ops outside aten: which ones a replay may run, and which ones the user has vouched for.

NOBODY VOUCHED   a schema does not say all that a kernel does. An op outside aten is replayed only
                 where a vetting run found that it repeats itself (`planner.profiler.vetting`), or
                 where the user registered it; any other one runs once, and its results stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops.effects import _get_effect

from planner.documents import CustomOp
from planner.errors import InvalidInputsError
from planner.replay.collectives import is_collective

ATEN_NAMESPACES = frozenset({"aten", "prim", "prims"})
"""Their schemas, with the tables of `planner.replay.traits`, tell all that their kernels do."""

WRITES_ARGUMENT = "writes an argument"
RETURNS_VIEW = "returns a view of an argument"
DECLARED = frozenset({WRITES_ARGUMENT, RETURNS_VIEW})
"""Reasons not to replay an op by itself that a schema declares; its unit may run again."""

_vouched: set[str] = set()


@dataclass(frozen=True, slots=True)
class OpRules:
    """Which ops are replayed, beyond what their schemas tell.

    Attributes:
        replayable: ops outside aten that may be replayed, by name (``lib::op``).
        never: ops whose results always stay, of any namespace.
        least_drawn_bytes: a random op of the CPU that draws less than this is not replayed: a
            generator state would take more than what it drew.
    """

    replayable: frozenset[str] = frozenset()
    never: frozenset[str] = frozenset()
    least_drawn_bytes: int = 0

    def keep_results_of(self, name: str, custom: bool) -> bool:
        """Return whether what an op makes stays.

        Args:
            name: the op, without its overload.
            custom: whether it is outside aten.
        """
        if name in self.never:
            return True
        return custom and name not in self.replayable and name not in _vouched


NO_RULES = OpRules()


def op_rules(ops: Iterable[CustomOp], never: Iterable[str] = ()) -> OpRules:
    """Return the rules for ops that were vetted.

    Args:
        ops: what was found; one that may not be replayed stays even if the user registered it.
        never: the user's pins.
    """
    seen = list(ops)
    refused = {op.name for op in seen if not op.replayable}
    return OpRules(frozenset(op.name for op in seen if op.replayable), frozenset(never) | refused)


def register_replayable(name: str) -> None:
    """Vouch for an op outside aten: it makes the same bits from the same arguments, and no more.

    Such an op is replayed also where no step is run to find out: under plans written by hand, and
    while planning on the fly. A vouched op may use memory of its own, or draw from the default
    generator of the device on which its results are.

    Args:
        name: the op, as ``lib::op``; it may be defined later.

    Raises:
        InvalidInputsError: this is no op's name, or an op that is never replayed: it writes an
            argument, returns a view, has a registered effect, or communicates.
    """
    namespace, _, op = name.partition("::")
    if not (namespace.isidentifier() and op.isidentifier()):
        raise InvalidInputsError(
            f"{name!r} is no op's name",
            cause="an op is named by its library and its name, without an overload",
            fix='planner.register_replayable("lib::op")',
        )
    packet = getattr(getattr(torch.ops, namespace), op, None)
    for overload in packet.overloads() if packet is not None else ():
        reason = refusal(getattr(packet, overload))
        if reason:
            raise InvalidInputsError(
                f"{name} cannot be replayed: it {reason}",
                cause="a replay would do again what must happen once",
                fix="leave it unregistered: its results stay in memory, and all else is planned",
            )
    _vouched.add(name)


def is_custom(func: Any) -> bool:
    """Whether something is an op outside aten that takes or returns tensors.

    Others have nothing to do with memory: marks for profilers, and the like.
    """
    if not isinstance(func, torch._ops.OpOverload) or func.namespace in ATEN_NAMESPACES:
        return False
    schema = func._schema
    return any("Tensor" in str(a.type) for a in (*schema.arguments, *schema.returns))


def is_vouched(name: str) -> bool:
    """Whether the user registered an op."""
    return name in _vouched


def refusal(func: torch._ops.OpOverload) -> str:
    """Return why an op outside aten is never replayed, or "" where only a run can tell."""
    arguments, returns = func._schema.arguments, func._schema.returns
    aliases = [a.alias_info for a in (*arguments, *returns) if a.alias_info is not None]
    if is_collective(func):
        return "communicates with other processes"
    if any(alias.is_write for alias in aliases):
        return WRITES_ARGUMENT
    if aliases:
        return RETURNS_VIEW
    if _get_effect(func) is not None:
        return "has an ordered effect"
    if any("__torch__" in str(a.type) for a in arguments):
        return "takes an object with a state of its own"
    if not any("Tensor" in str(r.type) for r in returns):
        return "returns no tensor, so it is called for an effect"
    return ""
