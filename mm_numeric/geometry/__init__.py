"""Image resizing and coordinate systems, and text formats of shapes. Does not import torch."""
