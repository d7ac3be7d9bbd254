"""Generate answers, and read the distribution over digits."""
