"""Generate answers to test questions, and measure which digits a model confuses."""
