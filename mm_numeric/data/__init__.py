"""Data loading: from samples and images to training batches with the positions of numbers."""
