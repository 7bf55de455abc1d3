"""Questions about stored profiles and plans: the frontier, and what a plan does in one unit."""
