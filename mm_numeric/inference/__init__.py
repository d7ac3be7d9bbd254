"""Generate answers, and measure the predicted distribution over digits."""
