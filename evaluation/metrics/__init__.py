"""Metrics and scorers: plain functions on answers, without torch."""
