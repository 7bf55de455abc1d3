"""Puts the parts together: a plan from a profile, and a plan that was probed and measured.

`offline` is pure; `settle` (with `probe`, `blame` and `fallback`) and `capped` run the model.
"""
