"""What all processes of one study agree on: the step, the space, and the plans to begin with.

The first process writes it into the study; whoever joins takes it from there, since plans that are
searched on another profile's times would span another space. Ops and values are written by number,
so a charter holds only where the step does the same ops; `digest` shows it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from planner.documents import Pins, Profile
from planner.graph import Graph, Span
from planner.search.measured.space import Space

_DIGITS = 16


@dataclass(frozen=True)
class Charter:
    """The agreement.

    Attributes:
        facts: what the study is about, as text by name; all processes must have the same.
        space: the space.
        seeds: the spans to begin with; the first are those that all times are measured against.
    """

    facts: Mapping[str, str]
    space: Space
    seeds: tuple[tuple[Span, ...], ...]

    def to_dict(self, graph: Graph) -> dict[str, Any]:
        """Return plain data."""
        seeds = [[_row(graph, span) for span in spans] for spans in self.seeds]
        return {"facts": dict(self.facts), "space": self.space.to_dict(), "seeds": seeds}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], graph: Graph) -> Charter:
        """Read what `to_dict` returned; the facts must have been found equal before."""
        seeds = tuple(tuple(_span(graph, row) for row in rows) for rows in fields["seeds"])
        return cls(fields["facts"], Space.from_dict(fields["space"]), seeds)


def study_name(profile: Profile, budget_bytes: int, pins: Pins) -> str:
    """Return the name of the study for a model, a step, a budget and pins."""
    what = [profile.fingerprint, asdict(profile.step), budget_bytes, asdict(pins)]
    return f"planner {profile.model_class} {_hash(what)}"


def facts_of(graph: Graph, budget_bytes: int) -> dict[str, str]:
    """Return what must be the same for all processes of a study."""
    profile = graph.profile
    ops = [(op.name, op.phase, op.unit, len(op.outputs), op.replayable) for op in profile.ops]
    sizes = [(s.bytes, s.birth) for s in profile.storages]
    return {
        "model": f"{profile.model_class} {profile.fingerprint}",
        "inputs": " ".join(f"{t.path} {list(t.shape)} {t.dtype}" for t in profile.step.inputs),
        "device": profile.step.device,
        "budget": f"{budget_bytes} B",
        "ops": f"{len(ops)} ops, digest {_hash([ops, sizes])}",
    }


def _hash(content: object) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _row(graph: Graph, span: Span) -> list[Any]:
    maker = graph.profile.values
    keep = ((maker[v].op, graph.outputs(maker[v].op).index(v)) for v in span.keep)
    return [span.start, span.stop, sorted(keep), span.cuts]


def _span(graph: Graph, row: Sequence[Any]) -> Span:
    start, stop, keep, cuts = row
    values = frozenset(graph.outputs(op)[output] for op, output in keep)
    return Span(start, stop, values, tuple((at, depth) for at, depth in cuts))
