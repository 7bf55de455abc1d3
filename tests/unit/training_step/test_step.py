"""One training step from whatever the user gives, and what it says when that cannot work."""

from __future__ import annotations

import pickle
from collections import UserDict, namedtuple
from dataclasses import dataclass
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from planner.documents.step import StepInfo, TensorSpec
from planner.errors import InvalidInputsError, InvalidModelError, PlannerError, StepError
from planner.training_step.step import make_step


class Adds(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, y=None, *, scale=1):
        return self.layer(x if y is None else x + y) * scale


X, Y = torch.ones(4, 3), torch.full((4, 3), 2.0)
SUM_OF_INPUTS = {
    "tensor": (X, 1.0),
    "tuple": ((X, Y), 3.0),
    "dict": ({"x": X, "scale": 2}, 2.0),
    "mapping": (UserDict({"x": X, "y": Y}), 3.0),
    "callable": (lambda: ((X,), {"y": Y, "scale": 2}), 6.0),
    "callable giving lists": (lambda: [[X], {}], 1.0),
}


@pytest.mark.parametrize("form", SUM_OF_INPUTS)
def test_every_form_of_inputs(form: str):
    inputs, factor = SUM_OF_INPUTS[form]
    model = Adds()
    make_step(model, inputs=inputs).run()
    assert torch.equal(model.layer.weight.grad, torch.full((2, 3), 4 * factor))


def test_gradients_add_up_as_in_a_loop_that_does_not_clear_them():
    model = Adds()
    step = make_step(model, inputs=X)
    step.run(), step.run()
    assert torch.equal(model.layer.weight.grad, torch.full((2, 3), 8.0))


def test_a_callable_is_called_once_unless_fresh_inputs_are_asked_for():
    inputs = Mock(side_effect=lambda: ((torch.full((1, 3), float(inputs.call_count)),), {}))
    step = make_step(Adds(), inputs=inputs)
    step.run(), step.run()
    assert inputs.call_count == 1

    inputs.reset_mock()
    step = make_step(Adds(), inputs=inputs, fresh_inputs=True)
    seen = []
    for _ in range(3):
        seen.append(float(step.input_tensors[0][0, 0]))
        step.run()
    assert seen == [1.0, 2.0, 3.0]


def test_copies_of_outputs_are_returned_on_request_only():
    step = make_step(Adds(), inputs=X)
    (output,) = step.run(copy_outputs=True)
    assert output.shape == (4, 2) and not output.requires_grad
    assert step.run() == ()


@dataclass
class Record:
    value: torch.Tensor
    loss: torch.Tensor | None = None


Pair = namedtuple("Pair", "one other")


class Returns(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.make = make

    def forward(self, x):
        return self.make(self.weight * x)


LOSSES = {
    "a tensor": (lambda y: y, 1),
    "a loss attribute": (lambda y: Record(y, y.sum() * 5), 5),
    "a loss key": (lambda y: {"loss": y.sum() * 5, "value": y}, 5),
    "no loss there": (Record, 1),
    "nested": (lambda y: [Pair(y, {"a": y}), Record(y)], 3),
    "with integers": (lambda y: (y, y.long(), "text", None), 1),
    "with detached": (lambda y: (y, y.detach()), 1),
    "a scalar": (lambda y: y.sum(), 1),
    "a mapping": (lambda y: UserDict(a=y), 1),
}


@pytest.mark.parametrize("case", LOSSES)
def test_default_losses(case: str):
    make, factor = LOSSES[case]
    model = Returns(make)
    make_step(model, inputs=torch.ones(3)).run()
    assert torch.equal(model.weight.grad, torch.full((3,), float(factor)))


def test_a_loss_function_and_an_optimizer():
    model = Returns(lambda y: y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = make_step(model, inputs=torch.ones(3), loss_fn=torch.sum, optimizer=optimizer)
    step.run()
    assert torch.allclose(model.weight, torch.full((3,), 0.9))
    assert step.describe().optimizer == "SGD"


def test_a_users_own_step_runs_everything_itself():
    model = Adds()
    calls = []

    def own(given):
        calls.append(given)
        for _ in range(2):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = given(X, scale=2).float().sum()
            loss.backward()

    step = make_step(model, step=own)
    assert step.is_users_own and step.inputs == {} and step.describe().root_calls == 1
    step.run()
    assert calls == [model]
    specs = (TensorSpec("args[0]", (4, 3), "float32"),)
    assert step.describe() == StepInfo(specs, "cpu", "bfloat16", "", 2)
    assert not model._forward_pre_hooks


def test_a_users_own_step_steps_its_optimizer_itself():
    model = Returns(lambda y: y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def own(given):
        given(torch.ones(3)).sum().backward()
        optimizer.step()

    make_step(model, step=own, optimizer=optimizer).run()
    assert torch.allclose(model.weight, torch.full((3,), 0.9))


def test_a_description_names_each_tensor():
    step = make_step(Adds(), inputs=lambda: ((X,), {"y": Y.double(), "scale": 2}))
    specs = (TensorSpec("args[0]", (4, 3), "float32"), TensorSpec("kwargs['y']", (4, 3), "float64"))
    assert step.describe() == StepInfo(specs, "cpu", "", "", 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert step.describe().autocast == "bfloat16"


def test_no_grad_and_inference_mode_around_do_not_matter():
    for around in (torch.no_grad, torch.inference_mode):
        model = Adds()
        step = make_step(model, inputs=X)
        with around():
            step.run()
        assert model.layer.weight.grad is not None


def test_no_run_finds_weights_that_autocast_has_cast_before():
    layer, x = nn.Linear(4, 4), torch.ones(2, 4)
    step = make_step(layer, inputs=x)
    with torch.autocast("cpu", torch.bfloat16):
        before = step.run(copy_outputs=True)[0]
        with torch.no_grad():
            layer.weight.add_(1)
        after = step.run(copy_outputs=True)[0]
    assert not torch.equal(before, after)


def test_nothing_is_kept_alive_after_a_run():
    from planner.memory.meter import CpuMeter, step_tensors

    model = Adds()
    step = make_step(model, inputs=X)
    with CpuMeter(step_tensors(model, inputs=step.input_tensors)) as meter:
        step.run()
        assert meter.live_bytes == meter.baseline_bytes + sum(p.nbytes for p in model.parameters())


class Fails(nn.Module):
    def __init__(self, where):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.where = where

    def forward(self, x):
        if self.where == "forward":
            raise ValueError("bad shape 17")
        y = self.weight * x
        if self.where == "backward":
            y.register_hook(self.fail)
        return y

    def fail(self, grad):
        raise ValueError("bad gradient 17")


def frozen() -> nn.Module:
    return Adds().requires_grad_(False)


def unused(model):
    raise AssertionError("not to be called")


MODEL = Adds()
REFUSED = {
    "no module": (lambda: make_step(X, inputs=X), InvalidModelError, "Tensor"),
    "a class": (lambda: make_step(Adds, inputs=X), InvalidModelError, "class"),
    "no parameters": (lambda: make_step(nn.ReLU(), inputs=X), InvalidModelError, "no parameters"),
    "frozen": (lambda: make_step(frozen(), inputs=X), InvalidModelError, "0 of 2 parameters"),
    "lazy": (lambda: make_step(nn.LazyLinear(2), inputs=X), InvalidModelError, "weight"),
    "a list": (lambda: make_step(MODEL, inputs=[X]), InvalidInputsError, "list"),
    "a number": (lambda: make_step(MODEL, inputs=3), InvalidInputsError, "int"),
    "integer keys": (lambda: make_step(MODEL, inputs={1: X}), InvalidInputsError, "1"),
    "a bare result": (lambda: make_step(MODEL, inputs=lambda: X), InvalidInputsError, "Tensor"),
    "a pair": (lambda: make_step(MODEL, inputs=lambda: (X, Y)), InvalidInputsError, "(args,"),
    "raising inputs": (lambda: make_step(MODEL, inputs=lambda: 1 / 0), InvalidInputsError, "Zero"),
    "other device": (
        lambda: make_step(MODEL, inputs=X.to("meta")),
        InvalidInputsError,
        "input on meta, model on cpu",
    ),
    "both": (lambda: make_step(MODEL, inputs=X, step=unused), InvalidInputsError, "step and inp"),
    "both loss": (
        lambda: make_step(MODEL, loss_fn=torch.sum, step=unused),
        InvalidInputsError,
        "step and loss_fn",
    ),
    "no function": (lambda: make_step(MODEL, inputs=X, loss_fn=3), InvalidInputsError, "loss_fn"),
    "no step": (lambda: make_step(MODEL, step="fn"), InvalidInputsError, "step is a str"),
    "no optimizer": (lambda: make_step(MODEL, inputs=X, optimizer=3), InvalidInputsError, "int"),
    "optimizer class": (
        lambda: make_step(MODEL, inputs=X, optimizer=torch.optim.SGD),
        InvalidInputsError,
        "type",
    ),
    "foreign optimizer": (
        lambda: make_step(MODEL, inputs=X, optimizer=torch.optim.SGD(Adds().parameters())),
        InvalidInputsError,
        "none of the model's",
    ),
    "forward": (
        lambda: make_step(Fails("forward"), inputs=torch.ones(3)).run(),
        StepError,
        "ValueError: bad shape 17",
    ),
    "backward": (
        lambda: make_step(Fails("backward"), inputs=torch.ones(3)).run(),
        StepError,
        "ValueError: bad gradient 17",
    ),
    "own step": (lambda: make_step(MODEL, step=lambda m: 1 / 0).run(), StepError, "ZeroDivision"),
    "loss function": (
        lambda: make_step(MODEL, inputs=X, loss_fn=lambda y: 1 / 0).run(),
        StepError,
        "loss function",
    ),
    "no scalar": (
        lambda: make_step(MODEL, inputs=X, loss_fn=lambda y: y).run(),
        StepError,
        "shape (4, 2), 8 elements",
    ),
    "no tensor": (
        lambda: make_step(MODEL, inputs=X, loss_fn=lambda y: 3.0).run(),
        StepError,
        "float",
    ),
    "no gradient": (
        lambda: make_step(MODEL, inputs=X, loss_fn=lambda y: y.detach().sum()).run(),
        StepError,
        "no gradient",
    ),
    "no floats": (
        lambda: make_step(Returns(lambda y: y.long()), inputs=torch.ones(3)).run(),
        StepError,
        "0 floating-point tensors",
    ),
    "closure optimizer": (
        lambda: make_step(MODEL, inputs=X, optimizer=torch.optim.LBFGS(MODEL.parameters())).run(),
        StepError,
        "step=fn",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str):
    attempt, kind, says = REFUSED[case]
    with pytest.raises(kind) as caught:
        attempt()
    error = caught.value
    assert isinstance(error, PlannerError)
    assert says in str(error)
    assert error.fix
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_failing_forward_is_chained():
    with pytest.raises(StepError) as caught:
        make_step(Fails("forward"), inputs=torch.ones(3)).run()
    assert isinstance(caught.value.__cause__, ValueError)
    assert "Fails" in caught.value.what


def test_errors_of_our_own_pass_unchanged():
    def own(model):
        raise InvalidModelError("mine")

    with pytest.raises(InvalidModelError, match="mine"):
        make_step(Adds(), step=own).run()


def test_an_input_that_requires_a_gradient_is_enough():
    x = torch.ones(3, requires_grad=True)
    make_step(nn.ReLU(), inputs=x).run()
    assert torch.equal(x.grad, torch.ones(3))


def test_host_integers_may_stand_beside_inputs_on_the_models_device():
    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, device="meta"))

        def forward(self, x, lengths):
            return x * self.weight

    model, x = Packs(), torch.ones(2, 3, device="meta")
    make_step(model, inputs=(x, torch.tensor([1, 2])))
    with pytest.raises(InvalidInputsError, match=r"args\[1\]"):
        make_step(model, inputs=(x, torch.ones(2)))


def test_a_step_without_a_backward_is_refused():
    model = Adds()
    step = make_step(model, step=lambda given: given(X).sum())
    with pytest.raises(StepError, match="ran no backward"):
        step.run()


@pytest.mark.parametrize("how", ["backward", "cleared", "grad", "part"])
def test_every_way_to_run_a_backward_counts(how):
    model = Adds()

    def own(given):
        if how == "part":
            given.layer(X).sum().backward()
        elif how == "grad":
            torch.autograd.grad(given(X).sum(), list(given.parameters()))
        else:
            given(X).sum().backward()
        if how == "cleared":
            given.zero_grad()

    for _ in range(2):
        make_step(model, step=own).run()
