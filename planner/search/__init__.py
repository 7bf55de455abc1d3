"""Finds the cheapest spans within a budget. Pure: reads a graph, runs nothing, imports no torch."""

from __future__ import annotations

from planner.search.method import Method
from planner.search.result import SearchResult
from planner.search.solve import floor, search

__all__ = ["Method", "SearchResult", "floor", "search"]
