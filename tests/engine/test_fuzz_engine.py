"""Random modules under random plans: every bit equal, every peak as predicted."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from drawn import examples
from engine_runs import assert_clean, assert_same, train
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import planner
from planner.applier.apply import apply, manual_plan
from planner.documents import Boundary, Cut, Plan, Segment

WIDTH = 8
NUMBER_BYTES = 8
"""What torch allocates for a Python number that stands for a tensor."""


def view_in_place(x: Tensor) -> Tensor:
    y = x * 1.25
    y.view(-1)[::2].add_(1.0)
    return y.exp().clamp(max=9.0)


def slice_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:] += x[:, :-1].sin()
    return y.tanh()


def filled(x: Tensor) -> Tensor:
    y = torch.empty_like(x)
    y.copy_(x)
    y[:, 0] = 0.5
    return y.sin()


@torch.no_grad()
def frozen_statistic(x: Tensor) -> Tensor:
    return x.std(-1, keepdim=True).exp()


UNARY = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "softmax": lambda x: x.softmax(-1),
    "double": lambda x: x.double().exp().clamp(max=9.0).to(x.dtype),
    "half": lambda x: x.to(torch.bfloat16).sin().to(x.dtype),
    "roll": lambda x: x.roll(1, -1) * x,
    "transpose": lambda x: (x.t().contiguous().t() * 1.5).cos(),
    "chunks": lambda x: torch.cat([c.sin() for c in x.chunk(2, -1)], -1),
    "norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "add_": lambda x: (x * 1.5).add_(0.5),
    "relu_": lambda x: F.relu_(x * 1.25),
    "view_add_": view_in_place,
    "slice_": slice_in_place,
    "scalar": lambda x: x * float(x.detach().abs().mean()) + x.sin(),
    "mask": lambda x: torch.where(x > 0, x, x.exp()),
    "noise": lambda x: x + torch.rand_like(x) * x,
    "drop": lambda x: F.dropout(x, 0.25),
    "no_grad": lambda x: x * frozen_statistic(x),
    "square_": lambda x: (x + 1.0).mul_(2.0).pow(2).div_(3.0),
    "sort": lambda x: x.sort(-1).values * x,
    "fill": filled,
}
IN_PLACE_ON_INPUT = {
    "input_add_": lambda x: x.add_(0.25),
    "input_tanh_": lambda x: x.mul_(0.5).sin(),
}
BINARY = {
    "add": torch.add,
    "mul": lambda a, b: a * b,
    "add_": lambda a, b: a.clone().add_(b),
    "mix": lambda a, b: torch.stack((a, b)).sum(0).sin(),
    "attend": lambda a, b: F.scaled_dot_product_attention(a[None], b[None], a[None])[0],
    "into": lambda a, b: (a * 1.0).addcmul_(a, b),
}


class Piece(nn.Module):
    """A few ops in a row, with a layer in front and perhaps a norm with statistics."""

    def __init__(self, ops: list[str], kind: str, layer: nn.Module | None) -> None:
        super().__init__()
        self.ops, self.kind = ops, kind
        self.layer = layer if layer is not None else nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH) if kind == "norm" else None
        self.register_buffer("calls", torch.zeros(()))

    def extra_repr(self) -> str:
        return f"{self.ops} {self.kind!r}"

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = self.layer(x)
        if self.norm is not None:
            y = self.norm(y)
        for op in self.ops:
            y = UNARY[op](y) if op in UNARY else IN_PLACE_ON_INPUT[op](y)
        if self.kind == "residual":
            y = x + y
        elif self.kind == "branch" and float(y.detach().sum()) > 0:
            y = y.sin() * y
        return y


class Net(nn.Module):
    """Pieces wired at random: each reads the latest value, and maybe an earlier one."""

    def __init__(self, pieces: list[Piece], wires: list[tuple[int, str] | None]) -> None:
        super().__init__()
        self.pieces, self.wires = nn.ModuleList(pieces), wires

    def extra_repr(self) -> str:
        frozen = [name for name, p in self.named_parameters() if not p.requires_grad]
        return f"wires {self.wires}, frozen {frozen}"

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for piece, wire in zip(self.pieces, self.wires, strict=True):
            y = piece(values[-1])
            if wire is not None:
                y = BINARY[wire[1]](y, values[wire[0] % len(values)])
            values.append(y)
        return values[-1]


@st.composite
def nets(draw: Any) -> Net:
    torch.manual_seed(draw(st.integers(0, 3)))
    count = draw(st.integers(1, 4))
    pieces: list[Piece] = []
    for _ in range(count):
        ops = draw(st.lists(st.sampled_from([*UNARY, *UNARY, *IN_PLACE_ON_INPUT]), max_size=4))
        kind = draw(st.sampled_from(["", "norm", "residual", "branch"]))
        shared = draw(st.sampled_from([None, None, None, *range(len(pieces))])) if pieces else None
        if draw(st.integers(0, 9)) == 0 and pieces:
            pieces.append(pieces[-1])  # the whole piece is called again
            continue
        pieces.append(Piece(ops, kind, None if shared is None else pieces[shared].layer))
    wires = [
        draw(st.none() | st.tuples(st.integers(0, 3), st.sampled_from(sorted(BINARY))))
        for _ in pieces
    ]
    net = Net(pieces, wires)
    for parameter in net.parameters():
        parameter.requires_grad_(draw(st.integers(0, 5)) > 0)
    if draw(st.integers(0, 5)) == 0:
        net.double()
    return net


def inputs_for(net: Net, needs_grad: bool) -> Any:
    dtype = next(net.parameters()).dtype

    def make(batch: int) -> tuple[Tensor]:
        x = torch.randn(batch, WIDTH, generator=torch.Generator().manual_seed(batch)).to(dtype)
        return (x.requires_grad_(needs_grad),)

    return make


def works(net: Net, inputs: Any) -> bool:
    """Whether the plain step runs at all (in-place ops may be illegal, nothing may need grad)."""
    probe = copy.deepcopy(net)
    try:
        out = probe(*inputs(3))
        out.double().sum().backward()
    except RuntimeError:
        return False
    return True


def unit_names(net: Net) -> list[str]:
    names = {id(piece): f"pieces.{i}" for i, piece in reversed(list(enumerate(net.pieces)))}
    return list(dict.fromkeys(names[id(piece)] for piece in net.pieces))


@st.composite
def hand_plans(draw: Any, net: Net) -> Plan:
    """Random units or runs of units, with random keeps and cuts."""
    units = unit_names(net)
    segments = []
    first = 0
    while first < len(units):
        last = min(first + draw(st.integers(0, 2)), len(units) - 1)
        if draw(st.booleans()):
            keep, cuts = draw(addresses(net, units[first : last + 1]))
            call = draw(st.sampled_from([0, 0, -1])) if first == last else 0
            start = Boundary(units[first], call, "enter")
            end = Boundary(units[last], call, "exit")
            segments.append(Segment(start, end, keep=keep, cuts=cuts))
        first = last + 1
    return replace(manual_plan(net, []), segments=tuple(segments))


@st.composite
def addresses(draw: Any, net: Net, units: list[str]) -> tuple[tuple[str, ...], tuple[Cut, ...]]:
    found = op_addresses(net, units)
    keep = draw(st.lists(st.sampled_from(found), max_size=5, unique=True)) if found else []
    cut = draw(st.lists(st.sampled_from(found), max_size=3, unique=True)) if found else []
    return tuple(keep), tuple(Cut(at, draw(st.sampled_from([1, 2, 3, -1, -2]))) for at in cut)


def op_addresses(net: Net, units: list[str]) -> list[str]:
    """Names that ops of these units may have (some exist, some do not)."""
    ops = (
        "sin",
        "tanh",
        "mul.Tensor",
        "add.Tensor",
        "exp",
        "add_.Scalar",
        "add_.Tensor",
        "native_layer_norm",
        "native_batch_norm",
        "clone",
        "_softmax",
        "copy_",
        "native_dropout",
        "rand_like",
        "bernoulli_.float",
        "div_.Scalar",
        "gelu",
        "relu_",
        "std.correction",
    )
    names = [f"{unit}/{op}/{n}" for unit in units for op in ops for n in range(2)]
    return names + [f"{unit}.layer/addmm/0" for unit in units]


pytestmark = pytest.mark.usefixtures("no_warnings")


@given(data=st.data())
def test_random_modules_under_random_plans(data: st.DataObject) -> None:
    """Bits are equal, or the engine says that something it needs was overwritten."""
    net = data.draw(nets())
    inputs = inputs_for(net, data.draw(st.booleans()))
    if not works(net, inputs):
        return
    plan = data.draw(hand_plans(net))
    batches = data.draw(st.lists(st.sampled_from([3, 3, 4]), min_size=2, max_size=4))
    plain, _ = train(net, inputs, batches)
    try:
        planned, _ = train(net, inputs, batches, lambda model: apply(model, plan))
    except planner.PlannerError as refusal:
        assert "modified in place" in str(refusal), refusal
    else:
        assert_same(plain, planned)
    assert_clean()


def statistics_bytes(net: Net) -> int:
    """Two copies, for each call, of what batch norms update."""
    norms = (piece.norm for piece in net.pieces if piece.norm is not None)
    buffers = (b for norm in norms for b in (norm.running_mean, norm.running_var))
    return sum(2 * b.nbytes for b in buffers if b is not None)


@given(data=st.data())
@examples(25)
def test_random_modules_under_searched_plans(data: st.DataObject) -> None:
    """What `planner.plan` returns is right, and peaks at the predicted byte, but for two things.

    A dispatch mode wraps a Python number in a tensor once more than torch does without one. So the
    profile shows one number too many where the peak is in an op that no segment holds. And an open
    segment holds copies of the statistics that a batch norm updates, which are not predicted.
    """
    net = data.draw(nets())
    inputs = inputs_for(net, data.draw(st.booleans()))
    if not works(net, inputs):
        return
    share = data.draw(st.integers(40, 100))
    (x,) = inputs(64)
    try:
        plan = planner.plan(net, budget_mb=f"{share}%", inputs=(x,))
    except planner.InfeasibleBudgetError as error:
        plan = planner.plan(net, budget_mb=error.min_peak_bytes / 2**20, inputs=(x,))
    found = planner.verify(net, plan, inputs=(x,), repeats=1)
    assert found.ok, str(found)
    above = (found.measured_peak_bytes or 0) - plan.predicted_peak_bytes
    assert -NUMBER_BYTES <= above <= statistics_bytes(net)
    assert_clean()
