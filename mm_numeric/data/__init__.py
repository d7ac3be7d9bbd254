"""Rows and images in, training batches out."""
