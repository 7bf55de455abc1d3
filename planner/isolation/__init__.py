"""Running planner on a copy of everything, in a child process."""
