"""Training losses: cross-entropy plus weighted losses of the number tokens."""
