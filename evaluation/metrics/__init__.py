"""Metrics and scorers: functions of predicted and true answers that do not import torch."""
