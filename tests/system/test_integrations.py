"""Trainers that people use, with a plan put on by their callback: the same losses, less memory."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

pytest.importorskip("accelerate")
pytest.importorskip("lightning")

import lightning.pytorch as pl
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import planner
from planner.integrations import huggingface
from planner.integrations import lightning as for_lightning

MIB = 2**20


pytestmark = pytest.mark.usefixtures("no_warnings")


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Random token sequences, the same in every run."""

    def __init__(self, count: int = 8, length: int = 64) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, 64, (count, length), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=4, n_embd=64, n_head=2, vocab_size=64, n_positions=64)
    return GPT2LMHeadModel(config)


def trained(folder: Path, callbacks: list[Any], resume: bool = False, **options: Any) -> Trainer:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 2,
        "max_steps": 4,
        "lr_scheduler_type": "constant",  # a run that is stopped and resumed is the same run
        "logging_steps": 1,
        "save_steps": 2,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        **options,
    }
    trainer = Trainer(
        gpt2(), TrainingArguments(**settings), train_dataset=Tokens(), callbacks=callbacks
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def losses(trainer: Trainer) -> list[float]:
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_the_hugging_face_trainer_trains_the_same_under_a_budget(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", [])
    callback = huggingface.PlannerCallback(budget_mb="70%")
    planned = trained(tmp_path / "planned", [callback])
    assert losses(planned) == losses(plain) and len(losses(plain)) == 4
    assert callback.plan is None  # taken off at the end
    logged = [row for row in planned.state.log_history if "planner/peak_mib" in row]
    assert len(logged) == 1  # once, when the plan is new
    assert 0 < logged[0]["planner/peak_mib"] <= logged[0]["planner/budget_mib"]


def test_a_plan_is_kept_beside_the_checkpoint_and_taken_up(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", [])
    trained(tmp_path / "run", [huggingface.PlannerCallback(budget_mb="70%")], max_steps=2)
    stored = planner.Plan.load(tmp_path / "run" / "checkpoint-2" / "planner.plan.json")
    assert stored.segments
    seen: list[planner.Plan | None] = []

    class Watching(huggingface.PlannerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            seen.append(self.plan)

    resumed = trained(tmp_path / "run", [Watching(budget_mb="70%")], resume=True)
    assert losses(resumed)[-2:] == losses(plain)[-2:]
    assert seen[0] == stored


def test_gradient_checkpointing_left_on_is_switched_off(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", [])
    callback = huggingface.PlannerCallback(budget_mb="70%")
    with pytest.warns(RuntimeWarning, match="gradient checkpointing of this GPT2LMHeadModel"):
        planned = trained(tmp_path / "planned", [callback], gradient_checkpointing=True)
    assert losses(planned) == losses(plain)
    assert not planned.model.is_gradient_checkpointing


def test_a_callback_needs_a_plan_or_a_budget() -> None:
    with pytest.raises(planner.InvalidInputsError, match="either a plan or a budget"):
        huggingface.PlannerCallback()
    with pytest.raises(planner.InvalidInputsError, match="either a plan or a budget"):
        for_lightning.PlannerCallback("net.json", budget_mb=3)


class Regression(pl.LightningModule):
    """A module without a forward of its own: training_step calls the child."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)]
        self.net = nn.Sequential(*blocks)
        self.losses: list[float] = []

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.net(batch).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fitted(folder: Path, callbacks: list[Any], **options: Any) -> tuple[Regression, pl.Trainer]:
    module = Regression()
    data = DataLoader(torch.randn(2048, 64, generator=torch.Generator().manual_seed(1)), 512)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
            callbacks=callbacks,
            **options,
        )
        torch.manual_seed(2)
        trainer.fit(module, data)
    return module, trainer


def test_lightning_trains_the_same_under_a_budget(tmp_path: Path) -> None:
    plain, _ = fitted(tmp_path, [])
    plans: list[planner.Plan | None] = []

    class Watching(for_lightning.PlannerCallback):
        def on_train_batch_start(self, *args: Any) -> None:
            plans.append(self.plan)

    planned, _ = fitted(tmp_path, [Watching(budget_mb="70%")])
    assert planned.losses == plain.losses and len(plain.losses) == 4
    assert plans[-1] is not None and plans[-1].segments


def test_lightning_keeps_the_plan_in_its_checkpoint(tmp_path: Path) -> None:
    callback = for_lightning.PlannerCallback(budget_mb="70%")

    class Saving(pl.Callback):
        def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
            trainer.save_checkpoint(tmp_path / "last.ckpt")

    fitted(tmp_path, [callback, Saving()])
    states = torch.load(tmp_path / "last.ckpt", weights_only=False)["callbacks"]
    (text,) = (s["plan"] for s in states.values() if isinstance(s, dict) and "plan" in s)
    again = for_lightning.PlannerCallback(budget_mb="70%")
    again.load_state_dict({"plan": text})
    module = Regression()
    again.on_fit_start(pl.Trainer(logger=False, accelerator="cpu"), module)
    assert again.plan == planner.Plan.from_json(text)
    again.on_fit_end(pl.Trainer(logger=False, accelerator="cpu"), module)
    assert again.plan is None
