"""Baselines: published methods for numbers in language models, for comparisons with our losses.

A baseline wraps a model family. It changes how numbers are tokenised and decoded, adds modules to
the model, and may replace the loss. Training, prediction and scoring stay the same.
"""
