"""Tensors without memory: a step whose parameters, buffers, state and inputs are fake for a while.

A fake tensor has shape, dtype, device and a storage of the right size, and no content. The model
itself stays the same object: its tensors are exchanged in place and put back afterwards, so that
hooks, closures and a step of the user's own go on working. Used by `planner.estimate.fake_profile`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from planner.errors import InvalidModelError
from planner.estimate.fake_kernels import StandIns
from planner.training_step.call import Call
from planner.training_step.state import preserve_values
from planner.training_step.step import Step

_FAKEABLE = (torch.Tensor, nn.Parameter, FakeTensor)
_TABLES = ("_parameters", "_buffers")


class Faker:
    """Makes one fake for each tensor; tensors that share memory get fakes that share it.

    A fake that another one made stands for a tensor as good as the tensor itself.

    Args:
        device: where the fakes are; by default where the tensor is, and the CPU for meta tensors.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        # Who asks a fake for its address must get an error: a kernel launched on address 0 would
        # end the process, or the device's use in it.
        with functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
            self.mode = StandIns(allow_non_fake_inputs=True)
        self._device = device
        self._fakes: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._held: list[torch.Tensor] = []  # an id stays a tensor's own while it is held

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a tensor.

        Raises:
            InvalidModelError: the tensor is of a kind that has no single block of memory.
        """
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is self.mode:
            return tensor
        found = self._fakes.get(id(tensor))
        if found is None:
            found = self._fakes[id(tensor)] = self._make(tensor)
            self._held.append(tensor)
        return found

    def constant(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a single number whose value may be asked for, e.g. a step count."""
        plain = not isinstance(tensor, FakeTensor) and not tensor.requires_grad
        if tensor.numel() != 1 or tensor.device.type != "cpu" or not plain:
            return self(tensor)
        converter = self.mode.fake_tensor_converter
        found: torch.Tensor = converter.from_real_tensor(
            self.mode, tensor.detach().clone(), make_constant=True
        )
        return found

    def tree(self, value: object) -> Any:
        """Return the same nested value with fakes in place of tensors."""
        return pytree.tree_map_only(torch.Tensor, self.constant, value)

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if type(tensor) not in _FAKEABLE or tensor.layout is not torch.strided:
            raise InvalidModelError(
                f"a {type(tensor).__name__} ({tensor.layout}) cannot be stood in for by a fake",
                cause="a tensor subclass or a sparse layout",
                fix="profile the step where it runs: planner.profile(model, inputs=...)",
            )
        if tensor.is_leaf and getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise InvalidModelError(
                "a parameter has a hook that runs when its gradient is there",
                f"shape {tuple(tensor.shape)}",
                "an optimizer that updates during backward works on the real tensors, so what it"
                " frees would not be seen",
                "profile the step where it runs: planner.profile(model, inputs=...)",
            )
        fake: torch.Tensor = FakeTensor(self.mode, self._meta(tensor), self._place(tensor))
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, tensor.requires_grad)
        else:
            fake.requires_grad_(tensor.requires_grad)
        if not isinstance(tensor, FakeTensor):
            for name, value in vars(tensor).items():
                vars(fake).setdefault(name, value)
        return fake

    def _place(self, tensor: torch.Tensor) -> torch.device:
        if self._device is not None:
            return self._device
        return torch.device("cpu") if tensor.device.type == "meta" else tensor.device

    def _meta(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor's geometry on the meta device."""
        view = torch.empty(0, dtype=tensor.dtype, device="meta")
        real = tensor.untyped_storage()
        storage = self._storages.get(real._cdata)
        if storage is None:
            storage = torch.empty(real.nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
            self._storages[real._cdata] = storage
        with torch.no_grad():
            view.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())
        return view


@contextmanager
def fake_step(step: Step, device: torch.device | None = None) -> Iterator[Step]:
    """Exchange all tensors of a step for fakes; yields the step that runs on them.

    Allocates no memory for content. Afterwards the model, the optimizer and all random states are
    as they were.

    Args:
        step: the step; its model may be on the meta device.
        device: see `Faker`.

    Raises:
        InvalidModelError: the step has tensors that cannot be fake.
    """
    with preserve_values(step):
        faker = Faker(device)
        call = Call(*faker.tree(step.arguments))
        for module in step.model.modules():
            _exchange_module(module, faker)
        if step.optimizer is not None:
            _exchange_optimizer(step.optimizer, faker)
        with faker.mode:
            yield step.with_call(call)


def _exchange_module(module: nn.Module, faker: Faker) -> None:
    own = vars(module)
    for name in _TABLES:
        table = own[name]
        for key, tensor in table.items():
            if tensor is not None:
                table[key] = faker(tensor)
    for name, value in list(own.items()):
        if name not in _TABLES and name != "_modules":
            found = _exchanged(value, faker.constant)
            if found is not value:
                own[name] = found


def _exchanged(value: Any, fake: Callable[[torch.Tensor], torch.Tensor], depth: int = 2) -> Any:
    """The value with fakes inside plain containers; the very same object where there are none."""
    if isinstance(value, torch.Tensor):
        return fake(value)
    if depth == 0 or type(value) not in (list, tuple, dict):
        return value
    items = list(value.values() if isinstance(value, dict) else value)
    found = [_exchanged(item, fake, depth - 1) for item in items]
    if all(new is old for new, old in zip(found, items, strict=True)):
        return value
    return dict(zip(value, found, strict=True)) if isinstance(value, dict) else type(value)(found)


def _exchange_optimizer(optimizer: torch.optim.Optimizer, faker: Faker) -> None:
    state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
    for parameter, values in optimizer.state.items():
        state[faker(parameter)] = faker.tree(dict(values))
    optimizer.state = state
    optimizer.param_groups = [
        {**group, "params": [faker(parameter) for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
