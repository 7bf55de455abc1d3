"""Thin callbacks for trainers, each imported only when it is used.

`planner.integrations.huggingface` for `transformers.Trainer`, `planner.integrations.lightning` for
Lightning's `Trainer`.
"""
