"""Image frames, coordinate grids, and text formats of boxes and polygons. No torch import."""
