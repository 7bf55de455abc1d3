"""Plan, apply and compile in every order: the budget is met, or an error or a warning says why not.

The compiler's backend is `aot_eager`, which makes no machine code; all that matters here is which
code calls which hooks.
"""

from __future__ import annotations

import gc
import importlib.util
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from engine_runs import assert_clean
from torch import Tensor, nn
from torch.profiler import ProfilerActivity

import planner
from planner.applier.apply import apply

BACKEND = "aot_eager"
BATCH, WIDTH = 512, 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(self.up(x).tanh())


class Net(nn.Module):
    """What diffusers' `compile_repeated_blocks` looks for is the list of names."""

    _repeated_blocks = ("Block",)

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def inputs() -> Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))


def peak_bytes(model: nn.Module) -> int:
    """The peak of the third step, by the memory events of torch's profiler."""
    x = inputs()
    for _ in range(2):
        model(x).sum().backward()
        model.zero_grad()
    live = peak = sum(t.untyped_storage().nbytes() for t in (*model.parameters(), x))
    gc.collect()
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        model(x).sum().backward()
    model.zero_grad()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return int(peak)


@pytest.fixture(scope="module")
def eager_plan() -> planner.Plan:
    return planner.plan(Net(), budget_mb="70%", inputs=inputs())


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    assert_clean()


def whole(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend=BACKEND)  # type: ignore[return-value]


def in_place(model: nn.Module) -> nn.Module:
    model.compile(backend=BACKEND)
    return model


def blocks(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        block.compile(backend=BACKEND)
    return model


def wrapped_blocks(model: nn.Module) -> nn.Module:
    model.blocks = nn.ModuleList(torch.compile(b, backend=BACKEND) for b in model.blocks)
    return model


def by_diffusers(model: nn.Module) -> nn.Module:
    from diffusers.models.modeling_utils import ModelMixin

    ModelMixin.compile_repeated_blocks(model, backend=BACKEND)
    return model


def by_accelerate(model: nn.Module) -> nn.Module:
    from accelerate.utils import compile_regions

    return compile_regions(model, backend=BACKEND)  # type: ignore[no-any-return]


COMPILERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "torch.compile": whole,
    "model.compile": in_place,
    "blocks": blocks,
    "wrapped blocks": wrapped_blocks,
    "diffusers": by_diffusers,
    "accelerate": by_accelerate,
}


def plan_apply_compile(
    compile_it: Callable[[nn.Module], nn.Module], plan: planner.Plan
) -> nn.Module:
    model = Net()
    apply(model, plan)
    return compile_it(model)


def compile_apply(compile_it: Callable[[nn.Module], nn.Module], plan: planner.Plan) -> nn.Module:
    model = compile_it(Net())
    planner.apply(model, plan)
    return model


def compile_run_apply(
    compile_it: Callable[[nn.Module], nn.Module], plan: planner.Plan
) -> nn.Module:
    """The plan is put on the model itself; what the compiler returned has run already."""
    model = Net()
    compiled = compile_it(model)
    compiled(inputs()).sum().backward()
    planner.apply(model, plan)
    return compiled


def compile_plan_apply(
    compile_it: Callable[[nn.Module], nn.Module], plan: planner.Plan
) -> nn.Module:
    model = compile_it(Net())
    made = planner.plan(model, budget_mb=plan.budget_bytes / 2**20, inputs=inputs())
    planner.apply(model, made)
    return model


def live_compile(compile_it: Callable[[nn.Module], nn.Module], plan: planner.Plan) -> nn.Module:
    model = Net()
    planner.apply(model, budget_mb=plan.budget_bytes / 2**20)
    return compile_it(model)


def compile_live(compile_it: Callable[[nn.Module], nn.Module], plan: planner.Plan) -> nn.Module:
    model = compile_it(Net())
    planner.apply(model, budget_mb=plan.budget_bytes / 2**20)
    return model


def plan_of_compiled_on_eager(
    compile_it: Callable[[nn.Module], nn.Module], plan: planner.Plan
) -> nn.Module:
    model = Net()
    made = planner.plan(compile_it(Net()), budget_mb=plan.budget_bytes / 2**20, inputs=inputs())
    planner.apply(model, made)
    return model


ORDERS = (
    plan_apply_compile,
    compile_apply,
    compile_run_apply,
    compile_plan_apply,
    live_compile,
    compile_live,
    plan_of_compiled_on_eager,
)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_nothing_is_silent(
    compiler: str, order: Callable[..., nn.Module], eager_plan: planner.Plan
) -> None:
    if compiler in ("diffusers", "accelerate") and not importlib.util.find_spec(compiler):
        pytest.skip(f"needs {compiler}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            peak = peak_bytes(order(COMPILERS[compiler], eager_plan))
        except planner.PlannerError as error:
            assert error.fix
            return
    said = [str(w.message) for w in caught if "next step: " in str(w.message)]
    assert said or peak <= eager_plan.budget_bytes


def test_blocks_that_are_compiled_one_by_one_are_planned() -> None:
    """Within the budget, with plain's gradients, bit for bit."""
    x, model = inputs(), blocks(Net())
    plan = planner.plan(model, budget_mb="90%", inputs=x)
    model(x).sum().backward()
    want = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with planner.apply(model, plan) as handle:
        assert peak_bytes(model) <= plan.budget_bytes
        model(x).sum().backward()
        assert handle.replayed_ops > 0
    assert all(torch.equal(p.grad, w) for p, w in zip(model.parameters(), want, strict=True))


@pytest.mark.parametrize("compiler", ["torch.compile", "model.compile"])
def test_a_model_compiled_whole_is_refused_with_a_next_step(compiler: str) -> None:
    model = COMPILERS[compiler](Net())
    for call in (
        lambda: planner.plan(model, budget_mb="70%", inputs=inputs()),
        lambda: planner.profile(model, inputs=inputs()),
        lambda: planner.apply(model, budget_mb=100),
    ):
        with pytest.raises(
            planner.InvalidModelError, match=r"compiled as a whole[\s\S]*one by one"
        ):
            call()


def test_a_plan_that_is_compiled_over_warns_once(eager_plan: planner.Plan) -> None:
    model = Net()
    planner.apply(model, eager_plan)
    compiled = whole(model)
    with pytest.warns(RuntimeWarning, match="is being compiled") as caught:
        compiled(inputs()).sum().backward()
        compiled(inputs()[:7]).sum().backward()
    assert len([w for w in caught if "is being compiled" in str(w.message)]) == 1
