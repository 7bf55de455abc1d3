"""Checks a plan's two promises by running the step: equal gradients, and the peak."""

from __future__ import annotations

from planner.verifier.verification import Verification
from planner.verifier.verify import verify_plan

__all__ = ["Verification", "verify_plan"]
