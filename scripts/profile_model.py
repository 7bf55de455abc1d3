"""The offline profiler: store profiles in profiles/, where `planner.plan` finds them by itself.

    python scripts/profile_model.py package.module:callable path/file.py:callable

Each callable returns (model, inputs) or (model, inputs, loss_fn). Run it once on the machine that
trains; afterwards `planner.plan(model, budget_mb=300)` needs neither inputs nor a step. The exit
code is the worst of the models' (0 fine, 2 usage or files, 3 the model's own code failed).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tqdm import tqdm

from planner.cli import main as planner_command
from planner.cli.arguments import MODEL_HELP


def main(argv: Sequence[str] | None = None) -> int:
    """Profile every model named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("models", metavar="MODEL", nargs="+", help=MODEL_HELP)
    parser.add_argument("--force", action="store_true", help="overwrite stored profiles")
    parser.add_argument("-v", "--verbose", action="store_true", help="show tracebacks")
    args = parser.parse_args(argv)
    flags = ["--force"] * args.force + ["--verbose"] * args.verbose
    hidden = None if len(args.models) > 1 else True
    names = tqdm(args.models, unit="model", disable=hidden, leave=False)
    return max([planner_command(["profile", name, *flags]) for name in names])


if __name__ == "__main__":
    sys.exit(main())
