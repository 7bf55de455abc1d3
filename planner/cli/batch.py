"""`planner batch MODEL --budget SIZE`: the batch size that trains fastest within a budget."""

from __future__ import annotations

import argparse
import inspect
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from planner.cli.arguments import add_command, add_model, add_output, check_output, save
from planner.cli.console import Console
from planner.cli.target import load_target
from planner.errors import InvalidInputsError

if TYPE_CHECKING:
    from planner.cli.arguments import Subcommands


def add_parser(subcommands: Subcommands) -> None:
    """Add the subcommand."""
    summary = "Find the batch size, with its plan, that trains most samples per second."
    parser = add_command(subcommands, "batch", summary, run)
    add_model(parser)
    parser.add_argument(
        "--budget", required=True, metavar="SIZE", help="the device's memory: 300MB, 16GB"
    )
    parser.add_argument(
        "--sizes", metavar="N,N,...", type=sizes, help="batch sizes to look at (1, 2, 3, 4, 6, ...)"
    )
    add_output(parser, "the plan of the best batch size")


def sizes(text: str) -> tuple[int, ...]:
    """Read a list of batch sizes."""
    found = tuple(int(part) for part in text.split(","))
    if not found or min(found) < 1:
        raise ValueError(text)  # argparse says which argument
    return found


def run(args: argparse.Namespace, console: Console) -> int:
    """Try batch sizes, print the table and save the plan where -o says."""
    import planner

    check_output(args.output, args.force)
    with console.stages(2) as stage:
        stage("loading the model")
        target = load_target(args.model)
        stage("trying batch sizes")
        choice = planner.best_batch(
            target.model,
            budget_mb=args.budget,
            make_inputs=_make_inputs(target.inputs),
            batch_sizes=args.sizes,
            loss_fn=target.loss_fn,
        )
    if args.output is not None:
        save(choice.plan, args.output, args.force, console)
    console.result(str(choice), lambda: json.dumps(choice.to_dict(), indent=2))
    return 0


def _make_inputs(inputs: Any) -> Callable[[int], Any]:
    """Return the model's own function of the batch size, or one that repeats its example inputs."""
    from planner.planning.batch.inputs import repeating

    if inputs is None:
        raise InvalidInputsError(
            "the model comes without inputs",
            cause="only (model, inputs) or (model, inputs, loss_fn) says what a sample is",
            fix="return inputs too: an example batch, or a function of the batch size",
        )
    if callable(inputs):
        if inspect.signature(inputs).parameters:
            made: Callable[[int], Any] = inputs
            return made
        inputs = inputs()
    return repeating(inputs)
