"""Coordinate systems of images (frames) and text formats of shapes, without importing torch."""
