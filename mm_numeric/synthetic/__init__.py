"""Generators of toy data sets: images such as clock faces and scenes, and sums."""
