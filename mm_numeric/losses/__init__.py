"""Training losses: cross-entropy plus weighted numeric loss terms."""
