"""Generate answers, and choose them from their distribution by decoding rules."""
