"""Metrics and scorers, which compare predicted with true answers. They do not import torch."""
