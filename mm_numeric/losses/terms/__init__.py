"""Losses of numbers, which an objective adds to cross-entropy."""
