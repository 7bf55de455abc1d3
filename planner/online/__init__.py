"""Planning inside a training loop: record a step, plan before the next one."""
