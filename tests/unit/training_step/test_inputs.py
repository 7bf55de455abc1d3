"""Inputs that a model offers itself, and stored profiles."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from planner.documents import Profile, StepInfo
from planner.errors import ProfileNotFoundError
from planner.training_step import inputs as module
from planner.training_step.inputs import find_profile, resolve_inputs


class Model(nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        for name, value in attributes.items():
            setattr(self, name, value)


def test_lightnings_example_comes_first():
    x = torch.ones(2, 2)
    assert torch.equal(resolve_inputs(Model(example_input_array=x, dummy_inputs={"a": x + 1})), x)
    assert isinstance(resolve_inputs(Model(example_input_array=[x, x])), tuple)
    assert list(resolve_inputs(Model(example_input_array={"x": x}))) == ["x"]


@pytest.mark.parametrize("name", ["default_cfg", "pretrained_cfg"])
@pytest.mark.parametrize("as_object", [True, False])
def test_timms_image_size(name: str, as_object: bool):
    config = {"input_size": (3, 8, 6)}
    (image,) = resolve_inputs(Model(**{name: SimpleNamespace(**config) if as_object else config}))
    assert image.shape == (2, 3, 8, 6)
    (again,) = resolve_inputs(Model(**{name: config}))
    assert torch.equal(image, again)


def test_images_have_the_models_dtype_and_leave_the_random_state_alone():
    before = torch.get_rng_state()
    (image,) = resolve_inputs(Model(default_cfg={"input_size": (3, 4, 4)}).double())
    assert image.dtype == torch.float64
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_go_to_the_models_device():
    model = Model(dummy_inputs={"x": torch.ones(2), "flag": True}).to("meta")
    found = resolve_inputs(model)
    assert found["x"].device.type == "meta" and found["flag"] is True


def test_dummy_inputs_that_cannot_be_used_are_passed_over():
    class Raises(Model):
        @property
        def dummy_inputs(self):
            raise NotImplementedError

    for model in (Raises(), Model(dummy_inputs=None), Model(dummy_inputs=lambda: None), Model()):
        with pytest.raises(ProfileNotFoundError):
            resolve_inputs(model)


def test_transformers_models():
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = transformers.BertModel(transformers.BertConfig(intermediate_size=8, **small))
    assert list(resolve_inputs(text)) == ["input_ids"]
    vision = transformers.ViTModel(
        transformers.ViTConfig(intermediate_size=8, image_size=32, patch_size=16, **small)
    )
    found = resolve_inputs(vision)
    assert {name: tuple(value.shape) for name, value in found.items()} == {
        "pixel_values": (2, 3, 32, 32)
    }


def test_the_refusal_shows_the_command_and_the_call():
    with pytest.raises(ProfileNotFoundError) as caught:
        resolve_inputs(Model())
    assert "python scripts/profile_model.py path/file.py:build" in str(caught.value)
    assert "planner.plan(model, budget_mb=..., inputs=(x,))" in str(caught.value)


def a_profile(fingerprint: str, step_time_ns: int = 1) -> Profile:
    return Profile(
        model_class="Model",
        fingerprint=fingerprint,
        step=StepInfo(),
        plain_peak_bytes=1,
        step_time_ns=step_time_ns,
        forward_time_ns=1,
        units=(),
        ops=(),
        values=(),
        storages=(),
        saved=(),
    )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(module.SEARCH_PATH_VARIABLE, raising=False)
    (tmp_path / "profiles").mkdir()
    return tmp_path / "profiles"


def store(path, fingerprint: str, step_time_ns: int = 1) -> None:
    path.write_text(a_profile(fingerprint, step_time_ns).to_json())


def test_no_folder_and_no_match(folder):
    assert find_profile("a" * 16) is None
    store(folder / "other.json", "b" * 16)
    assert find_profile("a" * 16) is None
    folder.joinpath("other.json").unlink(), folder.rmdir()
    assert find_profile("a" * 16) is None


def test_the_newest_name_wins(folder):
    for number in (2, 10, 9):
        store(folder / f"net-{number}.json", "a" * 16, number)
    store(folder / "net-99.json", "b" * 16, 99)
    assert find_profile("a" * 16).step_time_ns == 10


def test_damaged_files_are_passed_over(folder):
    store(folder / "a.json", "a" * 16, 5)
    text = (folder / "a.json").read_text()
    (folder / "b.json").write_text(text[:-50])
    (folder / "c.json").write_text("{")
    (folder / "d.json").write_bytes(b"\xff\xfe\x00")
    (folder / "e.json").write_text("[]")
    (folder / "f.json").mkdir()
    (folder / "g.json").write_text(json.dumps({"kind": "other", "fingerprint": "a" * 16}))
    assert find_profile("a" * 16).step_time_ns == 5


def test_a_file_with_other_spacing_or_order_is_found(folder):
    document = json.loads(a_profile("a" * 16, 7).to_json())
    late = {"padding": "x" * 8192} | document
    (folder / "late.json").write_text(json.dumps(late))
    assert module._may_match(folder / "late.json", "a" * 16)
    (folder / "late.json").write_text(json.dumps(document, separators=(",", ":")))
    assert find_profile("a" * 16).step_time_ns == 7


def test_further_folders_come_from_the_environment(folder, tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        store(tmp_path / name / "net.json", "a" * 16, len(name) + ord(name[0]))
    paths = [str(tmp_path / "missing"), str(tmp_path / "two"), str(tmp_path / "one")]
    monkeypatch.setenv(module.SEARCH_PATH_VARIABLE, os.pathsep.join(paths))
    assert find_profile("a" * 16).step_time_ns == 3 + ord("t")
    store(folder / "net.json", "a" * 16, 1)
    assert find_profile("a" * 16).step_time_ns == 1
