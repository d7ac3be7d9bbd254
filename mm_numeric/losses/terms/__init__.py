"""Numeric losses, each of which can be added to cross-entropy with a weight."""
