"""Puts the parts together: a plan from a profile, and a plan that was probed and measured.

`offline` is pure; `settle` (with `probe`, `blame` and `fallback`) runs the model, and `measured` (with the
files of that name) runs it many times.
"""
