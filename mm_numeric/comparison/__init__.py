"""Compare training objectives: train a model with each of them, over several seeds."""
