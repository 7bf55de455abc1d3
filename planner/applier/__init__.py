"""Puts a plan on a model and takes it off. The only room that knows both plans and the engine."""
