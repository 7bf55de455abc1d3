"""`planner.sweep`: one search for all budgets, never dearer with more room, the knee, the chart."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from drawn import examples
from graphs import StepBuilder, residual_chain, unet
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.analysis.knee import find_knee
from planner.analysis.sweep import sweep_profile
from planner.cli import main
from planner.documents.frontier import Baseline, Frontier, FrontierPoint
from planner.documents.printing.frontier import chart, frontier_text, knee_sentence
from planner.documents.profile import Profile
from planner.graph import Graph
from planner.search import search, solve
from planner.search.baselines import layers

MIB = 1024**2


def stack(layers: int = 8, size: int = 4 * MIB) -> Profile:
    """Blocks of two ops in a list: the first is dear and saved once, the second cheap."""
    step = StepBuilder()
    x = step.outside(size, "input")
    with step.unit("", "Net"):
        for index in range(layers):
            weight = step.outside(size // 64)
            with step.unit(f"blocks.{index}", "Block"):
                with step.unit(f"blocks.{index}.fc", "Linear"):
                    reads = (x, weight)
                    (h,) = step.op(
                        "aten.addmm.default", reads, (size,), saves=(x,), time_ns=9_000_000
                    )
                with step.unit(f"blocks.{index}.act", "GELU"):
                    (x,) = step.op("aten.gelu.default", (h,), (size,), saves=(h,), time_ns=500_000)
        step.hold(x)
    return step.profile()


STACK = stack()


def curve(*pairs: tuple[int, float]) -> tuple[FrontierPoint, ...]:
    """Return points at (MiB, overhead ratio)."""
    return tuple(FrontierPoint(size * MIB, size * MIB, ratio) for size, ratio in pairs)


@pytest.mark.parametrize("profile", [STACK, residual_chain(5, 1 << 16, 1 << 18), unet(3, 9, 99)])
def test_every_point_is_within_its_budget_and_more_room_never_costs_more(profile: Profile) -> None:
    frontier = sweep_profile(profile, baselines=False)
    points = frontier.points
    assert all(p.peak_bytes <= p.budget_bytes for p in points)
    overheads = [p.overhead_ratio for p in points]
    assert overheads == sorted(overheads, reverse=True)
    assert points[0].peak_bytes == frontier.floor_bytes == points[0].budget_bytes
    assert (points[-1].overhead_ratio, points[-1].segments) == (0.0, 0)


def test_a_point_is_as_good_as_a_search_of_its_own() -> None:
    frontier = sweep_profile(STACK, baselines=False, points=9)
    assert len(frontier.points) == 9
    for point in frontier.points:
        alone = search(Graph.of(STACK), point.budget_bytes)
        assert point.overhead_ratio <= alone.overhead_ns / STACK.step_time_ns + 1e-6


def test_all_budgets_come_from_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []

    class Counted(solve.GraphPlanner):
        def __init__(self, *args: object) -> None:
            built.append(1)
            super().__init__(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(solve, "GraphPlanner", Counted)
    unknown = replace(STACK, step_time_ns=STACK.step_time_ns + 1)  # that no test has searched yet
    assert len(sweep_profile(unknown).points) == 50
    assert len(built) == 1


def test_budgets_are_read_as_for_a_plan_and_those_too_low_have_no_point() -> None:
    plain = STACK.plain_peak_bytes
    frontier = planner.sweep(STACK, ["90%", 1, plain / MIB, "90%"])
    assert [p.budget_bytes for p in frontier.points] == [int(plain * 0.9), plain]
    with pytest.raises(planner.InfeasibleBudgetError) as error:
        planner.sweep(STACK, [1])
    assert error.value.min_peak_bytes == frontier.floor_bytes
    assert error.value.holders
    with pytest.raises(planner.InvalidBudgetError):
        planner.sweep(STACK, ["much"])


def test_pins_hold_in_a_sweep() -> None:
    saved = planner.sweep(STACK, save=["blocks.*"])
    assert saved.floor_bytes == saved.plain_peak_bytes > planner.sweep(STACK).floor_bytes


def test_placements_by_hand_are_those_that_people_use() -> None:
    names = layers(Graph.of(STACK))
    assert names == tuple(f"blocks.{n}" for n in range(8))
    baselines = planner.sweep(STACK).baselines
    kinds = list(dict.fromkeys(b.name for b in baselines))
    assert kinds == ["plain", "every block", "best k of n", "uniform segments", "sqrt"]
    assert baselines[0] == Baseline("plain", "", STACK.plain_peak_bytes, 0.0, 0.0)
    some = [b for b in baselines if b.name == "best k of n"]
    # Backward asks for the last block's tensors right away: it has nothing to give up.
    assert [b.setting for b in some] == [f"k={k} of 7" for k in range(1, 7)]
    assert [b.peak_bytes for b in some] == sorted((b.peak_bytes for b in some), reverse=True)


def test_plans_are_no_worse_than_placements_by_hand() -> None:
    for baseline in planner.sweep(STACK, ["100%"]).baselines:
        assert baseline.planned_overhead_ratio is not None
        assert baseline.planned_overhead_ratio <= baseline.overhead_ratio
        alone = search(Graph.of(STACK), baseline.peak_bytes)
        ratio = alone.overhead_ns / STACK.step_time_ns
        assert baseline.planned_overhead_ratio <= ratio + 1e-6


def test_a_model_without_layers_has_no_blocks() -> None:
    step = StepBuilder()
    x = step.outside(8, "input")
    with step.unit("", "Net"):
        (y,) = step.op("aten.tanh.default", (x,), (8,), saves_out=(0,))
        step.hold(y)
    graph = Graph.of(step.profile())
    assert layers(graph) == ()
    assert [b.name for b in planner.sweep(graph.profile).baselines][0] == "plain"


def test_the_knee_is_where_the_curve_bends_most() -> None:
    knee = find_knee(curve((10, 0.55), (20, 0.05), (30, 0.04), (70, 0.0)))
    assert knee is not None
    assert (knee.peak_bytes, knee.overhead_ratio) == (20 * MIB, 0.05)
    assert knee.below_per_mib == pytest.approx(0.05)
    assert knee.above_per_mib == pytest.approx(0.001)
    assert knee.times_steeper == pytest.approx(50)


@pytest.mark.parametrize(
    "points",
    [
        (),
        curve((10, 0.5), (20, 0.0)),
        curve((10, 0.2), (20, 0.1), (30, 0.0)),
        curve((10, 0.2), (20, 0.19), (30, 0.0)),
        curve((10, 0.0), (10, 0.0), (10, 0.0)),
    ],
)
def test_a_curve_that_does_not_bend_has_no_knee(points: tuple[FrontierPoint, ...]) -> None:
    assert find_knee(points) is None


@given(st.lists(st.floats(0, 1), min_size=3, max_size=20))
@examples(50)
def test_a_knee_is_a_point_of_the_curve_below_its_chord(ratios: list[float]) -> None:
    points = curve(*enumerate(sorted(ratios, reverse=True), 1))
    knee = find_knee(points)
    if knee is not None:
        assert (knee.peak_bytes, knee.overhead_ratio) in {
            (p.peak_bytes, p.overhead_ratio) for p in points[1:-1]
        }
        assert knee.times_steeper >= 1.5


def frontier(*pairs: tuple[int, float], baselines: tuple[Baseline, ...] = ()) -> Frontier:
    """Return a frontier through (MiB, overhead ratio)."""
    return Frontier(
        model_class="Net",
        plain_peak_bytes=pairs[-1][0] * MIB,
        floor_bytes=pairs[0][0] * MIB,
        step_time_ns=10**9,
        knee=find_knee(curve(*pairs)),
        points=curve(*pairs),
        baselines=baselines,
    )


BENT = frontier(
    (10, 0.55),
    (20, 0.05),
    (70, 0.0),
    baselines=(Baseline("every block", "8", 30 * MIB, 0.3, 0.05),),
)


def test_the_text_names_the_knee_and_compares_at_equal_peaks() -> None:
    text = frontier_text(BENT)
    sentence = "Knee at 20.0 MiB (5.0% overhead): below it each MiB costs 50.0x more than above."
    assert knee_sentence(BENT) == sentence and sentence in text
    assert "every block (8)        30.0 MiB     30.0%     5.0%" in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.isascii()


def test_the_chart_has_every_mark_in_its_place() -> None:
    lines = [line.partition("|")[2].ljust(60) for line in chart(BENT)[:12]]
    assert lines[0][0] == "*" and lines[-1][59] == "*"
    (row,) = (n for n, line in enumerate(lines) if "K" in line)
    assert lines[row].index("K") == round(10 / 60 * 59)
    assert sum(line.count("o") for line in lines) == 1


def test_a_flat_frontier_still_prints() -> None:
    assert "No knee" in frontier_text(frontier((10, 0.0), (10, 0.0), (10, 0.0)))
    assert "No knee" in frontier_text(frontier((10, 0.0)))


def test_the_command_prints_the_same_figures_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.json"
    STACK.save(path)
    assert main(["sweep", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(planner.sweep(STACK)).strip()
    assert main(["sweep", str(path), "--budget", "90%", "--budget", "95%", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == json.loads(json.dumps(planner.sweep(STACK, ["90%", "95%"]).to_dict()))
    assert len(facts["points"]) == 2
    assert main(["sweep", str(path), "--budget", "1B"]) == 1
    assert main(["sweep", str(tmp_path / "missing.json")]) == 2


def test_a_sweep_of_a_stored_profile_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "net.json"
    STACK.save(path)
    program = f"import sys, planner; planner.sweep({str(path)!r}); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_model_is_profiled_first() -> None:
    torch = pytest.importorskip("torch")
    shapes = [(32, 256), (256, 32)] * 4
    model = torch.nn.Sequential(
        *[torch.nn.Sequential(torch.nn.Linear(*shape), torch.nn.Tanh()) for shape in shapes]
    )
    found = planner.sweep(model, inputs=(torch.ones(256, 32),), loss_fn=torch.sum)
    assert found.model_class == "Sequential"
    assert found.floor_bytes < found.plain_peak_bytes


NET_FILE = """
import torch
from torch import nn
def net():
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8)) for _ in range(3)]
    return nn.Sequential(*blocks), (torch.ones(64, 8),), torch.sum
"""


def test_the_command_profiles_a_model_when_given_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("swept_net.py").write_text(NET_FILE)
    assert main(["sweep", "swept_net.py:net", "--points", "3", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model_class"] == "Sequential"
    assert len(facts["points"]) == 3
    assert facts["points"][-1]["overhead_ratio"] == 0.0
