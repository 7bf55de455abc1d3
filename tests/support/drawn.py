"""How many examples a drawn test gets."""

from __future__ import annotations

from hypothesis import settings

CI_EXAMPLES = 200
"""Of a drawn test that states no number of its own, in continuous integration."""


def examples(count: int) -> settings:
    """Return settings for a test that draws so many examples in continuous integration.

    Args:
        count: a plain `pytest` draws a fifth of it, `HYPOTHESIS_PROFILE=nightly` ten times as many.
    """
    scaled = count * settings().max_examples // CI_EXAMPLES
    return settings(max_examples=max(scaled, 5), deadline=None)
