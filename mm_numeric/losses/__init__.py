"""Numeric losses: one shared cross-entropy plus weighted terms."""
