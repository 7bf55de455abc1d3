"""A budget and a training loop are enough: GPT-2, by a plain loop and by the HF Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training_loops import MIB, Run, train

import planner
from planner.documents import Plan
from planner.memory.meter import meter_for, step_tensors
from planner.planning.offline import from_profile

transformers = pytest.importorskip("transformers")

STEPS, ROWS, LENGTH, WORDS = 10, 4, 32, 60
NUMBERS_BYTES = 8 * 8
"""Numbers that C++ code wraps in tensors (`x * 0.5`), 8 bytes each: three of each block."""


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=2,
        n_embd=32,
        n_head=2,
        vocab_size=WORDS,
        n_positions=LENGTH,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,  # else a loss function that is given the output holds the cache, too
    )
    model: nn.Module = transformers.GPT2LMHeadModel(config).train()
    assert config.resid_pdrop > 0
    return model


def texts() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, WORDS, (ROWS, LENGTH), generator=generator) for _ in range(STEPS)]


def own_loss(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=x, labels=x).loss
    return loss


def loss_of_loop(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    logits = model(x).logits
    return nn.functional.cross_entropy(logits.view(-1, WORDS), x.view(-1))


def offline(own: bool) -> dict[str, Any]:
    """Return the arguments by which `planner.plan` is told of the same step."""
    model, x = gpt2(), texts()[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if own:
        return {"model": model, "inputs": {"input_ids": x, "labels": x}, "optimizer": optimizer}

    def loss(output: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(output.logits.view(-1, WORDS), x.view(-1))

    return {"model": model, "inputs": x, "loss_fn": loss, "optimizer": optimizer}


def check(run: Run, plain: Run, budget: int) -> Plan:
    assert run.losses == plain.losses and len(run.losses) == STEPS
    assert max(run.peaks[1:]) <= budget < min(plain.peaks[1:])
    assert run.peaks[0] <= budget
    assert run.handle is not None and run.handle.plan is not None and run.handle.replayed_ops > 0
    return run.handle.plan


def test_a_plain_loop_trains_the_same_within_the_budget(tmp_path: Path) -> None:
    plain = train(gpt2(), texts(), own_loss)
    budget = plain.peaks[-1] * 7 // 10
    plan = check(train(gpt2(), texts(), own_loss, budget), plain, budget)

    plan.save(tmp_path / "plan.json")
    saved = planner.load(tmp_path / "plan.json")
    assert isinstance(saved, Plan) and saved == plan
    arguments = offline(own=True)
    made = planner.plan(**arguments, budget_mb=budget / MIB)
    for name in ("model_class", "fingerprint", "units", "step", "budget_bytes", "status"):
        assert getattr(saved, name) == getattr(made, name), name
    # The one was measured; the other lacks the numbers that C++ code wraps in tensors.
    assert 0 <= made.plain_peak_bytes - saved.plain_peak_bytes <= NUMBERS_BYTES
    assert saved.predicted_peak_bytes <= budget
    assert planner.verify(plan=saved, **arguments).ok


def test_a_loop_with_a_loss_of_its_own_trains_the_same_within_the_budget() -> None:
    plain = train(gpt2(), texts(), loss_of_loop)
    budget = plain.peaks[-1] * 7 // 10
    check(train(gpt2(), texts(), loss_of_loop, budget), plain, budget)


@pytest.mark.parametrize("own", [True, False], ids=["model's loss", "loop's loss"])
def test_with_the_same_times_the_plan_is_the_one_made_offline(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.online.plan_recorded.with_times", lambda profile, timer: profile)
    profile = planner.profile(**offline(own), device="cpu")
    budget = profile.plain_peak_bytes * 7 // 10
    made = from_profile(profile, budget)
    run = train(gpt2(), texts()[:2], own_loss if own else loss_of_loop, budget)
    assert run.handle is not None and run.handle.plan is not None
    plan = run.handle.plan
    assert plan.segments == made.segments and made.segments
    assert plan.predicted_peak_bytes == made.predicted_peak_bytes
    assert plan.floor_bytes == made.floor_bytes
    assert plan.gap == made.gap


def trainer(model: nn.Module, run: Run, folder: Path, **options: Any) -> Any:
    """Return a Trainer, as it comes, but for the notes that it takes."""

    class Metered(transformers.TrainerCallback):
        meter: Any = None

        def on_step_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
            optimizer = getattr(found["optimizer"], "optimizer", found["optimizer"])
            self.meter = meter_for("cpu", step_tensors(model, optimizer))
            self.meter.__enter__()

        def on_step_end(self, *args: Any, **found: Any) -> None:
            self.meter.__exit__(None, None, None)
            run.peaks.append(self.meter.peak_bytes)

    class Noting(transformers.Trainer):
        def training_step(self, *args: Any, **found: Any) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(*args, **found)
            run.losses.append(loss.item())
            return loss

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=ROWS,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        seed=5,
        **options,
    )
    rows = [{"input_ids": row, "labels": row} for text in texts() for row in text]
    return Noting(
        model, arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=[Metered()]
    )


def test_the_hf_trainer_trains_the_same_within_the_budget(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    plain, run = Run(), Run()
    evaluating = {"eval_strategy": "steps", "eval_steps": 3}
    trainer(gpt2(), plain, tmp_path, **evaluating).train()
    budget = plain.peaks[-1] * 7 // 10
    model = gpt2()
    run.handle = planner.apply(model, budget_mb=budget / MIB)
    trainer(model, run, tmp_path, **evaluating).train()
    plan = check(run, plain, budget)
    made = planner.profile(**offline(own=True), device="cpu")
    assert plan.fingerprint == made.fingerprint
    inputs = {(spec.path, spec.shape, spec.dtype) for spec in plan.step.inputs}
    assert inputs >= {(spec.path, spec.shape, spec.dtype) for spec in made.step.inputs}
    assert plan.step.optimizer == "AdamW"
    assert 0.97 < plan.plain_peak_bytes / made.plain_peak_bytes < 1.03
