"""mkdocs hook: fills in the command-line and benchmark pages, so that they cannot go stale.

The command line comes from the parsers, the benchmark tables from the files in `scripts/results`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from planner.cli import build_parser

RESULTS = Path(__file__).parents[1] / "scripts" / "results"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Append what is generated to the pages that have such a part."""
    made = {"command-line.md": _commands, "benchmarks.md": _benchmarks}.get(page.file.src_uri)
    return markdown if made is None else "\n\n".join((markdown, *made()))


def _commands() -> Iterator[str]:
    """Yield every subcommand's own help."""
    actions = build_parser()._actions
    commands = next(a for a in actions if isinstance(a, argparse._SubParsersAction))
    for name, parser in commands.choices.items():
        yield f"## planner {name}\n\n```\n{parser.format_help().rstrip()}\n```"


def _benchmarks() -> Iterator[str]:
    """Yield the tables of the result files."""
    engine = json.loads((RESULTS / "bench_engine.json").read_text())
    yield "## The engine beside torch's checkpoint\n\n" + _how(engine)
    yield (
        "GPT-2 steps. The engine runs plans written by hand that recompute every block, so that it"
        " does the same work as `checkpoint` on every block; `planner.plan` finds cheaper ones."
    )
    yield _table(
        ("model", "dropout", "variant", "time / plain (min)", "(median)", "peak MiB"),
        (
            (r["model"], r["dropout"], r["variant"], *_ratios(r), _mib(r["peak_bytes"]))
            for r in engine["results"]
        ),
    )
    for model, result in json.loads((RESULTS / "bench_overhead.json").read_text()).items():
        yield f"## Plans beside checkpointed blocks: {model}\n\n" + _how(result)
        yield _table(
            ("variant", "peak MiB", "added time (min)", "(median)", "predicted"),
            (
                (
                    r["variant"],
                    _mib(r["peak_bytes"]),
                    _percent(r["added_ratio_of_mins"]),
                    _percent(r["added_ratio_median"]),
                    _percent(r["predicted_overhead_ratio"]),
                )
                for r in result["rows"]
            ),
        )

    yield from _architectures(json.loads((RESULTS / "sweep_architectures.json").read_text()))


def _architectures(found: dict[str, Any]) -> Iterator[str]:
    """Yield the table of what plans do to many small models."""
    yield "## Many architectures, by torch's own profiler\n\n" + _how(found["facts"])
    yield (
        "Small models with random weights, at 80, 60 and 45 % of the plain step's peak or, where"
        " that cannot be reached (*), at the smallest peak that was found. Peaks are those of"
        " the third step by the memory events of `torch.profiler`, in percent of the plain step's."
    )
    yield _table(
        ("model", "family", "same bits", "within budget", "peak", "prediction off by", "planning"),
        (
            (
                name,
                entry["family"],
                *(_all(entry["rows"], key) for key in ("same_bits", "within_budget")),
                ", ".join(map(_share, entry["rows"])),
                f"{max(abs(r['prediction_error']) for r in entry['rows']):.2%}",
                f"{max(r['planning_s'] for r in entry['rows']):.1f} s",
            )
            for name, entry in found.items()
            if name != "facts"
        ),
    )


def _all(rows: list[dict[str, Any]], key: str) -> str:
    return "yes" if all(row[key] for row in rows) else "no"


def _share(row: dict[str, Any]) -> str:
    share = row["peak_bytes"] / row["plain_peak_bytes"]
    return f"{share:.0%}" + ("" if row["reached"] else "*")


def _how(result: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    hardware = ", ".join(f"{key} {value}" for key, value in result["hardware"].items())
    return f"`{result['command']}`; {versions}; {hardware}."


def _ratios(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['min_ratio']:.2f}", f"{row['median_ratio']:.2f}"


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f}"


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1%}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
