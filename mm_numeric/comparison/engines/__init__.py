"""Engines, which execute the runs of a comparison: here, on a Ray cluster, or under Slurm."""
