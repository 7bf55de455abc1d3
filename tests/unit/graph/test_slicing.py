"""Replay programs: run by an interpreter that notices every wrong read, and cases by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from drawn import examples
from graph_draws import steps
from hypothesis import given
from hypothesis import strategies as st

from planner.replay.slicing import FlowOp, Group, Slices, Step, slice_segment

Op = FlowOp[str]


@dataclass
class Memory:
    """One storage; `content` is the value that it holds."""

    content: object


@dataclass
class Interpreter:
    """Runs groups on demand, as backward would, and checks every read."""

    ops: list[FlowOp[int]]
    slices: Slices[int]
    held: dict[int, Memory] = field(default_factory=dict)
    cells: dict[int, Memory] = field(default_factory=dict)
    ran: list[int] = field(default_factory=list)

    def value(self, key: int) -> Memory:
        if key not in self.cells:
            self.run(self.slices.owner[key])
        return self.cells[key]

    def run(self, number: int) -> None:
        assert number not in self.ran
        group = self.slices.groups[number]
        env = {key: self.held.setdefault(key, Memory(key)) for key in group.sources}
        env |= {key: self.value(key) for key in group.cells}
        self.ran.append(number)
        for step in group.steps:
            self.step(env, step)
        assert set(env) == set(group.makes)  # all else was let go
        self.cells |= env

    def step(self, env: dict[int, Memory], step: Step[int]) -> None:
        op = self.ops[step.op]
        for key in op.reads:
            assert env[key].content == key  # made, still there, and not overwritten
        for old in step.copies:
            assert old in {old for old, _ in op.writes}
        for old, new in op.writes:
            target = Memory(old) if old in step.copies else env[old]
            target.content = new
            env[new] = target
        for key in op.makes:
            env[key] = Memory(key)
        for key in step.frees:
            del env[key]


@st.composite
def segments(draw: st.DrawFn) -> tuple[list[FlowOp[int]], list[int], set[int], list, dict]:
    """Ops of a drawn step, wanted and held values made in it, cuts, and last packs."""
    step, _ = draw(steps(12))
    ops = [FlowOp(op.reads, op.makes, op.writes) for op in step.ops]
    made = sorted({v for op in step.ops for v in (*op.makes, *(n for _, n in op.writes))})
    wanted = draw(st.lists(st.sampled_from(made), unique=True)) if made else []
    held = draw(st.sets(st.sampled_from(made), max_size=3)) if made else set()
    cut = st.tuples(st.integers(0, len(ops)), st.sampled_from([1, 2, 3, -1, -2]))
    packs = {v: i for i, op in enumerate(step.ops) for v in op.saves}
    return ops, wanted, held, draw(st.lists(cut, max_size=5)), packs if draw(st.booleans()) else {}


@given(segments(), st.randoms())
@examples(80)
def test_programs_make_every_wanted_value(segment, random) -> None:  # type: ignore[no-untyped-def]
    ops, wanted, held, cuts, packs = segment
    slices = slice_segment(ops, wanted, held, cuts, packs)
    interpreter = Interpreter(ops, slices)
    missing = [key for key in wanted if key not in held]
    assert set(missing) <= slices.owner.keys()
    random.shuffle(missing)
    for key in missing:
        interpreter.value(key)
    for memory in (interpreter.held, interpreter.cells):
        assert all(memory[key].content == key for key in memory)  # nothing was overwritten


@given(segments())
@examples(80)
def test_programs_do_no_needless_work(segment) -> None:  # type: ignore[no-untyped-def]
    ops, wanted, held, cuts, packs = segment
    slices = slice_segment(ops, wanted, held, cuts, packs)
    delivered = [key for group in slices.groups for key in group.makes]
    assert len(delivered) == len(set(delivered))  # one owner each
    assert not held & set(delivered)
    asked = {*wanted, *(key for group in slices.groups for key in group.cells)}
    assert set(delivered) <= asked
    for number, group in enumerate(slices.groups):
        assert group.steps
        assert all(slices.owner[key] < number for key in group.cells)  # owners stand before
        _check_each_step_is_read(ops, group)


def _check_each_step_is_read(ops: list[FlowOp[int]], group: Group[int]) -> None:
    numbers = [step.op for step in group.steps]
    assert numbers == sorted(set(numbers))
    for place, number in enumerate(numbers):
        op = ops[number]
        made = {*op.makes, *(new for _, new in op.writes)}
        later = {key for other in numbers[place + 1 :] for key in ops[other].reads}
        assert made & (later | set(group.makes))


@given(segments())
@examples(40)
def test_without_cuts_there_is_one_group(segment) -> None:  # type: ignore[no-untyped-def]
    ops, wanted, held, _, _ = segment
    slices = slice_segment(ops, wanted, held)
    assert len(slices.groups) == (1 if set(wanted) - held else 0)
    assert slices.sources == (slices.groups[0].sources if slices.groups else ())


def chain(length: int) -> list[Op]:
    """Value `v1` from `x`, `v2` from `v1`, and so on; op i makes `v{i+1}`."""
    names = ["x", *(f"v{i + 1}" for i in range(length))]
    return [FlowOp((a,), (b,)) for a, b in zip(names, names[1:], strict=False)]


def runs(slices: Slices[str]) -> list[list[int]]:
    return [[step.op for step in group.steps] for group in slices.groups]


def test_a_chain_frees_as_it_goes() -> None:
    (group,) = slice_segment(chain(3), ["v3"], ()).groups
    assert group.steps == (
        Step(0, (), ("x",)),
        Step(1, (), ("v1",)),
        Step(2, (), ("v2",)),
    )
    assert (group.sources, group.cells, group.makes) == (("x",), (), ("v3",))


def test_held_values_stop_the_replay() -> None:
    slices = slice_segment(chain(4), ["v4"], {"v2"})
    assert runs(slices) == [[2, 3]]
    assert slices.sources == ("v2",)


def test_wanted_values_that_are_held_or_external_need_no_group() -> None:
    assert slice_segment(chain(2), ["x", "v1"], {"v1"}) == Slices((), {})
    assert slice_segment(chain(2), [], ()) == Slices((), {})


def test_ops_that_lead_nowhere_do_not_run() -> None:
    ops = [*chain(2), FlowOp(("x",), ("side",)), FlowOp(("v2", "side"), ("end",))]
    assert runs(slice_segment(ops, ["v2"], ())) == [[0, 1]]


def test_outputs_nobody_needs_are_freed_at_once() -> None:
    ops = [FlowOp(("x",), ("y", "mean")), FlowOp(("y",), ("z",))]
    (group,) = slice_segment(ops, ["z"], ()).groups
    assert group.steps[0].frees == ("x", "mean")


# -- in-place ops ---------------------------------------------------------------------------------

RELU = FlowOp(("v1",), (), (("v1", "r"),))


def test_in_place_versions_share_memory_when_the_old_is_done() -> None:
    (group,) = slice_segment([*chain(1), RELU], ["r"], ()).groups
    assert group.steps == (Step(0, (), ("x",)), Step(1, (), ("v1",)))


def test_a_wanted_old_version_is_copied() -> None:
    (group,) = slice_segment([*chain(1), RELU], ["v1", "r"], ()).groups
    assert group.steps[1] == Step(1, ("v1",), ())


def test_a_held_or_external_old_version_is_copied() -> None:
    (group,) = slice_segment([*chain(1), RELU], ["r"], {"v1"}).groups
    assert group.steps == (Step(1, ("v1",), ("v1",)),)
    (group,) = slice_segment([FlowOp(("x",), (), (("x", "r"),))], ["r"], ()).groups
    assert group.steps == (Step(0, ("x",), ("x",)),)
    assert group.sources == ("x",)


def test_a_write_counts_as_a_read_of_the_old_version() -> None:
    assert runs(slice_segment([*chain(1), RELU, FlowOp(("r",), ("y",))], ["y"], ())) == [[0, 1, 2]]


# -- cuts -----------------------------------------------------------------------------------------


def test_a_cut_makes_the_entry_first_and_each_part_on_its_own() -> None:
    slices = slice_segment(chain(4), ["v1", "v2", "v3", "v4"], (), [(2, 1)])
    entry, first, second = slices.groups
    assert (entry.makes, first.makes, second.makes) == (("v2",), ("v1",), ("v3", "v4"))
    assert runs(slices) == [[0, 1], [0], [2, 3]]
    assert (entry.cells, first.cells, second.cells) == ((), (), ("v2",))
    assert slices.owner == {"v2": 0, "v1": 1, "v3": 2, "v4": 2}


def test_a_held_entry_needs_no_group() -> None:
    slices = slice_segment(chain(4), ["v1", "v3"], {"v2"}, [(2, 1)])
    assert runs(slices) == [[0], [2]]
    assert slices.groups[1].sources == ("v2",)
    assert "v2" not in slices.owner


def test_nested_cuts() -> None:
    wanted = [f"v{i}" for i in range(1, 9)]
    slices = slice_segment(chain(8), wanted, (), [(4, 1), (2, 2), (6, 2)])
    made = [group.makes for group in slices.groups]
    assert made == [("v4",), ("v2",), ("v1",), ("v3",), ("v6",), ("v5",), ("v7", "v8")]
    assert runs(slices) == [[0, 1, 2, 3], [0, 1], [0], [2], [4, 5], [4], [6, 7]]


def test_inner_groups_do_not_deliver_what_outer_ones_did() -> None:
    # v1 crosses the outer cut (op 4 reads it) and the inner one (op 2 reads it).
    ops = [
        FlowOp(("x",), ("v1",)),
        FlowOp(("v1",), ("v2",)),
        FlowOp(("v1", "v2"), ("v3",)),
        FlowOp(("v3",), ("v4",)),
        FlowOp(("v4", "v1"), ("v5",)),
    ]
    slices = slice_segment(ops, ["v3", "v5"], (), [(3, 1), (2, 2)])
    assert [set(group.makes) for group in slices.groups] == [{"v1", "v3"}, {"v5"}]
    slices = slice_segment(ops, ["v2", "v5"], (), [(4, 1), (1, 2), (2, 2)])
    assert [set(group.makes) for group in slices.groups] == [{"v1", "v4"}, {"v2"}, {"v5"}]
    assert slices.groups[1].cells == ("v1",)  # read, not made again
    assert runs(slices)[1] == [1]


def test_what_later_parts_need_spares_the_part_that_made_it() -> None:
    # The last part needs v3, so the middle part has nothing left to make, hence no entry.
    slices = slice_segment(chain(4), ["v3", "v4"], (), [(2, 1), (3, 1)])
    assert [group.makes for group in slices.groups] == [("v3",), ("v4",)]
    assert runs(slices) == [[0, 1, 2], [3]]


def test_what_is_saved_beyond_a_cut_is_delivered() -> None:
    # The op behind the cut saves v2: backward asks for it before anything of the part before.
    packs = {"v1": 1, "v2": 2, "v3": 3}
    slices = slice_segment(chain(4), ["v1", "v2", "v3"], (), [(2, 1)], packs)
    assert runs(slices) == [[0, 1], [0], [2]]
    assert [g.makes for g in slices.groups] == [("v2",), ("v1",), ("v3",)]
    # Saved by the op that made it, it belongs to the part before.
    own = slice_segment([*chain(2), FlowOp(("x",), ("y",))], ["v2", "y"], (), [(2, 1)], {"v2": 2})
    assert runs(own) == [[0, 1], [2]]


def test_a_whole_part_does_not_run_again() -> None:
    packs = {f"v{i}": i for i in range(1, 7)}
    wanted = list(packs)
    slices = slice_segment(chain(6), wanted, (), [(2, -1), (4, 1)], packs)
    assert runs(slices) == [[0, 1, 2, 3], [2], [4, 5]]
    assert [set(g.makes) for g in slices.groups] == [{"v1", "v2", "v4"}, {"v3"}, {"v5", "v6"}]
    inner = slice_segment(chain(6), wanted, (), [(1, -2), (2, 2), (4, 1)], packs)
    assert runs(inner) == [[0, 1, 2, 3], [0, 1], [2], [4, 5]]


def test_cuts_at_the_edges_or_beyond_change_nothing() -> None:
    plain = slice_segment(chain(3), ["v2", "v3"], ())
    assert slice_segment(chain(3), ["v2", "v3"], (), [(0, 1), (3, 2), (7, 1), (-1, 1)]) == plain


def test_a_deep_cut_alone_acts_as_a_first_cut() -> None:
    shallow = slice_segment(chain(4), ["v1", "v4"], (), [(2, 1)])
    assert slice_segment(chain(4), ["v1", "v4"], (), [(2, 5)]) == shallow


def test_an_entry_overwritten_by_a_part_is_copied() -> None:
    ops = [*chain(1), RELU, FlowOp(("r",), ("y",))]
    slices = slice_segment(ops, ["y"], (), [(1, 1)])
    entry, part = slices.groups
    assert entry.makes == ("v1",)
    assert part.steps[0] == Step(1, ("v1",), ("v1",))
