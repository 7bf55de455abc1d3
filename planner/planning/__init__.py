"""Puts the parts together: a plan from a profile, and a plan that was probed and measured.

`offline` is pure. `tested` and `capped` are policies under the one loop of `refine`, which runs
candidates on the model; `trials` (Optuna) and `batch` build on them.
"""
