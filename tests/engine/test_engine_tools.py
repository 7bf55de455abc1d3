"""Copies, hooks, compilers and tracers around an applied model change nothing.

Each test trains copies of one model, plain and with units given up, and compares every bit.
"""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from call_scenarios import UNITS, Net, Part, batch, compare, results
from engine_runs import assert_same, give_up, weighted_sum
from torch import Tensor, nn

import planner
from planner.applier.apply import apply, manual_plan

pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "save"])
def test_copied_and_saved_while_applied(way: str) -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        weighted_sum(model(x)).backward()
        return x.grad

    torch.manual_seed(1)
    model = Net()
    planned = copy.deepcopy(model)
    handle = give_up(*UNITS)(planned)
    weighted_sum(planned(batch())).backward()
    keys = list(planned.state_dict())
    if way == "deepcopy":
        other = copy.deepcopy(planned)
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(planned))
    else:
        file = io.BytesIO()
        torch.save(planned, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert list(other.state_dict()) == keys == list(model.state_dict())
    model.load_state_dict(other.state_dict())
    first = results(scenario, model)
    before = handle.replayed_ops
    assert_same(first, results(scenario, other))
    assert handle.replayed_ops == before, "a copy must not report to the original's handle"


def test_an_applied_model_inside_another() -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        out = model(x)
        weighted_sum(out).backward()
        return out, x.grad

    torch.manual_seed(1)
    model = nn.Sequential(Part(), Net(), Part())
    planned = copy.deepcopy(model)
    inner = give_up("parts.0", "parts.2")(planned[1])
    with pytest.raises(planner.InvalidModelError):
        give_up("0", "2")(planned)
    inner.remove()
    outer = nn.Sequential(copy.deepcopy(model), nn.Identity())
    whole = copy.deepcopy(outer)
    shared = whole[0][1]
    outside = give_up("0.0", "0.2")(whole)
    give_up("parts.0", "parts.1")(shared_copy := copy.deepcopy(shared))
    whole[0][1] = shared_copy
    assert_same(results(scenario, outer), results(scenario, whole))
    assert outside.replayed_ops > 0


def test_user_hooks_run_once_and_see_the_same() -> None:
    def scenario(model: nn.Module) -> Any:
        seen: list[Tensor] = []
        part, order = model.parts[1], []
        handles = [
            part.register_forward_pre_hook(lambda m, a: (a[0] * 1.1,)),
            part.register_forward_hook(lambda m, a, out: out.sin()),
            part.register_full_backward_pre_hook(lambda m, g: (g[0] * 0.9,)),
            part.register_full_backward_hook(lambda m, gi, go: (gi[0] * 1.2,)),
            part.up.weight.register_hook(lambda g: order.append("weight") or g * 1.3),
            part.down.register_forward_hook(
                lambda m, a, out: out.register_hook(seen.append) and None
            ),
            part.up.weight.register_post_accumulate_grad_hook(lambda p: order.append("post")),
        ]
        x = batch()
        out = model(x)
        out.retain_grad()
        weighted_sum(out).backward()
        for handle in handles:
            handle.remove()
        assert order == ["weight", "post"]
        return x.grad, out.grad, seen

    compare(scenario)


def test_hooks_on_saved_tensors_of_the_user() -> None:
    counts: list[list[int]] = []

    def scenario(model: nn.Module) -> Any:
        count = [0, 0]

        def pack(tensor: Tensor) -> Any:
            count[0] += 1
            return tensor.detach().clone()

        def unpack(packed: Any) -> Tensor:
            count[1] += 1
            return packed

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            x = batch()
            out = model(x)
            weighted_sum(out).backward()
        with torch.autograd.graph.save_on_cpu():
            weighted_sum(model(x)).backward()
        counts.append(count)
        return out, x.grad

    compare(scenario)


def test_hooks_of_the_user_inside_a_unit() -> None:
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = Part()

        def forward(self, x: Tensor) -> Tensor:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
                x = self.part(x).sin()
            return x.exp()

    def scenario(model: nn.Module) -> Any:
        x = batch()
        weighted_sum(model(x)).backward()
        return x.grad

    torch.manual_seed(1)
    compare(scenario, nn.Sequential(Hooked(), Part()), ("0", "1"))


def test_disabled_saved_tensor_hooks_step_aside() -> None:
    def scenario(model: nn.Module) -> Any:
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            out = model(batch())
        weighted_sum(out).backward()
        weighted_sum(model(batch())).backward()
        return out

    compare(scenario)


def test_anomaly_mode_and_deterministic_mode() -> None:
    def scenario(model: nn.Module) -> Any:
        with torch.autograd.detect_anomaly(check_nan=True):
            weighted_sum(model(batch())).backward()
        torch.use_deterministic_algorithms(True)
        try:
            weighted_sum(model(batch())).backward()
        finally:
            torch.use_deterministic_algorithms(False)

    compare(scenario)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_after_apply(backend: str) -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        out = model(x)
        weighted_sum(out).backward()
        return out, x.grad

    torch.manual_seed(1)
    model = Net()
    for part in model.parts:
        part.drop = nn.Identity()
    planned = copy.deepcopy(model)
    give_up(*UNITS)(planned)
    torch._dynamo.reset()
    first = results(scenario, torch.compile(model, backend=backend))
    torch._dynamo.reset()
    assert_same(first, results(scenario, torch.compile(planned, backend=backend)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_part_inside_a_unit(backend: str) -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        out = model(x)
        weighted_sum(out).backward()
        return out, x.grad

    def build() -> nn.Module:
        torch.manual_seed(1)
        model = Net()
        for part in model.parts:
            part.drop = nn.Identity()
        model.parts[1].up = torch.compile(model.parts[1].up, backend=backend)
        model.parts[2].compile(backend=backend)
        return model

    torch._dynamo.reset()
    first = results(scenario, build())
    torch._dynamo.reset()
    planned = build()
    give_up(*UNITS)(planned)
    assert_same(first, results(scenario, planned))


def test_removed_between_forward_and_backward() -> None:
    torch.manual_seed(1)
    model = Net()
    planned = copy.deepcopy(model)
    for net in (model, planned):
        torch.manual_seed(2)
        handle = give_up(*UNITS)(net) if net is planned else None
        loss = weighted_sum(net(batch()))
        if handle is not None:
            handle.remove()
        loss.backward()
    for a, b in zip(model.parameters(), planned.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    hooks = [*planned._forward_hooks, *planned._forward_pre_hooks]
    assert not hooks


def test_the_model_stays_what_it_was() -> None:
    model = Net()
    before = {n: type(m) for n, m in model.named_modules()}, set(vars(model)), str(model)
    with apply(model, manual_plan(model, UNITS)):
        assert (
            {n: type(m) for n, m in model.named_modules()},
            set(vars(model)),
            str(model),
        ) == before
        assert "_Gate" not in str(model)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class Plain(nn.Module):
    """A part that can be scripted, traced and exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).sin().exp()


def test_script_modules_are_left_out_by_name() -> None:
    def scenario(model: nn.Module) -> Any:
        x = batch()
        weighted_sum(model(x)).backward()
        return x.grad

    def build() -> nn.Module:
        torch.manual_seed(1)
        return nn.Sequential(Plain(), torch.jit.script(Plain()), Plain())

    model, planned = build(), build()
    plan = manual_plan(planned, ["0", "1", "2"])
    assert [e.unit for e in plan.exclusions] == ["1"]
    assert [s.start.unit for s in plan.segments] == ["0", "2"]
    ends_there = replace(plan.segments[0], end=replace(plan.segments[0].end, unit="1"))
    handle = apply(planned, replace(plan, segments=(ends_there, plan.segments[1])))
    assert [e.unit for e in handle.left_out] == ["1"]
    assert_same(results(scenario, model), results(scenario, planned))
    assert handle.replayed_ops > 0
    whole = torch.jit.script(Plain())
    assert not apply(whole, manual_plan(whole, ["layer"])).left_out


def test_traced_exported_and_fake() -> None:
    torch.manual_seed(1)
    model, x = nn.Sequential(Plain(), Plain()), batch().detach()
    expected = model(x)
    with apply(model, manual_plan(model, ["0", "1"])):
        assert torch.equal(torch.jit.trace(model, x)(x), expected)
        assert torch.equal(torch.fx.symbolic_trace(model)(x), expected)
        assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)
    on_meta = nn.Sequential(Plain(), Plain()).to("meta")
    with apply(on_meta, manual_plan(on_meta, ["0", "1"])):
        for _ in range(2):
            on_meta(x.to("meta")).sum().backward()
    assert on_meta[0].layer.weight.grad.shape == (8, 8)


def test_gradcheck() -> None:
    torch.manual_seed(1)
    model, x = nn.Sequential(Plain(), Plain()).double(), batch(2).detach().double()
    x.requires_grad_()
    with apply(model, manual_plan(model, ["0", "1"])):
        assert torch.autograd.gradcheck(model, x, check_batched_grad=True)
        assert torch.autograd.gradgradcheck(model, x)
