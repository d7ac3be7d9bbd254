"""How many examples hypothesis draws: all in `.ci/run`, half of them in `./scripts/test`, and with
`--quick` a quarter. They are the same in each run."""

from hypothesis import settings

FULL = 100
settings.register_profile("full", max_examples=FULL, deadline=None, derandomize=True)
settings.register_profile("half", settings.get_profile("full"), max_examples=FULL // 2)
settings.register_profile("quick", settings.get_profile("full"), max_examples=FULL // 4)
settings.load_profile("half")


def examples(count: int) -> settings:
    """Return the settings of a property test of ``count`` examples in the profile "full"."""
    return settings(max_examples=count * settings().max_examples // FULL)
