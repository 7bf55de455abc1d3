"""Answers from stored profiles and plans: frontier, differences, one unit's choices. No torch."""
