"""How many examples hypothesis draws: with `./scripts/test --quick` a quarter."""

from hypothesis import settings

FULL = 100
settings.register_profile("full", max_examples=FULL, deadline=None, derandomize=True)
settings.register_profile("quick", settings.get_profile("full"), max_examples=FULL // 4)
settings.load_profile("full")


def examples(count: int) -> settings:
    """Return the settings of a property test of ``count`` examples, or a quarter of them."""
    return settings(max_examples=count * settings().max_examples // FULL)
