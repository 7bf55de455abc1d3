"""Puts a plan on a model and takes it off. The only room that knows both plans and the engine."""

from planner.applier.apply import Handle, Removable
from planner.applier.manual import manual_plan

__all__ = ["Handle", "Removable", "manual_plan"]
