"""The graph of a step and exact simulation of plans on it. No torch in this room."""

from __future__ import annotations

from planner.graph.emit import emit, resolve
from planner.graph.model import Graph
from planner.graph.simulate import Simulation, simulate
from planner.graph.span import IllegalSpanError, Span

__all__ = ["Graph", "IllegalSpanError", "Simulation", "Span", "emit", "resolve", "simulate"]
