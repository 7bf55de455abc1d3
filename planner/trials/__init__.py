"""The measured search: Optuna, on the step's own time and peak. Called by `planner.plan`.

`search` runs a study from the plan that `planner.planning.settle` finds to the fastest that holds;
`trial` and `bench` run single plans, `study` and `charter` are what processes share, and `wanted`,
which imports neither torch nor Optuna, says what was asked for.
"""
