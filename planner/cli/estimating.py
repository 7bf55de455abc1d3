"""Arguments for estimating a step on a device without running it; for `plan` and `profile`."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from typing import Any

AUTOCAST = ("bfloat16", "float16")


def add_estimate(parser: argparse.ArgumentParser) -> None:
    """Add --device-spec, --shards, --optimizer and --autocast."""
    parser.add_argument(
        "--device-spec",
        metavar="NAME",
        help="do not run the step, derive it for this device: h100, h200, a100, a6000, rtx4090, "
        "l4, cpu, or a file made by `planner calibrate`",
    )
    parser.add_argument(
        "--shards",
        type=int,
        default=1,
        metavar="N",
        help="ranks that share parameters, gradients and optimizer state (1)",
    )
    parser.add_argument(
        "--optimizer", metavar="NAME", help="end the step with it: none, sgd, adam or adamw (none)"
    )
    parser.add_argument(
        "--autocast", choices=AUTOCAST, help="run the step under autocast to this dtype"
    )


def estimate_arguments(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments for `planner.plan` and `planner.profile`."""
    import planner

    device = None
    if args.device_spec is not None or args.shards != 1:
        device = planner.Device(args.device_spec, ranks=args.shards)
    return {"device": device, "optimizer": args.optimizer}


def autocasting(args: argparse.Namespace, model: Any) -> AbstractContextManager[Any]:
    """Return the autocast that was asked for, on the device where the step runs or pretends to."""
    if args.autocast is None:
        return nullcontext()
    import torch

    kind = next((tensor.device.type for tensor in model.parameters()), "cpu")
    return torch.autocast("cpu" if kind == "meta" else kind, getattr(torch, args.autocast))
