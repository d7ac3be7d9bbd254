"""Compare training objectives: train a model with each objective, over several seeds."""
