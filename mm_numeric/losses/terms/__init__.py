"""Numeric loss terms."""
