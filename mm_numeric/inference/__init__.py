"""Generate answers, and measure the probability of each wrong digit."""
