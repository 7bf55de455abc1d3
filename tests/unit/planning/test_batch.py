"""`best_batch`: predicted for all batch sizes, measured for the few best, honest about the rest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from document_samples import PLAN
from torch import nn

import planner
from planner.cli import main
from planner.graph.scaled import alike, scale
from planner.planning.batch.choice import BatchChoice, BatchRow
from planner.planning.batch.choice_text import batch_text, verdict
from planner.planning.batch.inputs import repeating

MIB = 1024**2


def net() -> nn.Module:
    """Return four blocks that save much and hold few parameters."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 16)) for _ in range(4)]
    return nn.Sequential(*blocks)


def ones(batch_size: int) -> tuple[torch.Tensor, ...]:
    """Return the inputs of a batch size."""
    return (torch.ones(batch_size, 16),)


SIZES = (32, 64, 128, 256, 512, 2048)


@pytest.fixture(scope="module")
def choice() -> BatchChoice:
    """Return the choice within what 160 samples take plain, and a little."""
    plain = planner.profile(net(), inputs=ones(160), loss_fn=torch.sum).plain_peak_bytes
    return planner.best_batch(
        net(), budget_mb=plain / MIB, make_inputs=ones, batch_sizes=SIZES, loss_fn=torch.sum
    )


def test_every_size_has_a_row_and_the_few_best_are_measured(choice: BatchChoice) -> None:
    assert [row.batch_size for row in choice.rows] == list(SIZES)
    run = [row for row in choice.rows if row.measured_samples_per_second]
    assert 1 <= len(run) <= 4
    assert all(row.measured_peak_bytes <= choice.budget_bytes for row in run)  # type: ignore[operator]
    assert choice.best in run
    rates = [row.measured_samples_per_second or 0 for row in run]
    assert choice.best.measured_samples_per_second == max(rates)
    plain = choice.largest_plain
    assert plain is not None and plain.batch_size == 128 and plain in run


def test_what_fits_plain_is_plain_and_what_cannot_fit_says_so(choice: BatchChoice) -> None:
    for row in choice.rows:
        assert row.is_plain == (row.plain_peak_bytes <= choice.budget_bytes)
        assert row.fits == (row.samples_per_second is not None)
        assert row.peak_bytes is None or row.peak_bytes <= choice.budget_bytes
    assert not choice.rows[-1].fits
    assert "no plan fits" in str(choice)


def test_the_plan_is_for_the_chosen_size_and_holds_there(choice: BatchChoice) -> None:
    assert choice.plan.step.inputs[0].shape == (choice.batch_size, 16)
    found = planner.verify(net(), choice.plan, inputs=ones(choice.batch_size), loss_fn=torch.sum)
    assert found.ok
    assert found.measured_peak_bytes == choice.plan.measured_peak_bytes


def test_predictions_from_other_sizes_are_exact_in_bytes() -> None:
    small, large, wanted = (
        planner.profile(net(), inputs=ones(n), loss_fn=torch.sum) for n in (8, 32, 100)
    )
    assert alike(small, large)
    scaled = scale(small, large, (8, 32), 100)
    assert [s.bytes for s in scaled.storages] == [s.bytes for s in wanted.storages]
    assert scaled.plain_peak_bytes == wanted.plain_peak_bytes
    assert all(a.time_ns >= b.time_ns for a, b in zip(scaled.ops, large.ops, strict=True))
    assert scale(small, large, (8, 32), 8).ops == small.ops


def test_other_ops_are_not_alike() -> None:
    one = planner.profile(net(), inputs=ones(8), loss_fn=torch.sum)
    assert not alike(one, replace(one, ops=one.ops[:-1]))
    assert not alike(one, replace(one, fingerprint="other"))


class Forked(nn.Module):
    """Does other ops for large batches, so that nothing can be scaled."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) if x.shape[0] <= 32 else self.net(x).tanh()


def test_a_step_that_changes_its_ops_is_profiled_at_every_size() -> None:
    found = planner.best_batch(
        Forked(), budget_mb=64, make_inputs=ones, batch_sizes=(32, 64), loss_fn=torch.sum, repeats=1
    )
    assert not any(row.extrapolated for row in found.rows)


def test_a_budget_below_everything_names_the_smallest_peak() -> None:
    with pytest.raises(planner.InfeasibleBudgetError) as error:
        planner.best_batch(net(), budget_mb="10KB", make_inputs=ones, loss_fn=torch.sum)
    assert error.value.min_peak_bytes > 10 * 1024
    with pytest.raises(planner.InvalidBudgetError):
        planner.best_batch(net(), budget_mb="80%", make_inputs=ones)


def test_the_model_is_left_as_it_was() -> None:
    model = net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    planner.best_batch(
        model, budget_mb=64, make_inputs=ones, batch_sizes=(8,), loss_fn=torch.sum, repeats=1
    )
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_samples_are_repeated_in_everything_that_is_a_batch() -> None:
    mask, weights = torch.tensor([1, 2]), torch.ones(7)
    example = {"ids": torch.tensor([[1], [2]]), "more": [(mask, weights), 3], "flag": None}
    made = repeating(example)(5)
    assert made["ids"].tolist() == [[1], [2], [1], [2], [1]]
    assert made["more"][0][0].tolist() == [1, 2, 1, 2, 1]
    assert made["more"][0][1] is weights
    assert (made["more"][1], made["flag"]) == (3, None)
    with pytest.raises(planner.InvalidInputsError):
        repeating((3, torch.tensor(1.0)))


def row(size: int, measured: float | None, overhead: float = 0.0) -> BatchRow:
    """Return a row that fits."""
    return BatchRow(
        batch_size=size,
        plain_peak_bytes=size * MIB,
        peak_bytes=size * MIB,
        overhead_ratio=overhead,
        samples_per_second=measured,
        measured_samples_per_second=measured,
    )


@pytest.mark.parametrize(
    ("rows", "best", "words"),
    [
        ((row(4, 100.0), row(8, 90.0, 0.1)), 0, "A bigger batch does not pay."),
        ((row(4, 100.0), row(8, 101.0, 0.1)), 1, "A bigger batch hardly pays."),
        ((row(4, 100.0), row(8, 150.0, 0.1)), 1, "(50.0% more)"),
        ((row(8, 150.0, 0.1),), 0, "Without a plan no batch fits."),
        ((row(4, None), row(8, 150.0, 0.1)), 1, "The largest batch without a plan is 4."),
    ],
)
def test_the_verdict_says_whether_a_bigger_batch_pays(
    rows: tuple[BatchRow, ...], best: int, words: str
) -> None:
    choice = BatchChoice(
        model_class="Net", budget_bytes=9 * MIB, best=rows[best], plan=PLAN, rows=rows
    )
    assert words in verdict(choice)
    assert f"{rows[best].batch_size} *" in batch_text(choice)


NET_FILE = """
import torch
from torch import nn
def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
def fixed():
    return net(), (torch.ones(4, 8),), torch.sum
def free():
    return net(), lambda batch_size: (torch.ones(batch_size, 8),), torch.sum
def without():
    return net()
"""


def test_the_command_prints_the_table_and_writes_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small_net.py").write_text(NET_FILE)
    for name in ("fixed", "free"):
        command = ["batch", f"small_net.py:{name}", "--budget", "64MB", "--sizes", "4,8"]
        assert main([*command, "-o", f"{name}.json"]) == 0
        assert "Use a batch of" in capsys.readouterr().out
        plan = planner.Plan.load(f"{name}.json")
        assert plan.step.inputs[0].shape[0] in (4, 8)
    assert main([*command, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [r["batch_size"] for r in facts["rows"]] == [4, 8]
    assert main(["batch", "small_net.py:fixed", "--budget", "1KB", "--sizes", "4"]) == 1
    assert main(["batch", "small_net.py:without", "--budget", "64MB"]) == 2
    with pytest.raises(SystemExit):
        main(["batch", "small_net.py:fixed", "--budget", "64MB", "--sizes", "4,none"])
