"""What a segment holds after a change of branch: as much as if it had always gone that way."""

from __future__ import annotations

import gc

import torch
from profiled_peak import bytes_of, profiled_peak
from torch import Tensor, nn

import planner
from planner.applier.manual import manual_plan
from planner.replay.recipe import MOST_ANEW, Recipe


class Block(nn.Module):
    """A few ops, and one more where the branch is taken."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.branch = nn.Linear(32, 32), False

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x).sin().tanh().exp().clamp(max=2.0)
        if self.branch:
            y = y.cos()
        return x + y.sin().tanh()


def planned_net() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(*(Block() for _ in range(4)))
    planner.apply(net, manual_plan(net, [str(number) for number in range(4)]))
    return net


def step(net: nn.Module, x: Tensor, branch: bool) -> list[Tensor]:
    for block in net:
        block.branch = branch
    net.zero_grad()
    net(x).sum().backward()
    return [p.grad.clone() for p in net.parameters() if p.grad is not None]


def peak(net: nn.Module, x: Tensor, branch: bool) -> int:
    return profiled_peak(lambda: step(net, x, branch), bytes_of((*net.parameters(), x)))


def test_after_a_change_of_branch_the_peak_is_that_of_the_branch() -> None:
    x = torch.randn(512, 32)
    always, changed = planned_net(), planned_net()
    for _ in range(2):
        step(changed, x, branch=False)
    for _ in range(4):
        assert all(
            torch.equal(a, b)
            for a, b in zip(step(always, x, True), step(changed, x, True), strict=True)
        )
    assert peak(changed, x, branch=True) == peak(always, x, branch=True)


def test_branches_that_take_turns_are_not_recorded_again_and_again() -> None:
    x = torch.randn(16, 32)
    net, plain = planned_net(), nn.Sequential(*(Block() for _ in range(4)))
    plain.load_state_dict(net.state_dict())
    for turn in range(12):
        wanted, found = step(plain, x, turn % 3 == 0), step(net, x, turn % 3 == 0)
        assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))
    recipes = [found for found in gc.get_objects() if type(found) is Recipe and found.programs]
    assert recipes and all(len(recipe.programs) <= 2 * (1 + MOST_ANEW) for recipe in recipes)
