"""The probe: a plan that is made with real inputs is checked, segment by segment, bit for bit."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from engine_runs import assert_same, give_up, train
from torch import Tensor, nn

import planner
from planner.applier.apply import manual_plan
from planner.applier.running import applied
from planner.applier.runtime import Runtime
from planner.replay import content, digest
from planner.replay.traits import may_be_undefined


class Hidden(torch.autograd.Function):
    """Fills memory that torch believes to hold zeros, differently at each call if asked to."""

    calls = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor, steady: bool) -> Tensor:
        Hidden.calls += 1
        y = torch.zeros_like(x)
        filled = np.sin(x.detach().numpy()) + (0 if steady else Hidden.calls)
        address = y.untyped_storage().data_ptr()  # as C++ code: `Tensor.data_ptr` is noticed
        ctypes.memmove(address, filled.ctypes.data, filled.nbytes)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.saved_tensors[0].cos(), None


class Part(nn.Module):
    """An ordinary block, or one with a hidden kernel."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.up, self.down, self.hidden = nn.Linear(6, 48), nn.Linear(48, 6), hidden

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(x).tanh()
        if self.hidden:
            y = Hidden.apply(y, True)
        return x + self.down(y.exp().sin()).tanh()


class Net(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Part(number == hidden) for number in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def inputs(batch: int) -> tuple[Tensor]:
    return (torch.randn(batch, 6, generator=torch.Generator().manual_seed(batch)).requires_grad_(),)


pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without looking at content, as on devices where looking is not cheap."""
    monkeypatch.setattr(content, "_sum", lambda tensor: 0)


def audited(model: nn.Module, units: list[str], by_digest: bool = False) -> Runtime:
    """Run one step of a hand-written plan with the audit on."""
    runtime = Runtime(manual_plan(model, units))
    runtime.audit(by_digest)
    with applied(model, runtime):
        model(*inputs(8)).sum().backward()
    return runtime


UNITS = [f"parts.{number}" for number in range(4)]


@pytest.mark.parametrize("by_digest", [False, True])
def test_nothing_is_found_where_replays_are_right(by_digest: bool) -> None:
    torch.manual_seed(1)
    assert audited(Net(-1), UNITS, by_digest).findings == []


@pytest.mark.parametrize("by_digest", [False, True])
def test_a_wrong_replay_is_found_and_named(by_digest: bool, blind: None) -> None:
    torch.manual_seed(1)
    finding, *others = audited(Net(2), UNITS, by_digest).findings
    assert not others or by_digest  # the audit tells the first one only
    assert finding.segment == "parts.2"
    assert finding.deterministic
    assert finding.address.startswith("parts.2/")
    if by_digest:  # in the order of backward
        return
    assert "zeros_like" in finding.op or "zero" in finding.op or "exp" in finding.op


def test_a_kernel_that_differs_from_run_to_run_is_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kernel whose results change by themselves, as atomics on a GPU do."""
    from planner.replay import generators

    torch.manual_seed(1)
    model = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Tanh()))

    def draw(again: Any, op: int, generator: Any, run: Any) -> Any:
        return run()  # forgets the generator's state

    monkeypatch.setattr(generators.DrawsAgain, "draw", draw)
    (finding,) = audited(model, ["0"]).findings
    assert not finding.deterministic
    assert finding.segment == "0"


@pytest.mark.parametrize("tensor", [
    torch.randn(3, 5), torch.randn(40, 30)[::2, 3:].T, torch.tensor(3), torch.randn(0, 4),
    torch.randn(6, dtype=torch.complex64).conj(), torch.randn(7).bfloat16(),
])  # fmt: skip
def test_a_digest_sees_every_bit_in_pieces_or_whole(
    tensor: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = digest.digest(tensor)
    assert whole == digest.digest(tensor.clone())
    monkeypatch.setattr(digest, "PIECE_BYTES", 8)
    assert whole == digest.digest(tensor)
    for at in range(tensor.numel()):
        other = tensor.resolve_conj().clone(memory_format=torch.contiguous_format)
        other.view(-1)[at] = -other.view(-1)[at] - 1
        assert digest.digest(other) != whole


def test_what_attention_leaves_undefined_is_not_compared() -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    assert may_be_undefined(attention, torch.zeros(2, dtype=torch.uint64))
    assert not may_be_undefined(attention, torch.zeros(2))
    assert not may_be_undefined(torch.ops.aten.topk.default, torch.zeros(2, dtype=torch.int64))


def test_the_audit_works_within_the_memory_of_one_segment() -> None:
    """Originals stay for one segment at a time."""
    torch.manual_seed(1)
    model = Net(-1)
    from planner.memory.meter import meter_for, step_tensors

    peaks = []
    for units in ([], UNITS):
        runtime = Runtime(manual_plan(model, units))
        runtime.audit()
        with applied(model, runtime), meter_for("cpu", step_tensors(model)) as meter:
            model(*inputs(256)).sum().backward()
        peaks.append(meter.peak_bytes)
        model.zero_grad()
    assert peaks[1] < peaks[0]


def test_planning_goes_on_without_what_differs(blind: None) -> None:
    torch.manual_seed(1)
    model = Net(1)
    x = inputs(64)[0]
    plan = planner.plan(model, budget_mb="55%", inputs=(x,))
    assert plan.segments, "the other parts can still be given up"
    wrong = [e for e in plan.exclusions if e.unit.startswith("parts.1")]
    assert wrong
    assert "replay differs" in wrong[0].reason
    assert "parts.1" in wrong[0].reason
    found = planner.verify(model, plan, inputs=(x,), repeats=1)
    assert found.ok, str(found)
    plain, _ = train(model, inputs, (64, 64, 64))
    planned, _ = train(model, inputs, (64, 64, 64), lambda net: planner.apply(net, plan))
    assert_same(plain, planned)


def test_content_is_looked_at_where_that_is_cheap() -> None:
    """On the CPU a hidden write is seen while recording; nothing needs to be left out."""
    torch.manual_seed(1)
    model = Net(1)
    assert audited(model, UNITS).findings == []
    plain, _ = train(model, inputs, (8, 8, 5))
    planned, handle = train(model, inputs, (8, 8, 5), give_up(*UNITS))
    assert_same(plain, planned)
    assert handle is not None
    assert handle.replayed_ops > 0


def test_the_probe_leaves_the_model_as_it_was() -> None:
    torch.manual_seed(1)
    model = Net(1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    planner.plan(model, budget_mb="70%", inputs=(inputs(64)[0],))
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
