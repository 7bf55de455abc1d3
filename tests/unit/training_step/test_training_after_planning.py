"""Training after `plan` equals training without it, wherever a model's training keeps its state."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import state_holders
import torch
from state_holders import HOLDERS, HOOKS, ITERATORS, CountsInItsClass, Scaled, drawing, losses, x
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import planner
from planner.errors import StepError
from planner.training_step.state import preserve
from planner.training_step.step import make_step

pytestmark = pytest.mark.usefixtures("no_warnings", "nothing_left_behind")


def run_steps(model: nn.Module, **arguments: Any) -> None:
    """Run a few steps, as planning does."""
    step = make_step(model, **(arguments or {"inputs": x()}))
    for _ in range(3):
        with preserve(model, step=step):
            step.run()


def plan(model: nn.Module, **arguments: Any) -> None:
    """Make a plan, with all that belongs to it."""
    planner.plan(model, budget_mb="90%", **(arguments or {"inputs": x()}))


def same_with_and_without(
    build: Callable[[], nn.Module], looking: Callable[[nn.Module], None] = run_steps
) -> None:
    """Train two models alike, one of which was looked at before; both must do the same."""
    found = []
    for before in (lambda model: None, looking):
        state_holders.passes = 0
        CountsInItsClass.passes, CountsInItsClass.ids = 0, itertools.count()
        model = build()
        torch.manual_seed(5)
        before(model)
        found.append((losses(model), [parameter.tolist() for parameter in model.parameters()]))
    assert found[1] == found[0]
    assert len(set(found[0][0])) == len(found[0][0]), "the state must show in the losses"


@pytest.mark.parametrize("kind", ITERATORS)
def test_iterators_in_a_closure(kind: str) -> None:
    same_with_and_without(lambda: Scaled(drawing(ITERATORS[kind]())))


@pytest.mark.parametrize("place", ["attribute", "list", "dict", "tuple", "deep tuple"])
def test_iterators_in_every_kind_of_place(place: str) -> None:
    class Holds(Scaled):
        def __init__(self) -> None:
            super().__init__(lambda: float(next(self.of())))
            count = itertools.count(1)
            self.held: Any = {
                "attribute": count,
                "list": [count],
                "dict": {0: count},
                "tuple": (count,),
                "deep tuple": [((1, count),)],
            }[place]

        def of(self) -> Any:
            held = self.held
            return {
                "attribute": lambda: held,
                "list": lambda: held[0],
                "dict": lambda: held[0],
                "tuple": lambda: held[0],
                "deep tuple": lambda: held[0][0][1],
            }[place]()

    same_with_and_without(Holds)


def test_iterators_are_the_same_objects_afterwards() -> None:
    count = itertools.count()
    model = Scaled()
    model.count, model.zipped = count, zip(count, numbers := iter([1, 2, 3]), strict=False)
    zipped = model.zipped
    with preserve(model):
        assert next(model.zipped) == (0, 1)
        assert next(model.count) == 1, "one count in two places stays one"
    assert model.count is count and model.zipped is zipped
    assert (next(count), next(numbers)) == (0, 1)


@pytest.mark.parametrize("kind", HOLDERS)
def test_state_of_every_kind(kind: str) -> None:
    same_with_and_without(lambda: Scaled(HOLDERS[kind]()))


def test_state_in_the_class() -> None:
    same_with_and_without(CountsInItsClass)


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks(kind: str) -> None:
    def build() -> nn.Module:
        model = Scaled()
        HOOKS[kind](model)
        return model

    same_with_and_without(build)


def test_a_whole_plan_with_everything_at_once() -> None:
    def build() -> nn.Module:
        draws = [make() for make in HOLDERS.values()]
        draws += [drawing(make()) for make in ITERATORS.values()]
        model = Scaled(lambda: sum(draw() for draw in draws) / 100)
        HOOKS["optimizers in backward"](model)
        HOOKS["counting hooks"](model)
        return model

    same_with_and_without(build, plan)


def test_a_step_of_the_users_own_with_all_that_it_closes_over() -> None:
    def course(looking: Callable[..., None] | None) -> list[float]:
        model, other = Scaled(), Scaled()
        optimizers = [torch.optim.Adam(m.parameters(), 1e-2) for m in (model, other)]
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizers[0], 0.9)
        batches, seen = iter([x() * (1 + i / 10) for i in range(200)]), []

        def step(given: nn.Module) -> torch.Tensor:
            batch = next(batches)
            loss = (given(batch) - other(batch)).square().mean() + other(batch).square().mean()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            schedule.step()
            seen.append(loss.item())
            return loss

        if looking is not None:
            looking(model, step=step)
        return [step(model).item() for _ in range(3)] + seen

    expected = course(None)
    assert course(run_steps) == expected
    assert course(plan) == expected


def test_hooks_on_all_modules_and_modes_around_planning() -> None:
    class Counting(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.calls += 1
            return func(*args, **(kwargs or {}))

    calls = [0]

    def count(*args: Any) -> None:
        calls[0] += 1

    mode, model = Counting(), Scaled()
    handle = nn.modules.module.register_module_forward_hook(count)
    try:
        with mode:
            step = make_step(model, inputs=x())
            before = mode.calls
            with preserve(model, step=step):
                step.run()
                assert calls[0] > 0 and mode.calls > before
            assert mode.calls == before
    finally:
        handle.remove()
    assert calls == [0]


def test_an_inputs_callable_is_put_back_too() -> None:
    drawn = itertools.count()
    run_steps(Scaled(), inputs=lambda: ((x() + next(drawn),), {}))
    assert next(drawn) == 0


def test_random_draws_of_an_inputs_callable_are_put_back() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    model = Scaled()
    torch.manual_seed(3)
    make_step(model, inputs=lambda: ((torch.randn(128, 16),), {}))
    assert torch.equal(torch.rand(1), expected)


def generator() -> Any:
    """Yield numbers from a frame that cannot be copied."""
    yield from range(1, 1000)


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(x()), 8, shuffle=True)


@pytest.mark.parametrize(
    ("name", "make", "use"),
    [
        ("numbers", generator, next),
        ("numbers", lambda: map(float, generator()), next),
        ("numbers", lambda: itertools.islice(generator(), 1, None), next),
        ("numbers", lambda: itertools.tee(generator())[0], next),
        ("numbers", generator, lambda it: it.send(None)),
        ("numbers", lambda: iter(loader()), lambda it: next(it)[0].sum().item()),
    ],
)
def test_what_cannot_be_copied_is_refused_before_anything_is_taken(
    name: str, make: Callable[[], Any], use: Callable[[Any], float]
) -> None:
    model = Scaled(lambda: use(model.numbers))
    model.numbers = numbers = make()
    torch.manual_seed(1)
    with pytest.raises(StepError, match=rf"model\.{name}.*cannot be put back") as caught:
        plan(model)
    assert "planner.isolated(planner.plan)(model" in str(caught.value)
    assert model.numbers is numbers
    torch.manual_seed(1)
    again = make()
    torch.manual_seed(1)
    assert use(numbers) == (torch.manual_seed(1), use(again))[1]


def test_what_cannot_be_copied_may_be_held_as_long_as_it_is_not_used(tmp_path: Path) -> None:
    model = Scaled()
    model.numbers, model.waiting = generator(), queue.Queue()
    with (tmp_path / "log").open("w") as model.log:
        plan(model)
        model.log.write("fine")
    assert next(model.numbers) == 1 and (tmp_path / "log").read_text() == "fine"


def test_files_and_queues_are_refused_when_used(tmp_path: Path) -> None:
    path = tmp_path / "log"
    waiting: queue.Queue[float] = queue.Queue()
    waiting.put(1.0)
    with path.open("w") as log:
        for use in (lambda: print("a line", file=log) or 1.0, waiting.get):
            with pytest.raises(StepError, match="cannot be put back"):
                plan(Scaled(use))
    assert path.read_text() == "" and waiting.qsize() == 1
