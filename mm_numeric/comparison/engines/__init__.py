"""Engines, which execute the runs of a comparison: here, or on a Ray cluster."""
