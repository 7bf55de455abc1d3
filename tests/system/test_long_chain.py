"""Long chains: replays in parts take few activations, as predicted, with the same gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import planner
from planner.documents.plan import Plan
from planner.graph import Graph, Span, emit, simulate
from planner.planning.offline import from_profile
from planner.search.segment.spans import droppable, saved_inside, with_cuts
from planner.training_step.step import make_step
from planner.verifier.measure import measure_peak


def floor_plan(profile: planner.Profile) -> Plan:
    try:
        return from_profile(profile, 1)
    except planner.InfeasibleBudgetError as error:
        return from_profile(profile, error.min_peak_bytes)


@pytest.mark.nightly
def test_a_long_chain_reaches_few_activations() -> None:
    layers = 200
    with torch.device("meta"):
        parts = [m for _ in range(layers) for m in (nn.Linear(256, 256), nn.Tanh())]
        model, x = nn.Sequential(*parts), torch.randn(4096, 256)
    profile = planner.profile(model, inputs=(x,), loss_fn=torch.sum)
    step = make_step(model, inputs=(x,), loss_fn=torch.sum)
    baseline = sum(s.bytes for s in profile.storages if s.category in ("parameter", "input"))
    # Gradients of parameters are 12.5 of them, the output and what backward passes down 3 more.
    for activations, forwards in ((18, 2), (17, 3)):
        plan = from_profile(profile, baseline + activations * x.nbytes)
        assert sum(s.replayed_ops for s in plan.segments) <= forwards * 2 * layers
        with planner.apply(model, plan):
            measured = max(measure_peak(step) for _ in range(2))
        assert measured == plan.predicted_peak_bytes <= plan.budget_bytes


class Stage(nn.Module):
    """Saves what it makes inside, and its input."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, wide), nn.Linear(wide, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(nn.functional.gelu(self.up(x)))
        return found


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_parts_made_whole_by_a_pass_run_as_predicted() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[Stage(8 if n % 4 else 128) for n in range(12)])
    x = torch.randn(64, 16)
    profile = planner.profile(model, inputs=(x,), loss_fn=torch.sum)
    graph, plan = Graph.of(profile), floor_plan(profile)
    stages = {u.name: u for u in profile.units if u.parent == 0}
    cuts = [
        (stages[f"{n}"].enter, depth) for n, depth in ((3, -1), (4, 1), (6, -2), (7, 2), (9, 1))
    ]
    start, stop = stages["0"].enter, stages["10"].exit
    dropped = droppable(graph, start, stop)
    whole = Span(start, stop, saved_inside(graph, start, stop) - dropped)
    step, plain = make_step(model, inputs=(x,), loss_fn=torch.sum), gradients(model, x)
    runs, peaks = [], []
    for spans in ((whole,), with_cuts((whole,), tuple(cuts))):
        played = simulate(graph, spans)
        made = replace(plan, segments=emit(graph, spans), budget_bytes=played.peak_bytes)
        with planner.apply(model, made):
            assert max(measure_peak(step) for _ in range(2)) == played.peak_bytes
            assert all(map(torch.equal, gradients(model, x), plain))
        runs.append(played.replayed_ops)
        peaks.append(played.peak_bytes)
    assert runs[0] < runs[1] and peaks[0] > peaks[1]
