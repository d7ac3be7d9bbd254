"""The configs of the runs of a comparison with one seed."""

from mm_numeric.comparison.plan import planned_runs


def seed_configs(config, seed):
    """Return the configs of all runs with a seed, in the order of execution."""
    return [run.config for run in planned_runs(config, [seed])]
