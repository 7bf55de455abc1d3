"""Profiles without running the step: fake tensors, a cost model, devices, sharding."""
