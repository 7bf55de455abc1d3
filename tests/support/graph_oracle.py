"""A toy machine that runs a `StepBuilder` step event by event, with reference counts.

It knows the rules of the replay engine but none of the simulator's arithmetic: blocks of memory
have holders, and a block goes when its last holder lets go. Only `slice_segment` is shared, since
it is the program that the engine runs (it has an interpreter of its own in `test_slicing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from graphs import StepBuilder

from planner.graph import Span
from planner.replay.slicing import FlowOp, Group, Slices, slice_segment


class Block:
    """Memory with holders."""

    def __init__(self, machine: Machine, size: int) -> None:
        self.machine, self.size, self.holders = machine, size, 0
        machine.live += size

    def take(self) -> Block:
        self.holders += 1
        return self

    def drop(self) -> None:
        self.holders -= 1
        assert self.holders >= 0
        if not self.holders:
            self.machine.live -= self.size


@dataclass(slots=True)
class Tape:
    """One span at work: what it holds while open, and for backward after that."""

    span: Span
    open: bool = True
    holding: dict[int, Block] = field(default_factory=dict)  # by storage, until it closes
    copies: dict[int, Block] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    outside: set[int] = field(default_factory=set)
    wanted: dict[int, int] = field(default_factory=dict)  # value -> first use, n_ops for never
    sources: dict[int, Block] = field(default_factory=dict)
    memo: dict[int, Block] = field(default_factory=dict)
    slices: Slices[int] | None = None
    uses: dict[int, int] = field(default_factory=dict)  # groups still to read a source or cell
    ran: set[int] = field(default_factory=set)


class Machine:
    """Runs one step. `peak`, `timeline` and `replayed` are its results."""

    def __init__(self, step: StepBuilder, spans: list[Span]) -> None:
        self.step, self.spans = step, spans
        self.live = self.peak = self.replayed = 0
        self.timeline: list[int] = []
        self.tapes: list[Tape] = []
        self.memory: dict[int, Block] = {}  # by storage, as the plain step has it
        self.frames: dict[int, Block] = {}  # what Python variables hold
        self.saved: list[tuple[int, int, Block]] = []  # (packer, storage, block)
        self.dropped: list[tuple[int, int, Tape]] = []  # (packer, value, tape)
        self.at = step.backward_at()
        self.deaths = [s.death for s in step.profile().storages]
        self.natural = step.natural_deaths()
        self.grads = step.gradients()

    def run(self) -> Machine:
        for storage in range(len(self.step.sizes)):
            if self.step.values_born(storage) < 0:
                self.allocate(storage)
        for index in range(len(self.step.ops)):
            self.forward(index)
        for index in range(len(self.step.ops), self.step.n_ops):
            self.backward(index)
        return self

    def allocate(self, storage: int) -> None:
        block = Block(self, self.step.sizes[storage])
        self.memory[storage] = block
        self.frames[storage] = block.take()

    def storage(self, value: int) -> int:
        return self.step.values[value].storage

    def measure(self) -> None:
        self.peak = max(self.peak, self.live)
        self.timeline[-1] = max(self.timeline[-1], self.live)

    # -- forward ------------------------------------------------------------------------------

    def forward(self, index: int) -> None:
        self.timeline.append(0)
        op = self.step.ops[index]
        self.tapes += [Tape(span) for span in self.spans if span.start == index]
        tape = next((t for t in self.tapes if t.open), None)
        for value in op.saves:
            self.pack(tape, value, index)
        if tape and op.replayable:
            self.listen(tape, index)
        for value in op.makes:
            self.allocate(self.storage(value))
        self.measure()
        if tape and op.replayable:
            self.keep(tape, index)
        for value in op.saves_out:
            self.pack(tape, value, index)
        for tape in [t for t in self.tapes if t.open and t.span.stop == index + 1]:
            self.close(tape)
        self.leave(index)

    def inside(self, tape: Tape, value: int) -> bool:
        made = self.step.values[value]
        born = self.step.values_born(made.storage)
        return (
            tape.span.start <= born <= made.op < tape.span.stop
            and self.step.ops[made.op].replayable
        )

    def listen(self, tape: Tape, index: int) -> None:
        op = self.step.ops[index]
        for value in op.reads:
            if not self.inside(tape, value):
                tape.outside.add(value)
                self.hold(tape, value)
        for old, new in op.writes:
            if old in tape.outside and old in self.needed(tape):
                block = Block(self, self.step.sizes[self.storage(old)])
                tape.copies[old] = block.take()
            if not self.inside(tape, new):
                tape.outside.add(new)
                tape.kept.add(new)

    def needed(self, tape: Tape) -> tuple[int, ...]:
        """What a tape that ran before knows: the sources of this span."""
        probe = Tape(tape.span)
        for index in range(tape.span.start, tape.span.stop):
            op = self.step.ops[index]
            for value in (*op.makes, *(new for _, new in op.writes)):
                if not self.inside(probe, value) or value in tape.span.keep:
                    probe.kept.add(value)
                else:
                    packs = [op.saves for op in self.step.ops[index + 1 : tape.span.stop]]
                    if any(value in saves for saves in packs) or value in op.saves_out:
                        probe.wanted[value] = 0
        self.overwrite(probe)
        return self.slice(probe).sources

    def overwrite(self, tape: Tape) -> None:
        for op in self.step.ops[tape.span.start : tape.span.stop]:
            for old, _ in op.writes:
                if self.inside(tape, old):
                    tape.kept.discard(old)

    def hold(self, tape: Tape, value: int) -> None:
        storage = self.storage(value)
        if storage not in tape.holding:
            tape.holding[storage] = self.memory[storage].take()

    def keep(self, tape: Tape, index: int) -> None:
        op = self.step.ops[index]
        for value in (*op.makes, *(new for _, new in op.writes)):
            if value in tape.span.keep:
                tape.kept.add(value)
                self.hold(tape, value)

    def pack(self, tape: Tape | None, value: int, packer: int) -> None:
        if tape and self.inside(tape, value) and value not in tape.span.keep:
            first = self.at.get(packer, self.step.n_ops)
            tape.wanted[value] = min(first, tape.wanted.get(value, first))
            self.dropped.append((packer, value, tape))
        else:
            storage = self.storage(value)
            self.saved.append((packer, storage, self.memory[storage].take()))

    def leave(self, index: int) -> None:
        """Python variables go after their last use."""
        for storage, death in enumerate(self.natural):
            if death == index and storage in self.frames:
                self.frames.pop(storage).drop()

    def slice(self, tape: Tape) -> Slices[int]:
        span = tape.span
        flow = [
            FlowOp(op.reads, op.makes, op.writes) if op.replayable else FlowOp((), (), ())
            for op in self.step.ops[span.start : span.stop]
        ]
        cuts = [(p - span.start, depth) for p, depth in span.cuts]
        packs = {}
        for at, op in enumerate(self.step.ops[span.start : span.stop]):
            packs |= dict.fromkeys(op.saves, at) | dict.fromkeys(op.saves_out, at + 1)
        return slice_segment(flow, dict.fromkeys(tape.wanted), tape.kept, cuts, packs)

    def close(self, tape: Tape) -> None:
        tape.open = False
        self.overwrite(tape)
        slices = tape.slices = self.slice(tape)
        for group in slices.groups:
            for value in (*group.sources, *group.cells):
                tape.uses[value] = tape.uses.get(value, 0) + 1
        for value in slices.sources:
            block = tape.copies.get(value)
            tape.sources[value] = block or self.memory[self.storage(value)].take()
        for block in tape.holding.values():
            block.drop()

    # -- backward -----------------------------------------------------------------------------

    def backward(self, index: int) -> None:
        self.timeline.append(0)
        for tape in self.tapes:
            self.replay_at(tape, index)
        self.live += sum(size for size, birth, _, _ in self.grads if birth == index)
        self.measure()
        self.live -= sum(size for size, _, death, _ in self.grads if death == index)
        self.release(index)

    def replay_at(self, tape: Tape, index: int) -> None:
        assert tape.slices is not None
        for number, group in enumerate(tape.slices.groups):
            if any(tape.wanted.get(value) == index for value in group.makes):
                self.replay(tape, number, index)

    def replay(self, tape: Tape, number: int, index: int) -> None:
        assert tape.slices is not None
        if number in tape.ran:
            return
        tape.ran.add(number)
        group = tape.slices.groups[number]
        for value in group.cells:
            self.replay(tape, tape.slices.owner[value], index)
        self.play(tape, group, index)

    def play(self, tape: Tape, group: Group[int], index: int) -> None:
        env: dict[int, Block] = {}
        for step in group.steps:
            op = self.step.ops[tape.span.start + step.op]
            copied = {}
            for old in step.copies:
                copied[old] = Block(self, self.step.sizes[self.storage(old)])
            for value in op.makes:
                env[value] = Block(self, self.step.sizes[self.storage(value)]).take()
            for old, new in op.writes:
                env[new] = (copied.get(old) or env[old]).take()
            self.measure()
            for value in step.frees:
                if value in env and value not in group.makes:
                    env.pop(value).drop()
                elif value not in env:
                    self.used(tape, value, index)
        self.replayed += len(group.steps)
        for value in group.makes:
            tape.memo[value] = env.pop(value)
            self.forget(tape, value, index - 1)
        assert not env

    def used(self, tape: Tape, value: int, index: int) -> None:
        tape.uses[value] -= 1
        if not tape.uses[value]:
            if value in tape.sources:
                tape.sources.pop(value).drop()
            else:
                self.forget(tape, value, index - 1)

    def forget(self, tape: Tape, value: int, index: int) -> None:
        """Let go of a replayed value that neither backward nor another group waits for."""
        waits = value in tape.wanted and self.deaths[self.storage(value)] > index
        if value in tape.memo and not waits and not tape.uses.get(value):
            tape.memo.pop(value).drop()

    def release(self, index: int) -> None:
        """Autograd lets go of what the node of this backward op saved."""
        for entry in [e for e in self.saved if self.at.get(e[0]) == index]:
            self.saved.remove(entry)
            entry[2].drop()
        for tape in self.tapes:
            for value in list(tape.memo):
                self.forget(tape, value, index)
