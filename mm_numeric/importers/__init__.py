"""Convert published data sets to JSON Lines files for this library. Does not import torch."""
