"""Two processes: gradients are those of the wrapped model without a plan, and nobody waits."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from ranks import RANKS, Ranks, two_ranks
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.utils._python_dispatch import TorchDispatchMode

import planner
from planner.applier.apply import manual_plan
from planner.applier.gates import Gate
from planner.applier.sharded import PartGate
from planner.errors import InvalidModelError

dist = torch.distributed
pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)

WIDTH = 8
STEPS = 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """The same two processes for all tests."""
    with two_ranks(tmp_path_factory.mktemp("ranks")) as found:
        yield found


class Block(nn.Module):
    """A feed-forward block with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        inner = nn.functional.gelu(self.up(self.norm(x)))
        return x + nn.functional.dropout(self.down(inner), 0.1)


class Net(nn.Module):
    """Two blocks between layers that belong to the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x).sin()


class Collectives(TorchDispatchMode):
    """Notes the collectives that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in str(func):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def _data_parallel(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _legacy(model: nn.Module, *, blocks: bool, original: bool) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}) if blocks else None,
        use_orig_params=original,
        device_id=torch.device("cpu"),
    )


def _legacy_blocks(model: nn.Module) -> nn.Module:
    return _legacy(model, blocks=True, original=False)


def _legacy_blocks_original(model: nn.Module) -> nn.Module:
    return _legacy(model, blocks=True, original=True)


def _legacy_whole(model: nn.Module) -> nn.Module:
    return _legacy(model, blocks=False, original=False)


def _sharded(model: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WRAPPERS = (_data_parallel, _legacy_blocks, _legacy_blocks_original, _legacy_whole, _sharded)


def _train(rank: int, model: nn.Module) -> tuple[list[Tensor], list[str]]:
    """Train; returns all losses and gradients, and the collectives."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Tensor] = []
    with Collectives() as collectives:
        for step in range(STEPS):
            torch.manual_seed(RANKS * step + rank)
            optimizer.zero_grad()
            loss = model(torch.randn(4, WIDTH)).square().mean()
            loss.backward()
            found = (p.grad for p in model.parameters() if p.grad is not None)
            local = (g.to_local() if hasattr(g, "to_local") else g for g in found)
            seen += [loss.detach().clone(), *(g.clone() for g in local)]
            optimizer.step()
    return seen, collectives.names


def _equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def _blocks(model: nn.Module) -> list[str]:
    """The blocks, or the wrappers right around them."""
    found = [name for name, module in model.named_modules() if isinstance(module, Block)]
    return [name.removesuffix("._fsdp_wrapped_module") for name in found]


def _under_plan(
    rank: int, wrap: Callable[[nn.Module], nn.Module], units: Any, wrapped_first: bool
) -> dict[str, Any]:
    """Train wrapped, plain and with the units given up; the plan on before or after wrapping."""
    torch.manual_seed(0)
    bare = Net()
    plain, expected = _train(rank, wrap(copy.deepcopy(bare)))
    model = wrap(bare) if wrapped_first else bare
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        handle = planner.apply(model, manual_plan(model, units(model)))
        model = model if wrapped_first else wrap(model)
        planned, collectives = _train(rank, model)
    handle.remove()
    hooks = [h for m in model.modules() for h in (*m._forward_hooks.values(),)]
    return {
        "equal": _equal(plain, planned),
        "collectives": collectives == expected,
        "replayed": handle.replayed_ops,
        "told": sum("sharded units" in str(w.message) for w in caught),
        "left": sum(isinstance(hook, (Gate, PartGate)) for hook in hooks),
    }


def _root(model: nn.Module) -> list[str]:
    return [""]


def _every_wrapper(rank: int) -> dict[str, dict[str, Any]]:
    return {
        f"{wrap.__name__}/{units.__name__}/{wrapped_first}": _under_plan(
            rank, wrap, units, wrapped_first
        )
        for wrap in WRAPPERS
        for units in (_blocks, _root)
        for wrapped_first in (False, True)
    }


def test_wrapped_models_train_the_same(ranks: Ranks) -> None:
    """Per block and over the whole model; parameters may be gone between forward and backward."""
    for found in ranks.run(_every_wrapper):
        for name, result in found.items():
            assert result["equal"] and result["collectives"], (name, result)
            assert result["replayed"] > 0 and result["left"] == 0, (name, result)
            in_parts = "_root" in name and ("blocks" in name or "_sharded" in name)
            assert result["told"] == int(in_parts and "_legacy_whole" not in name), (name, result)


class Reduced(torch.autograd.Function):
    """A sum over the ranks, in place and without telling autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _in_place(x: Tensor) -> Tensor:
    return Reduced.apply(torch.relu(x)).sin()  # type: ignore[no-any-return]


def _later(x: Tensor) -> Tensor:
    total = x.detach() * 2
    work = dist.all_reduce(total, async_op=True)
    wave = x.sin()
    work.wait()
    return (wave * total).cos()


def _gathered(x: Tensor) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(parts, x.detach().contiguous())
    return (x * torch.stack(parts).mean(0)).sin()


def _functional(x: Tensor) -> Tensor:
    from torch.distributed._functional_collectives import all_reduce

    return (x * all_reduce(x.detach() * 2, "sum", dist.group.WORLD)).sin()


class _ReadBefore(nn.Module):
    """Reads memory from outside before and after a collective writes into it."""

    def __init__(self) -> None:
        super().__init__()
        self.outside = torch.arange(1.0 * WIDTH) / WIDTH + dist.get_rank()

    def forward(self, x: Tensor) -> Tensor:
        before = torch.sin(x * self.outside)
        dist.all_reduce(self.outside)
        return before + torch.cos(x * self.outside)


EXCHANGES = (_in_place, _later, _gathered, _functional, _ReadBefore)


class Exchange(nn.Module):
    """Two layers with something between them in which both ranks take part."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.between = between() if isinstance(between, type) else between

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(self.between(torch.tanh(self.one(x))))


def _every_exchange(rank: int) -> dict[str, tuple[bool, bool, int]]:
    found = {}
    for between in EXCHANGES:
        runs = []
        for units in ([], ["0", "1"], [""]):
            torch.manual_seed(0)
            model = nn.Sequential(Exchange(between), Exchange(between))
            handle = planner.apply(model, manual_plan(model, units))
            runs.append((*_train(rank, model), handle.replayed_ops))
        (plain, expected, _), *planned = runs
        for units, (seen, names, replayed) in zip(("blocks", "model"), planned, strict=True):
            result = (_equal(plain, seen), names == expected and bool(names), replayed)
            found[f"{between.__name__}/{units}"] = result
    return found


def test_collectives_are_never_replayed(ranks: Ranks) -> None:
    """What they make or write is kept, and what autograd saved before counts as written."""
    for found in ranks.run(_every_exchange):
        for name, (equal, same_collectives, replayed) in found.items():
            assert equal and same_collectives and replayed > 0, name


def test_memory_that_was_given_back_is_refused() -> None:
    """A wrapper that nobody knows frees what the segment read: an error, and no look at it."""

    class Frees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.whole = torch.randn(2, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            out = (x * self.whole[1]).sin().cos()
            self.whole.untyped_storage().resize_(0)
            return out

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Frees())
    planner.apply(model, manual_plan(model, ["1"]))
    loss = model(torch.randn(3, WIDTH)).sum()
    with pytest.raises(planner.ReplayError, match="was freed") as caught:
        loss.backward()
    assert caught.value.unit == "1" and caught.value.fix


def refused(rank: int) -> list[str]:
    """What planning says of a wrapped model."""
    found = []
    bare = nn.Sequential(Block(), Block())
    for wrapped in (
        nn.parallel.DistributedDataParallel(bare),
        fsdp.fully_shard(copy.deepcopy(bare)),
    ):
        for ask in (planner.profile, partial(planner.plan, budget_mb="80%")):
            try:
                ask(wrapped, inputs=torch.randn(4, WIDTH))
            except InvalidModelError as error:
                found.append(str(error))
    planner.plan(bare, budget_mb="100%", inputs=torch.randn(4, WIDTH))
    return found


def test_planning_where_others_would_wait_is_refused(ranks: Ranks) -> None:
    for found in ranks.run(refused):
        assert len(found) == 4 and "DistributedDataParallel" in found[0] and "FSDP" in found[2]
        assert all(
            "2 processes" in text and "in one process, save the plan" in text for text in found
        )
