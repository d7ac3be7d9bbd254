"""Generate answers, and measure which probabilities a model assigns to wrong digits."""
