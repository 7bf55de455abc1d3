"""`planner explain`: one unit's fate, the price of each choice, and what other budgets would do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from graphs import chain, residual_chain

from planner.analysis.explain import explain, near_names
from planner.cli import main
from planner.errors import UnknownUnitError
from planner.graph import Graph, resolve, simulate
from planner.graph.fate import Kept
from planner.planning.offline import from_profile
from planner.search import floor

PROFILE = residual_chain(6, 1 << 16, 1 << 18)
GRAPH = Graph.of(PROFILE)
LOWEST = floor(GRAPH)[1]
PLAN = from_profile(PROFILE, (LOWEST + PROFILE.plain_peak_bytes) // 2, graph=GRAPH)
UNITS = [*dict.fromkeys(unit.name for unit in PROFILE.units)]


def test_the_whole_model_accounts_for_the_whole_plan() -> None:
    found = explain(GRAPH, PLAN, ".")
    assert found.given_up_bytes == sum(s.saved_bytes - s.kept_bytes for s in PLAN.segments) > 0
    assert tuple(k.address for k in found.kept) == tuple(a for s in PLAN.segments for a in s.keep)
    activations = [s for i, s in enumerate(PROFILE.storages) if s.category == "activation"
                   and GRAPH.packs[i]]  # fmt: skip
    assert found.saved_bytes == sum(s.bytes for s in activations)


@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_can_be_explained(unit: str) -> None:
    found = explain(GRAPH, PLAN, unit or ".")
    assert 0 <= found.given_up_bytes <= found.saved_bytes
    assert found.alternatives[0].choice == "as planned"
    assert found.alternatives[0].peak_bytes == PLAN.predicted_peak_bytes
    assert [b.name for b in found.budgets] == ["10% less", "as planned", "10% more"]
    assert found.budgets[1].given_up_bytes == found.given_up_bytes
    assert str(found).startswith(f"{unit or '.'} (")


def test_alternatives_are_played_by_the_simulator() -> None:
    choices = {a.choice: a for a in explain(GRAPH, PLAN, ".").alternatives}
    keep = choices["keep all of it"]
    assert (keep.peak_bytes, keep.overhead_ratio) == (PROFILE.plain_peak_bytes, 0.0)
    plain = from_profile(PROFILE, PROFILE.plain_peak_bytes, graph=GRAPH)
    found = [explain(GRAPH, plain, unit) for unit in UNITS[1:]]
    choices = {a.choice: a for e in found for a in e.alternatives}
    assert set(choices) == {"as planned", "give up all of it"}
    give_up = choices["give up all of it"]
    assert give_up.overhead_ratio > 0
    assert choices["as planned"].overhead_ratio == 0


def test_a_value_that_is_given_up_names_what_keeping_it_would_do() -> None:
    found = explain(GRAPH, PLAN, ".")
    spans = resolve(GRAPH, PLAN.segments)
    assert found.given_up
    first = found.given_up[0]
    addresses = GRAPH.places.addresses(spans[0].start, spans[0].stop)
    op = spans[0].start + addresses.index(first.address)
    other = replace(spans[0], keep=spans[0].keep | set(GRAPH.outputs(op)))
    before, after = simulate(GRAPH, spans), simulate(GRAPH, (other, *spans[1:]))
    assert first.takes_bytes == after.kept_bytes - before.kept_bytes
    assert first.saves_ns == before.replay_ns - after.replay_ns


def test_less_room_never_costs_less() -> None:
    less, now, more = explain(GRAPH, PLAN, ".").budgets
    assert more.overhead_ratio is not None and now.overhead_ratio is not None
    assert more.overhead_ratio <= now.overhead_ratio + 1e-6
    assert less.peak_bytes is None or less.peak_bytes <= less.budget_bytes


def test_at_the_floor_ten_percent_less_does_not_fit() -> None:
    plan = from_profile(PROFILE, LOWEST, graph=GRAPH)
    found = explain(GRAPH, plan, ".")
    assert found.budgets[0].peak_bytes is None
    assert "no plan fits" in str(found)


def test_a_plain_plan_leaves_everything_untouched() -> None:
    profile = chain(4, 64, 128)
    plan = from_profile(profile, profile.plain_peak_bytes)
    found = explain(Graph.of(profile), plan, ".")
    assert found.given_up_bytes == 0 and not found.segments
    assert sum(size for _, size in found.untouched) == found.saved_bytes
    assert "the plan keeps it all" in str(found)


def test_an_unknown_unit_is_named_with_its_neighbours() -> None:
    wrong = UNITS[-1] + "x"
    with pytest.raises(UnknownUnitError) as error:
        explain(GRAPH, PLAN, wrong)
    assert UNITS[-1] in str(error.value)


@pytest.mark.parametrize(
    ("kept", "word"),
    [
        (Kept("a/mm/0", 8, True, 1 << 20, 5_000), "5.00 us per MiB"),
        (Kept("a/mm/0", 8, True, 0, 5_000), "stays in memory anyway"),
        (Kept("a/mm/0", 8, False, 0, 5_000), "5.00 us more"),
        (Kept("a/mm/0", 8, False, 0, 0), "outside the segment"),
        (Kept("a/mm/0", 8, True, 0, 0, possible=False), "cannot be recomputed"),
    ],
)
def test_reasons_read_as_sentences(kept: Kept, word: str) -> None:
    assert word in kept.why


def test_the_command_prints_text_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(tmp_path / name) for name in ("plan.json", "profile.json")]
    PLAN.save(files[0])
    PROFILE.save(files[1])
    command = ["explain", files[0], UNITS[1], "--profile", files[1]]
    assert main(command) == 0
    assert capsys.readouterr().out.strip() == str(explain(GRAPH, PLAN, UNITS[1])).strip()
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["unit"] == UNITS[1]
    assert [b["name"] for b in facts["budgets"]] == ["10% less", "as planned", "10% more"]
    assert main(["explain", files[0], "nobody", "--profile", files[1]]) == 2


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("nope", ()),
        ("h.O", ("h.0",)),
        ("mlp", ("h.0.mlp", "h.1.mlp")),
        ("h.1.mpl", ("h.1.mlp", "h.0.mlp")),
    ],
)
def test_names_are_offered_only_when_they_are_near(name: str, near: tuple[str, ...]) -> None:
    assert near_names(name, ["wte", "wpe", "h.0", "h.0.mlp", "h.1.mlp"]) == near
