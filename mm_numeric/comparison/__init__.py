"""Compare training losses: train a model with CE, then continue from it with each loss."""
