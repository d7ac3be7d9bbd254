"""Image frames, coordinate grids, and the text formats of boxes and polygons. Loads no torch."""
