"""Small synthetic profiles, with the lifetimes that a real run would give.

`StepBuilder` lays out one training step: forward ops within module calls, then one backward op
for each live forward op in reverse order, then an optimizer op. Locals go after their last use.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from planner.documents.profile import (
    Op,
    Profile,
    SavedTensor,
    StepInfo,
    Storage,
    UnitCall,
    Value,
)


@dataclass(slots=True)
class ToyOp:
    """One forward op: `saves` are packed before it, `saves_out` after it."""

    name: str
    unit: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    writes: tuple[tuple[int, int], ...]
    saves: tuple[int, ...]
    saves_out: tuple[int, ...]
    replayable: bool
    live: bool
    time_ns: int


@dataclass(slots=True)
class StepBuilder:
    """Values are numbered in the order in which they are made."""

    ops: list[ToyOp] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)  # by storage
    categories: list[str] = field(default_factory=list)
    units: list[UnitCall] = field(default_factory=list)
    held: set[int] = field(default_factory=set)  # storages held to the end of the step
    _stack: list[int] = field(default_factory=list)
    _calls: dict[tuple[int, str], int] = field(default_factory=dict)

    def outside(self, size: int, category: str = "parameter") -> int:
        return self._storage(size, category, -1)

    @contextmanager
    def unit(self, name: str, kind: str = "Block") -> Iterator[None]:
        root_call = self._root_call(name)
        call = self._calls.get((root_call, name), 0)
        self._calls[(root_call, name)] = call + 1
        index = len(self.units)
        parent = self._stack[-1] if self._stack else -1
        here = len(self.ops)
        self.units.append(UnitCall(name, call, root_call, kind, parent, here, here))
        self._stack.append(index)
        yield
        self._stack.pop()
        self.units[index] = replace(self.units[index], exit=len(self.ops))

    def op(
        self,
        name: str,
        reads: Sequence[int],
        makes: Sequence[int] = (),
        *,
        writes: Sequence[int] = (),
        saves: Sequence[int] = (),
        saves_out: Sequence[int] = (),
        replayable: bool = True,
        live: bool = True,
        time_ns: int = 1_000,
    ) -> tuple[int, ...]:
        """Add a forward op; `makes` are sizes, `saves_out` numbers of outputs.

        Returns the values it makes, then the new versions that it writes.
        """
        index = len(self.ops)
        made = tuple(self._storage(size, "activation", index) for size in makes)
        written = tuple((old, self._version(old, index)) for old in writes)
        outputs = (*made, *(new for _, new in written))
        unit = self._stack[-1] if self._stack else -1
        out = tuple(outputs[i] for i in saves_out)
        reads = tuple(dict.fromkeys((*reads, *writes)))
        self.ops.append(
            ToyOp(name, unit, reads, made, written, tuple(saves), out, replayable, live, time_ns)
        )
        return outputs

    def hold(self, value: int) -> None:
        """Let somebody hold a value to the end of the step."""
        self.held.add(self.values[value].storage)

    def newest(self, value: int) -> int:
        """Return the newest version of a value's storage."""
        storage = self.values[value].storage
        return max(v for v, x in enumerate(self.values) if x.storage == storage)

    def _storage(self, size: int, category: str, op: int) -> int:
        self.sizes.append(size)
        self.categories.append(category)
        self.values.append(Value(len(self.sizes) - 1, 0, op))
        return len(self.values) - 1

    def _version(self, old: int, op: int) -> int:
        before = self.values[old]
        self.values.append(Value(before.storage, before.version + 1, op))
        return len(self.values) - 1

    def _root_call(self, name: str) -> int:
        if self._stack:
            return self.units[self._stack[-1]].root_call
        return sum(unit.name == "" for unit in self.units)

    # -- the rest of the step -----------------------------------------------------------------

    @property
    def backward_order(self) -> list[int]:
        """Forward ops that have a backward op, in the order of those."""
        return [i for i in reversed(range(len(self.ops))) if self.ops[i].live]

    @property
    def n_ops(self) -> int:
        return len(self.ops) + len(self.backward_order) + 1

    def backward_at(self) -> dict[int, int]:
        """Return the position of each forward op's backward op."""
        return {op: len(self.ops) + i for i, op in enumerate(self.backward_order)}

    def natural_deaths(self) -> list[int]:
        """Return, by storage, the op after which nothing in forward needs it."""
        last = [self.values_born(s) for s in range(len(self.sizes))]
        for index, op in enumerate(self.ops):
            for value in (*op.reads, *op.makes, *(new for _, new in op.writes)):
                last[self.values[value].storage] = index
        return [
            self.n_ops if s in self.held or self.values_born(s) < 0 else last[s]
            for s in range(len(self.sizes))
        ]

    def values_born(self, storage: int) -> int:
        return next(v.op for v in self.values if v.storage == storage)

    def gradients(self) -> list[tuple[int, int, int, str]]:
        """Return (bytes, birth, death, category) of what backward allocates."""
        at = self.backward_at()
        found = []
        for value, made in enumerate(self.values):
            readers = [at[i] for i in at if value in self.ops[i].reads]
            if not readers:
                continue
            size, category = self.sizes[made.storage], self.categories[made.storage]
            if category == "parameter":
                found.append((size, min(readers), self.n_ops, "gradient"))
            elif made.op >= 0 and made.op in at:
                found.append((size, min(readers), at[made.op], "activation"))
        return found

    def saved(self) -> list[tuple[SavedTensor, int]]:
        """Return the saved tensors in order of packing, with the op that packed each."""
        at = self.backward_at()
        found = []
        for index, op in enumerate(self.ops):
            unpacked = at.get(index, -1)
            found += [(SavedTensor(v, index, unpacked), index) for v in op.saves]
            found += [(SavedTensor(v, index + 1, unpacked), index) for v in op.saves_out]
        return found

    def profile(self) -> Profile:
        deaths = natural = self.natural_deaths()
        deaths = list(natural)
        at = self.backward_at()
        for tensor, packer in self.saved():
            storage = self.values[tensor.value].storage
            deaths[storage] = max(deaths[storage], at.get(packer, self.n_ops))
        storages = [
            Storage(size, self.categories[s], self.values_born(s), deaths[s], natural[s])
            for s, size in enumerate(self.sizes)
        ]
        storages += [Storage(b, c, birth, death, death) for b, birth, death, c in self.gradients()]
        ops = [
            Op(
                op.name,
                op.unit,
                "forward",
                op.reads,
                (*op.makes, *(new for _, new in op.writes)),
                op.time_ns,
                0,
                op.replayable,
                False,
            )
            for op in self.ops
        ]
        ops += [
            Op(self.ops[i].name + "_backward", -1, "backward", time_ns=2 * self.ops[i].time_ns)
            for i in self.backward_order
        ]
        ops.append(Op("aten._foreach_add_.List", -1, "other", time_ns=1_000))
        return Profile(
            model_class="Toy",
            fingerprint="toy",
            step=StepInfo(root_calls=len({u.root_call for u in self.units})),
            units=tuple(self.units),
            ops=tuple(ops),
            values=tuple(self.values),
            storages=tuple(storages),
            saved=tuple(tensor for tensor, _ in self.saved()),
            plain_peak_bytes=plain_peak(storages, len(ops)),
            step_time_ns=sum(op.time_ns for op in ops),
            forward_time_ns=sum(op.time_ns for op in self.ops),
        )


def plain_peak(storages: Sequence[Storage], n_ops: int) -> int:
    return max(sum(s.bytes for s in storages if s.birth <= op <= s.death) for op in range(n_ops))


def _block(step: StepBuilder, x: int, size: int, wide: int, residual: bool) -> int:
    """Normalize, expand, act, contract; each part is a unit of its own."""
    norm, up, down = (step.outside(size // 4) for _ in range(3))
    prefix = step.units[step._stack[-1]].name
    with step.unit(f"{prefix}.norm", "LayerNorm"):
        n = step.op(
            "aten.native_layer_norm.default", (x, norm), (size, 8, 8), saves=(x,), saves_out=(1, 2)
        )[0]
    with step.unit(f"{prefix}.up", "Linear"):
        h = step.op("aten.addmm.default", (n, up), (wide,), saves=(n,), time_ns=9_000)[0]
    with step.unit(f"{prefix}.act", "GELU"):
        a = step.op("aten.gelu.default", (h,), (wide,), saves=(h,))[0]
    with step.unit(f"{prefix}.down", "Linear"):
        y = step.op("aten.addmm.default", (a, down), (size,), saves=(a,), time_ns=9_000)[0]
    if residual:
        y = step.op("aten.add.Tensor", (x, y), (size,))[0]
    return y


def _finish(step: StepBuilder, x: int, size: int) -> Profile:
    head = step.outside(size)
    with step.unit("head", "Linear"):
        y = step.op("aten.addmm.default", (x, head), (size,), saves=(x,))[0]
    step.hold(y)
    return step.profile()


def chain(blocks: int = 4, size: int = 64, wide: int = 256, residual: bool = False) -> Profile:
    """A chain of equal blocks named `blocks.0` and so on, then `head`."""
    step = StepBuilder()
    x = step.outside(size, "input")
    with step.unit("", "Net"):
        for index in range(blocks):
            with step.unit(f"blocks.{index}"):
                x = _block(step, x, size, wide, residual)
        result = _finish(step, x, size)
        step.units[0] = replace(step.units[0], exit=len(step.ops))
    return replace(result, units=tuple(step.units))


def residual_chain(blocks: int = 4, size: int = 64, wide: int = 256) -> Profile:
    """The same with a residual addition in each block, as in a transformer."""
    return chain(blocks, size, wide, residual=True)


def unet(depth: int = 3, size: int = 64, wide: int = 256) -> Profile:
    """Blocks `down.i`, `mid`, `up.i`; each `up.i` reads what its `down.i` made."""
    step = StepBuilder()
    x = step.outside(size, "input")
    skips = []
    with step.unit("", "UNet"):
        for index in range(depth):
            with step.unit(f"down.{index}"):
                x = _block(step, x, size, wide, residual=False)
            skips.append(x)
        with step.unit("mid"):
            x = _block(step, x, size, wide, residual=True)
        for index in range(depth):
            with step.unit(f"up.{index}"):
                x = step.op("aten.cat.default", (x, skips.pop()), (2 * size,))[0]
                x = _block(step, x, size, wide, residual=False)
        result = _finish(step, x, size)
        step.units[0] = replace(step.units[0], exit=len(step.ops))
    return replace(result, units=tuple(step.units))
