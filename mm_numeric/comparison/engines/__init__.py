"""Engines, which execute the runs of a comparison: on this machine, or on a Ray cluster."""
