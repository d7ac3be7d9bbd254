"""Numeric loss terms, which an objective adds to cross-entropy."""
